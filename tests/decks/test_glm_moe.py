"""cuda/glm_moe: the oracle, the routing, the distributions, and which mutant each named case rejects."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor

from kernelassay.decks import CaseTensors, LoadedProblem, compare, draw, expect, load
from kernelassay.records import Tier, evaluate

SMALL = ("small-64x16x4x128x96", "small-61x32x8x256x64", "small-1x16x4x256x96", "small-130x12x3x192x128")
THIN = {"int8_w_per_row"}
"""Rejected by less than a factor of 3 on some draws."""


@pytest.fixture(scope="module")
def loaded() -> LoadedProblem:
    return load("cuda/glm_moe")


@pytest.fixture(scope="module")
def code(loaded: LoadedProblem) -> ModuleType:
    return sys.modules[loaded.reference.model.__module__]


def drawn(loaded: LoadedProblem, case: str, key: str = SMALL[0], seed: int = 1) -> CaseTensors:
    return draw(loaded, loaded.problem.shape(key), case, seed, weights_seed=2)


def dense(tensors: CaseTensors) -> Tensor:
    """Every expert on every token, weighted by a (T, E) matrix that is mostly zero: no gathering at all."""
    weights = {name: tensor.double() for name, tensor in tensors.weights.items()}
    x, wts = tensors.inputs["x"].double(), tensors.inputs["expert_weights"].double()
    i = tensors.shape.values["I"]
    matrix = torch.zeros(len(x), tensors.shape.values["E"], dtype=torch.float64)
    matrix.scatter_(1, tensors.inputs["expert_ids"], wts)

    def every(w1: Tensor, w2: Tensor) -> Tensor:
        """(experts, T, H)."""
        both = torch.einsum("th,eih->eti", x, w1)
        gate, up = both[..., :i], both[..., i:]
        return torch.einsum("eti,ehi->eth", gate * up / (1 + (-gate).exp()), w2)

    routed = torch.einsum("te,eth->th", matrix, every(weights["w1_routed"], weights["w2_routed"]))
    return routed + every(weights["w1_shared"], weights["w2_shared"]).sum(0)


@pytest.mark.parametrize("key", SMALL)
def test_the_oracle_with_every_expert_on_every_token(loaded: LoadedProblem, key: str) -> None:
    for case in ("nominal", "skewed", "same_experts", "unnormalised_weights", "zero_weight", "onehot"):
        tensors = drawn(loaded, case, key)
        answer, other = expect(loaded, tensors)["out"], dense(tensors)
        torch.testing.assert_close(answer, other, rtol=1e-10, atol=1e-12 * float(other.square().mean().sqrt()))


def test_several_shared_experts_are_summed(loaded: LoadedProblem, code: ModuleType) -> None:
    shape = {"T": 5, "E": 6, "top_k": 2, "n_shared": 3, "H": 32, "I": 16}
    weights = code.make_weights(shape, torch.Generator().manual_seed(1))
    inputs = code.make_inputs(shape, torch.Generator().manual_seed(2))
    whole = code.oracle(weights, inputs)["out"]
    idle = {**inputs, "expert_weights": torch.zeros_like(inputs["expert_weights"])}
    alone = []
    for s in range(3):
        part = {n: t[s : s + 1] if n.endswith("shared") else t for n, t in weights.items()}
        alone.append(code.oracle(part, idle)["out"])
    none = {n: t[:0] if n.endswith("shared") else t for n, t in weights.items()}
    torch.testing.assert_close(whole, sum(alone) + code.oracle(none, inputs)["out"], rtol=1e-12, atol=1e-12)
    model = code.Model(**shape)
    model.load_state_dict(weights)
    with torch.no_grad():
        eager = model(*inputs.values()).double()
    assert (eager - whole).norm() < 0.01 * whole.norm()


def test_routes_cover_every_slot_once(code: ModuleType) -> None:
    ids = torch.tensor([[3, 0], [5, 3], [0, 5], [3, 1]])
    found = [(e, tokens.tolist(), slots.tolist()) for e, tokens, slots in code.routes(ids)]
    assert found == [(0, [0, 2], [1, 0]), (1, [3], [1]), (3, [0, 1, 3], [0, 1, 0]), (5, [1, 2], [0, 1])]


def test_gates_are_where_silu_bends(loaded: LoadedProblem) -> None:
    for key in SMALL:
        tensors = drawn(loaded, "nominal", key)
        i = tensors.shape.values["I"]
        gates = tensors.inputs["x"].float() @ tensors.weights["w1_routed"][:, :i].float().transpose(1, 2)
        assert 1.2 < gates.std() < 1.55


def test_one_weight_in_512_is_heavy(loaded: LoadedProblem) -> None:
    for name, w in drawn(loaded, "nominal", SMALL[1]).weights.items():
        unit = w.float() * w.shape[-1] ** 0.5 / 1.28
        light = unit.abs() < 5
        # Of the heavy ones (standard deviation 8) 53 % lie beyond 5, of the others 6 in ten million.
        spread = 0.3 if name.endswith("routed") else 0.7
        assert 0.53 / 512 * (1 - spread) < 1 - light.float().mean() < 0.53 / 512 * (1 + spread), name
        assert abs(unit[light].std() - 1) < 0.03 and 12 < unit.abs().max() < 64, name


def test_weights_depend_on_their_sizes_only_and_not_on_threads(code: ModuleType) -> None:
    def make(tokens: int) -> dict[str, Tensor]:
        shape = {"T": tokens, "E": 5, "top_k": 2, "n_shared": 1, "H": 64, "I": 32}
        weights: dict[str, Tensor] = code.make_weights(shape, torch.Generator().manual_seed(3))
        return weights

    threads = torch.get_num_threads()
    first = make(1)
    try:
        torch.set_num_threads(threads + 3)
        second = make(40)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert len({float(matrix.float().sum()) for stack in first.values() for matrix in stack}) == 12


def test_ids_are_distinct_in_random_order_and_weights_positive(loaded: LoadedProblem) -> None:
    for key in SMALL:
        for case in loaded.reference.cases:
            inputs = drawn(loaded, case, key).inputs
            ids, wts = inputs["expert_ids"], inputs["expert_weights"]
            ordered = ids.sort(1).values
            assert (ordered.diff(dim=1) > 0).all() and ids.min() >= 0, case
            assert ids.max() < loaded.problem.shape(key).values["E"], case
            assert (wts > 0).all() or case in ("zero_weight", "peaked_weights")
            assert (wts >= 0).all() and (wts.sum(1) > 0).all()
    nominal = drawn(loaded, "nominal", SMALL[3]).inputs
    first_is_best = (nominal["expert_weights"].argmax(1) == 0).double().mean()
    assert 0.15 < first_is_best < 0.55
    assert (nominal["expert_weights"].double().sum(1) - 1).abs().max() < 0.01


@pytest.mark.parametrize("seed", range(8))
def test_skewed_has_an_empty_and_a_single_token_expert(loaded: LoadedProblem, seed: int) -> None:
    for key in SMALL:
        tensors = drawn(loaded, "skewed", key, seed)
        tokens = tensors.inputs["expert_ids"].flatten().bincount(minlength=tensors.shape.values["E"])
        assert (tokens == 0).any() and (tokens == 1).any()
        if tensors.shape.values["T"] > 1:
            assert tokens.max() > 2 * tokens.double().mean()


def test_every_expert_that_the_cost_counts_is_used(loaded: LoadedProblem) -> None:
    for key in SMALL:
        for seed in range(5):
            tensors = drawn(loaded, "nominal", key, seed)
            v = tensors.shape.values
            assert len(tensors.inputs["expert_ids"].unique()) == min(v["E"], v["T"] * v["top_k"])


def test_cases_are_what_they_say(loaded: LoadedProblem) -> None:
    inputs = {case: drawn(loaded, case).inputs for case in loaded.reference.cases}
    x = {case: tensors["x"].double() for case, tensors in inputs.items()}
    wts = {case: tensors["expert_weights"].double() for case, tensors in inputs.items()}
    assert len(inputs["same_experts"]["expert_ids"].unique()) == 4
    assert wts["peaked_weights"].amax(1).mean() > 0.75 > 0.6 > wts["nominal"].amax(1).mean()
    assert (wts["peaked_weights"].sum(1) - 1).abs().max() < 0.01
    sums = wts["unnormalised_weights"].sum(1).log()
    assert 0.5 < sums.std() < 0.9
    assert not wts["zero_weight"][:, 0].any() and torch.equal(wts["zero_weight"][:, 1:], wts["nominal"][:, 1:])
    assert torch.equal(x["tiny_x"], x["nominal"] * 2**-9) and torch.equal(x["large_x"], x["nominal"] * 8)
    wide = x["outlier"].mean(0).topk(2).values
    assert wide[0] == pytest.approx(12, abs=0.6) and wide[1] < 1
    assert x["row_ramp"][-1].norm() / x["row_ramp"][0].norm() == pytest.approx(torch.e**3, rel=0.3)
    hot = x["onehot"] != 0
    assert (hot.sum(1) == 1).all() and hot[:, 0].any() and hot[:, 127].any()
    assert drawn(loaded, "onehot", SMALL[2]).inputs["x"].abs().argmax() == 255
    for tensor in inputs["duplicate_tokens"].values():
        assert (tensor[::4] == tensor[0]).all() and not (tensor[1] == tensor[0]).all()


def test_one_seed_one_case_and_another_seed_another(loaded: LoadedProblem) -> None:
    for case in loaded.reference.cases:
        first, again, other = drawn(loaded, case), drawn(loaded, case), drawn(loaded, case, seed=9)
        assert all(torch.equal(first.inputs[name], again.inputs[name]) for name in first.inputs)
        assert any(not torch.equal(first.inputs[name], other.inputs[name]) for name in first.inputs)


def usage(loaded: LoadedProblem, tensors: CaseTensors, *names: str) -> dict[str, float]:
    expected = expect(loaded, tensors)
    pipelines = {**loaded.reference.legal, **loaded.reference.mutants}
    answers = {name: pipelines[name](tensors.weights, tensors.inputs, tensors.shape) for name in names}
    return {name: compare(loaded, tensors, expected, answer).usage for name, answer in answers.items()}


def worst_usage(found: list[dict[str, float]]) -> dict[str, float]:
    return {name: max(part[name] for part in found) for name in found[0]}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])
def test_legal_pipelines_pass_with_room(loaded: LoadedProblem, seed: int) -> None:
    worst = worst_usage(
        [
            usage(loaded, draw(loaded, shape, case, 50 + seed, 60 + seed), *loaded.reference.legal)
            for shape in loaded.problem.tier(Tier.SMALL)
            for case in loaded.reference.cases
        ]
    )
    # A sum in bfloat16 is let through, not promised.
    assert worst.pop("combine_bf16") > 0.4
    assert 0.45 < max(worst.values()) < 0.85


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_named_cases_reject_their_mutants(loaded: LoadedProblem, seed: int) -> None:
    survivors = []
    for case in loaded.reference.cases:
        names = [mutant.name for mutant in loaded.problem.mutants if mutant.case == case]
        shapes = loaded.problem.tier(Tier.SMALL)
        worst = worst_usage([usage(loaded, draw(loaded, shape, case, seed, seed), *names) for shape in shapes])
        survivors += [(name, most) for name, most in worst.items() if most < (1.0 if name in THIN else 3.0)]
    assert all(mutant.case is not None for mutant in loaded.problem.mutants)
    assert not survivors


def test_a_duplicated_token_does_not_fail_an_honest_kernel(loaded: LoadedProblem) -> None:
    """With every second token equal these draws used 0.95 and 1.03: half a column was one error repeated."""
    for seed in (1011, 1014):
        for shape in loaded.problem.tier(Tier.SMALL):
            tensors = draw(loaded, shape, "duplicate_tokens", seed, seed + 1000)
            assert usage(loaded, tensors, "gate_up_h_y_bf16")["gate_up_h_y_bf16"] < 0.8


def test_two_tokens_swapped_are_seen(loaded: LoadedProblem) -> None:
    tensors = drawn(loaded, "nominal", SMALL[3])
    answer = loaded.reference.legal["fp32"](tensors.weights, tensors.inputs, tensors.shape)["out"]
    answer[[64, 65]] = answer[[65, 64]]
    result = compare(loaded, tensors, expect(loaded, tensors), {"out": answer})
    assert result.usage > 20 and result.where.startswith("rows 64–65")


def test_one_contribution_lost_of_390_is_seen(loaded: LoadedProblem) -> None:
    """Two blocks that add to one row without an atomic lose one expert's share of one token."""
    tensors = drawn(loaded, "nominal", SMALL[3])
    lost = {name: tensor.clone() for name, tensor in tensors.inputs.items()}
    lost["expert_weights"][77, int(lost["expert_weights"][77].argmin())] = 0
    answer = loaded.reference.legal["fp32"](tensors.weights, lost, tensors.shape)
    assert compare(loaded, tensors, expect(loaded, tensors), answer).usage > 3


