"""ops/sonic_moe: the oracle, the distributions, the offsets, and which mutant each named case rejects."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor

from kernelassay.decks import CaseTensors, LoadedProblem, compare, draw, expect, load
from kernelassay.records import Shape, Tier, evaluate

SMALL = ("small-96x128x64x8x2", "small-257x256x48x16x1", "small-24x1024x48x4x4")


@pytest.fixture(scope="module")
def loaded() -> LoadedProblem:
    return load("ops/sonic_moe")


@pytest.fixture(scope="module")
def code(loaded: LoadedProblem) -> ModuleType:
    return sys.modules[loaded.reference.model.__module__]


def drawn(loaded: LoadedProblem, case: str, key: str = SMALL[1], seed: int = 1) -> CaseTensors:
    return draw(loaded, loaded.problem.shape(key), case, seed, weights_seed=2)


def counts(tensors: CaseTensors) -> Tensor:
    return tensors.inputs["expert_offsets"].diff()


def row_by_row(tensors: CaseTensors) -> Tensor:
    """Every row with a matrix of its own, gathered by the expert that the offsets give it; no loop over experts."""
    expert = torch.repeat_interleave(torch.arange(tensors.shape.values["E"]), counts(tensors))
    x = tensors.inputs["hidden_states"].double()[:, None]
    gate, up = (torch.bmm(x, tensors.weights[name][expert].double())[:, 0] for name in ("W_gate", "W_up"))
    return gate * up / (1 + (-gate).exp())


@pytest.mark.parametrize("key", SMALL)
def test_the_oracle_row_by_row(loaded: LoadedProblem, key: str) -> None:
    for case in ("nominal", "ragged", "one_expert", "large_x", "row_ramp", "onehot"):
        tensors = drawn(loaded, case, key)
        answer, other = expect(loaded, tensors)["out"], row_by_row(tensors)
        torch.testing.assert_close(answer, other, rtol=1e-10, atol=1e-12 * float(other.square().mean().sqrt()))


def test_the_oracle_in_blocks_of_rows(loaded: LoadedProblem, code: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = drawn(loaded, "ragged")
    whole = expect(loaded, tensors)["out"]
    monkeypatch.setattr(code, "ROW_BLOCK", 7)
    torch.testing.assert_close(expect(loaded, tensors)["out"], whole, rtol=1e-12, atol=1e-12)


def test_gates_are_where_silu_bends(loaded: LoadedProblem) -> None:
    for key in SMALL:
        tensors = drawn(loaded, "nominal", key)
        gates = tensors.inputs["hidden_states"].float() @ tensors.weights["W_gate"].float()
        assert 1.2 < gates.std() < 1.55


def test_one_weight_in_512_is_heavy(loaded: LoadedProblem) -> None:
    for name in ("W_gate", "W_up"):
        w = drawn(loaded, "nominal", SMALL[0]).weights[name].float() * 128**0.5 / 1.28
        light = w.abs() < 5
        # Of the heavy ones (standard deviation 8) 53 % lie beyond 5, of the others 6 in ten million.
        assert 0.53 / 512 * 0.7 < 1 - light.float().mean() < 0.53 / 512 * 1.3
        assert abs(w[light].std() - 1) < 0.03 and 15 < w.abs().max() < 64


def test_weights_depend_on_their_sizes_only_and_not_on_threads(code: ModuleType) -> None:
    def make(rows: int) -> dict[str, Tensor]:
        shape = {"T_total": rows, "H": 64, "I": 32, "E": 6, "K": 2}
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
    matrices = [matrix for stack in first.values() for matrix in stack]
    assert len({float(matrix.float().sum()) for matrix in matrices}) == 12


@pytest.mark.parametrize("seed", range(8))
def test_ragged_has_an_empty_and_a_single_row_expert(loaded: LoadedProblem, seed: int) -> None:
    for key in SMALL:
        tensors = drawn(loaded, "ragged", key, seed)
        rows = counts(tensors)
        offsets = tensors.inputs["expert_offsets"]
        assert offsets[0] == 0 and offsets[-1] == len(tensors.inputs["hidden_states"]) and (rows >= 0).all()
        assert int((rows == 0).sum()) >= len(rows) // 4 and int((rows == 1).sum()) >= 1
        assert rows.max() > 1.5 * rows.float().mean()


def test_ragged_offsets_at_full_size_are_zipf_s(loaded: LoadedProblem) -> None:
    shape = loaded.problem.shape("full-32768x4096x1536x128x8").values
    rows = shape["T_total"] * shape["K"]
    inputs = {"hidden_states": torch.empty(rows, 0), "expert_offsets": torch.zeros(129, dtype=torch.int32)}
    loaded.reference.cases["ragged"]({}, inputs, loaded.problem.shapes[0], torch.Generator().manual_seed(1))
    sizes = inputs["expert_offsets"].diff().sort(descending=True).values.double()
    assert int((sizes == 0).sum()) == 32 and int(sizes[95]) == 1 and int(sizes.sum()) == rows
    assert float(sizes[0] / sizes[9]) == pytest.approx(10**1.2, rel=0.1)


def test_cases_are_what_they_say(loaded: LoadedProblem) -> None:
    tensors = {case: drawn(loaded, case) for case in loaded.reference.cases}
    x = {case: drawn.inputs["hidden_states"].double() for case, drawn in tensors.items()}
    nominal = counts(tensors["nominal"])
    assert nominal.max() - nominal.min() == 1
    assert sorted(counts(tensors["one_expert"]).tolist()) == [0] * 15 + [257]
    ragged = [case for case in x if case not in ("nominal", "one_expert")]
    assert all((counts(tensors[case]) == 0).sum() >= 4 for case in ragged)
    assert torch.equal(x["tiny_x"], x["nominal"] * 2**-10) and torch.equal(x["large_x"], x["nominal"] * 8)
    assert x["row_ramp"][-1].norm() / x["row_ramp"][0].norm() == pytest.approx(torch.e**4, rel=0.3)
    assert torch.equal(x["tail_cols"][:, 224:], x["nominal"][:, 224:]) and x["tail_cols"][:, :224].std() < 0.01
    hot = x["onehot"] != 0
    assert (hot.sum(1) == 1).all() and hot[:, 0].any() and hot[:, 255].any()
    assert set(x["onehot"].unique().tolist()) == {-16.0, 0.0, 16.0}
    wide = x["outlier"].mean(0).topk(2).values
    assert wide[0] == pytest.approx(20, abs=0.6) and wide[1] < 1
    assert int((x["zero_rows"] == 0).all(1).sum()) == 64


def test_one_seed_one_case_and_another_seed_another(loaded: LoadedProblem) -> None:
    for case in loaded.reference.cases:
        first, again, other = drawn(loaded, case), drawn(loaded, case), drawn(loaded, case, seed=9)
        assert all(torch.equal(first.inputs[name], again.inputs[name]) for name in first.inputs)
        assert any(not torch.equal(first.inputs[name], other.inputs[name]) for name in first.inputs)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])
def test_legal_pipelines_pass_with_room(loaded: LoadedProblem, seed: int) -> None:
    worst = 0.0
    for shape in loaded.problem.tier(Tier.SMALL):
        for case in loaded.reference.cases:
            tensors = draw(loaded, shape, case, 50 + seed, 60 + seed)
            expected = expect(loaded, tensors)
            for pipeline in loaded.reference.legal.values():
                result = compare(loaded, tensors, expected, pipeline(tensors.weights, tensors.inputs, shape))
                worst = max(worst, result.usage)
    assert 0.4 < worst < 0.75


@pytest.mark.parametrize("seed", [1, 2])
def test_named_cases_reject_their_mutants(loaded: LoadedProblem, seed: int) -> None:
    survivors = []
    for mutant in loaded.problem.mutants:
        assert mutant.case is not None
        pipeline = loaded.reference.mutants[mutant.name]
        usages = []
        for shape in loaded.problem.tier(Tier.SMALL):
            tensors = draw(loaded, shape, mutant.case, seed, seed)
            answer = pipeline(tensors.weights, tensors.inputs, shape)
            usages.append(compare(loaded, tensors, expect(loaded, tensors), answer).usage)
        if max(usages) < (1.0 if mutant.note == "thin" else 3.0):
            survivors.append((mutant.name, max(usages)))
    assert not survivors


def test_a_boundary_off_by_one_row_is_seen(loaded: LoadedProblem) -> None:
    """One of 257 rows is computed with the neighbour's weights."""
    tensors = drawn(loaded, "nominal")
    shifted = {name: tensor.clone() for name, tensor in tensors.inputs.items()}
    shifted["expert_offsets"][7] += 1
    answer = loaded.reference.legal["fp32"](tensors.weights, shifted, tensors.shape)
    result = compare(loaded, tensors, expect(loaded, tensors), answer)
    assert result.usage > 20 and result.where.startswith(f"row {int(tensors.inputs['expert_offsets'][7])}")


