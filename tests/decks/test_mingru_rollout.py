"""cuda/mingru_rollout: the world step by step, what the distribution promises, and what its comparator rejects."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor

from kernelassay.decks import CaseTensors, LoadedProblem, attribute, compare, draw, expect, load
from kernelassay.records import Tier
from kernelassay.records.formula import evaluate

LEAST_SHARE = 0.05
"""Every action is taken in at least this share of decisions."""
SEEDS = (10, 11, 12, 13)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Many tiny operations: threads only wait for each other when other tests run beside this one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def loaded() -> LoadedProblem:
    return load("cuda/mingru_rollout")


@pytest.fixture(scope="module")
def code(loaded: LoadedProblem) -> ModuleType:
    return sys.modules[loaded.reference.model.__module__]


def drawn(loaded: LoadedProblem, key: str, case: str = "nominal", seed: int = 10) -> CaseTensors:
    return draw(loaded, loaded.problem.shape(key), case, seed, weights_seed=seed)


def answer(loaded: LoadedProblem, tensors: CaseTensors, name: str = "fp32") -> dict[str, Tensor]:
    pipelines = {**loaded.reference.legal, **loaded.reference.mutants}
    return pipelines[name](tensors.weights, tensors.inputs, tensors.shape)


def test_generator_wraps_exactly(code: ModuleType) -> None:
    starts = [0, 1, 2**62 - 1, 2**62, 2**62 + 12345, 2**63 - 1, 987654321987654321]
    r = torch.tensor(starts)
    for _ in range(50):
        r = code.advance(r)
        starts = [(6364136223846793005 * s + 1) % 2**63 for s in starts]
        assert r.tolist() == starts


def test_moves_and_edges(code: ModuleType) -> None:
    at = torch.tensor([[0, 0], [0, 10], [0, 5], [10, 5], [3, 4]], dtype=torch.int32)
    assert code.move(at, torch.tensor([0, 1, 2, 3, 0])).tolist() == [[0, 0], [0, 10], [0, 5], [10, 5], [3, 3]]
    assert [code.move(at[4:], torch.tensor([a]))[0].tolist() for a in range(4)] == [[3, 3], [3, 5], [2, 4], [4, 4]]


def test_any_hit_moves_every_generator(code: ModuleType) -> None:
    food, rng = torch.tensor([[1, 2], [3, 4]], dtype=torch.int32), torch.tensor([5, 6])
    same_food, same_rng = code.respawn(food, rng, torch.tensor([False, False]))
    assert torch.equal(same_food, food) and torch.equal(same_rng, rng)
    new_food, new_rng = code.respawn(food, rng, torch.tensor([False, True]))
    first = [(6364136223846793005 * r + 1) % 2**63 for r in (5, 6)]
    second = [(6364136223846793005 * r + 1) % 2**63 for r in first]
    assert new_rng.tolist() == second and new_food.tolist() == [[1, 2], [first[1] % 11, second[1] % 11]]


def test_one_environment_in_plain_python(loaded: LoadedProblem) -> None:
    """The contract written out once more, in scalars."""
    tensors = drawn(loaded, "small-1x48")
    w = {name: t.double() for name, t in tensors.weights.items()}
    (ax, ay), (fx, fy) = tensors.inputs["agent"][0].tolist(), tensors.inputs["food"][0].tolist()
    r = int(tensors.inputs["rng"][0])
    s = [torch.zeros(256, dtype=torch.float64) for _ in range(3)]
    trace = []
    for _ in range(48):
        obs = torch.tensor([(fx - ax) / 11, (fy - ay) / 11, ax / 10, ay / 10], dtype=torch.float64)
        h = w["w_enc"] @ obs + w["b_enc"]
        for l in range(3):
            z = w["w_gru"][l] @ h
            s[l] = s[l] + z[256:512].sigmoid() * (z[:256].tanh() - s[l])
            p = z[512:].sigmoid()
            h = p * s[l] + (1 - p) * h
        logits = w["w_a"] @ h + w["b_a"]
        trace.append(int(logits.argmax()))
        ax, ay = [(ax, max(ay - 1, 0)), (ax, min(ay + 1, 10)), (max(ax - 1, 0), ay), (min(ax + 1, 10), ay)][trace[-1]]
        if hit := (ax, ay) == (fx, fy):
            r = (6364136223846793005 * r + 1) % 2**63
            fx = r % 11
            r = (6364136223846793005 * r + 1) % 2**63
            fy = r % 11
    result = expect(loaded, tensors)
    assert result["actions"].flatten().tolist() == trace
    assert result["agent"].tolist() == [[ax, ay]] and result["food"].tolist() == [[fx, fy]] and result["rng"][0] == r
    assert result["rewards"].tolist() == [float(hit)]
    torch.testing.assert_close(result["logits"][0].double(), logits, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_the_distribution_promises(loaded: LoadedProblem, seed: int) -> None:
    tensors = drawn(loaded, "small-256x32", seed=seed)
    actions = answer(loaded, tensors)["actions"].long()
    shares = actions.flatten().bincount(minlength=4) / actions.numel()
    changed = (actions[1:] != actions[:-1]).float().mean()
    assert shares.min() >= LEAST_SHARE and shares.max() <= 0.6
    assert 0.3 <= changed <= 0.9


def test_gates_leave_their_linear_range(loaded: LoadedProblem, code: ModuleType) -> None:
    tensors = drawn(loaded, "small-256x32")
    w = {name: t.double() for name, t in tensors.weights.items()}
    h = code.observe(tensors.inputs["agent"], tensors.inputs["food"]) @ w["w_enc"].t() + w["b_enc"]
    assert 2.5 < (h @ w["w_gru"][0].t()).square().mean().sqrt() < 3.7


def test_food_is_found_and_some_steps_have_no_hit(loaded: LoadedProblem, code: ModuleType) -> None:
    """Means per environment in 32 steps run from 0.2 to 1.3, by the weights."""
    eaten = []
    for seed in SEEDS:
        tensors = drawn(loaded, "small-7x64", seed=seed)
        trace = answer(loaded, tensors)["actions"]
        agents, foods, _ = code._replay({**tensors.inputs, "actions": trace})
        hits = (code.move(agents.flatten(0, 1), trace.flatten()) == foods.flatten(0, 1)).all(-1).view_as(trace)
        eaten.append(float(hits.float().sum(0).mean()) / 2)
        assert 0 < int(hits.any(1).sum()) < len(trace)
    assert 0.2 < sum(eaten) / len(eaten) < 1.5


def test_cases_are_what_they_say(loaded: LoadedProblem) -> None:
    inputs = {case: drawn(loaded, "small-65x16", case).inputs for case in loaded.reference.cases}
    assert {tuple(at) for at in inputs["corners"]["agent"].tolist()} == {(0, 0), (0, 10), (10, 0), (10, 10)}
    assert torch.equal(inputs["food_under_agent"]["agent"], inputs["food_under_agent"]["food"])
    assert (inputs["large_rng"]["rng"] - 2**62).abs().max() <= 2**16
    assert inputs["nominal"]["rng"].max() < 2**62 and inputs["nominal"]["rng"].min() >= 0
    plain, doubled, empty = (
        drawn(loaded, "small-65x16", case).weights["w_gru"] for case in ("nominal", "saturated_gates", "zero_gru")
    )
    assert torch.equal(doubled, 2 * plain) and not empty.any()


def test_pipelines_leave_their_arguments_alone(loaded: LoadedProblem) -> None:
    tensors = drawn(loaded, "small-7x64")
    before = tensors.clone()
    compare(loaded, tensors, expect(loaded, tensors), answer(loaded, tensors))
    assert all(torch.equal(tensors.inputs[name], t) for name, t in before.inputs.items())
    assert all(torch.equal(tensors.weights[name], t) for name, t in before.weights.items())


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_legal_pipelines_pass_with_room(loaded: LoadedProblem, seed: int) -> None:
    for case in ("nominal", "saturated_gates"):
        tensors = drawn(loaded, "small-65x16", case, seed)
        for name in loaded.problem.legal:
            result = compare(loaded, tensors, expect(loaded, tensors), answer(loaded, tensors, name))
            assert result.passed and result.usage <= 0.95, (case, name, result)


CHEAP = ("small-65x16", "small-7x64", "small-1x48")


@pytest.mark.slow
def test_mutants_are_rejected_on_the_cheap_shapes(loaded: LoadedProblem) -> None:
    survivors = []
    known: dict[tuple[str, str], tuple[CaseTensors, dict[str, Tensor]]] = {}
    for mutant in loaded.problem.mutants:
        cases = [mutant.case or "nominal", *(c for c in loaded.reference.cases if c != mutant.case)]
        for place in ((key, case) for case in cases for key in CHEAP):
            if place not in known:
                tensors = drawn(loaded, *place)
                known[place] = tensors, expect(loaded, tensors)
            tensors, expected = known[place]
            if not compare(loaded, tensors, expected, answer(loaded, tensors, mutant.name)).passed:
                break
        else:
            survivors.append(mutant.name)
    assert not survivors


@pytest.mark.parametrize("name", ["bf16_weights", "bf16_state", "bf16_operands"])
def test_lower_precision_is_rejected_where_decisions_are_many(loaded: LoadedProblem, name: str) -> None:
    tensors = drawn(loaded, "small-128x64", "saturated_gates")
    assert compare(loaded, tensors, expect(loaded, tensors), answer(loaded, tensors, name)).usage > 1.3


def test_a_false_reward_and_an_illegal_action_are_exact(loaded: LoadedProblem) -> None:
    tensors = drawn(loaded, "small-7x64")
    for output, value in (("rewards", 0.5), ("actions", 4), ("actions", 255), ("rng", 3), ("food", 11), ("agent", -1)):
        actual = answer(loaded, tensors)
        actual[output].flatten()[-1] = value
        result = compare(loaded, tensors, expect(loaded, tensors), actual)
        assert result.usage == math.inf and output in {m.output for m in result.mismatches}, output


def test_attribution(loaded: LoadedProblem) -> None:
    tensors = drawn(loaded, "small-7x64")
    expected = expect(loaded, tensors)
    for name in ("no_highway", "lcg_every_step"):
        assert getattr(attribute(loaded, tensors, expected, answer(loaded, tensors, name)), "mutant", None) == name
    assert attribute(loaded, tensors, expected, answer(loaded, tensors)) is None


def test_cost_is_the_specification_s(loaded: LoadedProblem) -> None:
    """Floors in µs at 989.5 TFLOP/s: the rollout is bound by operations."""
    floors = []
    for shape in loaded.problem.tier(Tier.FULL):
        flops = evaluate(loaded.problem.cost.flops, shape.values) / 989.5e6
        assert flops > evaluate(loaded.problem.cost.bytes, shape.values) / 4.8e6
        floors.append(round(flops))
    assert floors == [157, 628, 1255, 627] or floors == [157, 627, 1255, 627]