def test_floors_are_the_specification_s(loaded: LoadedProblem) -> None:
    """Floors in µs at 989.5 TFLOP/s and 4.8 TB/s."""
    cost = loaded.problem.cost
    full = loaded.problem.tier(Tier.FULL)
    work = [evaluate(cost.flops, shape.values) / 989.5e6 for shape in full]
    moved = [evaluate(cost.bytes, shape.values) / 4.8e6 for shape in full]
    floors = [max(pair) for pair in zip(work, moved, strict=True)]
    assert floors == pytest.approx([2709, 2709, 94.4, 3750, 2697, 2698], abs=0.5)
    assert floors[2] == pytest.approx(94.4, abs=0.05)
    assert [shape.values["T"] for shape, a, b in zip(full, work, moved, strict=True) if a > b] == [8192]
    sizes = [tuple(shape.values.values()) for shape in loaded.problem.tier(Tier.SMALL)]
    assert sizes == [
        (64, 16, 4, 1, 128, 96),
        (61, 32, 8, 1, 256, 64),
        (1, 16, 4, 1, 256, 96),
        (130, 12, 3, 1, 192, 128),
    ]


def test_prompt_keeps_the_secrets(loaded: LoadedProblem) -> None:
    assert all(f" {tokens} |" in loaded.prompt for tokens in (4096, 4127, 1, 8192, 512, 1000, 7))
    assert not [
        m.name for m in loaded.problem.mutants if m.name in loaded.prompt and m.name not in ("zeros", "capacity")
    ]