def test_stale_offsets_are_seen_in_every_ragged_case(loaded: LoadedProblem) -> None:
    """What a tile schedule kept from an earlier call computes."""
    for case in loaded.reference.cases:
        if case in ("nominal", "one_expert"):
            continue
        tensors, before = drawn(loaded, case), drawn(loaded, case, seed=8)
        stale = {**tensors.inputs, "expert_offsets": before.inputs["expert_offsets"]}
        answer = loaded.reference.legal["fp32"](tensors.weights, stale, tensors.shape)
        assert compare(loaded, tensors, expect(loaded, tensors), answer).usage > 20, case


def test_shapes_and_floors_are_the_specification_s(loaded: LoadedProblem) -> None:
    """Floors in µs at 989.5 TFLOP/s and 4.8 TB/s."""
    cost = loaded.problem.cost
    full = loaded.problem.tier(Tier.FULL)
    work = [evaluate(cost.flops, shape.values) / 989.5e6 for shape in full]
    moved = [evaluate(cost.bytes, shape.values) / 4.8e6 for shape in full]
    assert [round(floor, 1) for floor in work] == [6667.1, 138.9, 4444.7]
    assert all(a > b for a, b in zip(work, moved, strict=True))

    def sizes(shape: Shape) -> tuple[int, int, int, int]:
        v = shape.values
        return v["T_total"] * v["K"], v["H"], v["I"], v["E"]

    small = [sizes(shape) for shape in loaded.problem.tier(Tier.SMALL)]
    assert small == [(192, 128, 64, 8), (257, 256, 48, 16), (96, 1024, 48, 4)]


def test_prompt_keeps_the_secrets(loaded: LoadedProblem) -> None:
    assert all(f" {size} |" in loaded.prompt for size in (32768, 4096, 16384, 1536))
    for mutant in loaded.problem.mutants:
        assert mutant.name not in loaded.prompt or mutant.name in ("zeros", "sigmoid")
