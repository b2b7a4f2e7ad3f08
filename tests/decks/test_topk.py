"""Facts of `ops/topk`: the page's shapes, cases and mutants, and what each case is made of."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from kernelassay.decks import LintReport, LoadedProblem, compare, draw, expect, lint, load
from kernelassay.records import Shape, Tier, evaluate

# Cases of tier small that reject each mutant: what the specification counts, and how far another draw may lie from it.
# 0 where the count follows from the case's construction alone.
PAGE = {
    "smallest": 64,
    "ascending": 51,
    "adjacent_pair_unsorted": 47,
    "kth_is_next": 60,
    "low_2_bits_dropped": 10,
    "denormals_flushed": 5,
    "minus_inf_missing": 5,
    "at_most_k_minus_1_per_slice": 16,
    "one_index_for_ties": 12,
    "int32_indices": 70,
}
SILENT_IN_NOMINAL = (
    "low_2_bits_dropped",
    "denormals_flushed",
    "minus_inf_missing",
    "at_most_quarter_per_lane",
    "at_most_k_minus_1_per_slice",
    "one_index_for_ties",
)


@cache
def topk() -> LoadedProblem:
    return load("ops/topk")


@cache
def report() -> LintReport:
    return lint(topk(), full=True)


def x_of(case: str, shape: Shape, seed: int = 1) -> Tensor:
    return draw(topk(), shape, case, seed, 0).inputs["x"]


small = pytest.mark.parametrize("shape", topk().problem.tier(Tier.SMALL), ids=lambda shape: shape.key)


def test_shapes_are_the_pages() -> None:
    def sizes(tier: Tier) -> list[tuple[int, ...]]:
        return [tuple(shape.values.values()) for shape in topk().problem.tier(tier)]

    assert sizes(Tier.FULL) == [(1, 131072, 64), (64, 8192, 8), (32, 16384, 32), (16, 12000, 16), (128, 4096, 1)]
    assert sizes(Tier.FULL_PLUS) == [(3, 1001, 7)]
    assert sizes(Tier.SMALL) == [(1, 4096, 64), (8, 1024, 8), (4, 2048, 32), (4, 1500, 16), (16, 512, 1)]
    assert all(shape.launch_bound for shape in topk().problem.shapes)


def test_floors_are_the_pages() -> None:
    """Bytes over 4.8 TB/s, in µs, as the specification prints them."""
    cost = topk().problem.cost
    full = topk().problem.tier(Tier.FULL)
    floors = [round(evaluate(cost.bytes, shape.values) / 4.8e6, 2) for shape in full]
    assert floors == [0.11, 0.44, 0.44, 0.16, 0.44]
    assert evaluate(cost.flops, full[0].values) == 0


def test_seventy_small_cases_and_every_verified_mutant() -> None:
    problem = topk().problem
    assert len(problem.cases) * len(problem.tier(Tier.SMALL)) == 70
    assert len(problem.mutants) == 23


def test_prompt_states_the_contract_and_keeps_the_secrets() -> None:
    prompt = topk().prompt
    for size in ("131072", "12000", "1001", "`_version`", "same\n  object", "prepare()", "Addresses may rotate"):
        assert size in prompt
    for mutant in topk().problem.mutants:
        assert mutant.name not in prompt
    assert "seed" not in prompt


@pytest.mark.parametrize("mutant", topk().problem.mutants, ids=lambda mutant: mutant.name)
def test_counts(mutant: object) -> None:
    spec = next(m for m in topk().problem.mutants if m is mutant)
    result = next(r for r in report().mutants.results if r.name == spec.name)
    assert result.cases == 70
    assert spec.expect is not None
    # Libraries of mathematics may round exp differently and move a borderline draw.
    slack = 0 if spec.name in PAGE else 3
    assert abs(result.rejecting - spec.expect) <= slack
    if spec.name in PAGE:
        assert result.rejecting == PAGE[spec.name]


def test_full_lint_holds() -> None:
    assert report().ok
    assert report().errors == ()


@small
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_silent_mutants_pass_the_nominal_case(shape: Shape, seed: int) -> None:
    case = draw(topk(), shape, "nominal", seed, 0)
    expected = expect(topk(), case)
    for name in SILENT_IN_NOMINAL:
        assert compare(topk(), case, expected, topk().reference.mutants[name]({}, case.inputs, shape)).passed, name


@pytest.mark.parametrize("case", [case.name for case in topk().problem.cases])
def test_no_case_holds_a_nan_and_legal_passes_at_unaligned_rows(case: str) -> None:
    shape = topk().problem.tier(Tier.FULL_PLUS)[0]
    tensors = draw(topk(), shape, case, 4, 0)
    assert not tensors.inputs["x"].isnan().any()
    expected = expect(topk(), tensors)
    for pipeline in topk().reference.legal.values():
        assert compare(topk(), tensors, expected, pipeline({}, tensors.inputs, shape)).passed


def test_random_ties_really_are_another_answer() -> None:
    shape = topk().problem.tier(Tier.SMALL)[1]
    tensors = draw(topk(), shape, "equal", 1, 0)
    answers = [pipeline({}, tensors.inputs, shape)["indices"] for pipeline in topk().reference.legal.values()]
    assert not torch.equal(answers[0], answers[1])


def test_nominal_rows_have_their_own_mean_and_scale() -> None:
    x = x_of("nominal", topk().problem.tier(Tier.SMALL)[-1])
    assert float(x.mean(1).std()) > 1.0
    assert float(x.std(1).max() / x.std(1).min()) > 3.0


@small
def test_clustered(shape: Shape) -> None:
    x, k = x_of("clustered", shape), shape.values["k"]
    flat = x.amin(1, keepdim=True)
    for row, base in zip(x, flat, strict=True):
        spikes = (row > base).nonzero().flatten()
        assert k + 1 <= len(spikes) <= k + 32
        assert int(spikes[-1] - spikes[0]) == len(spikes) - 1
    first = (x[0] > flat[0]).nonzero().flatten() // 256
    assert int(first[0]) == int(first[-1])


@small
def test_strided(shape: Shape) -> None:
    x, k = x_of("strided", shape), shape.values["k"]
    lanes = x.topk(min(4 * k, shape.values["n"] // 32)).indices % 32
    assert bool((lanes == lanes[:, :1]).all())


@small
def test_two_values(shape: Shape) -> None:
    x, k = x_of("two_values", shape), shape.values["k"]
    for row in x:
        low, high = row.unique().tolist()
        assert low < high
        assert 1 <= int((row == high).sum()) <= max(1, k - 1)


@small
def test_orders(shape: Shape) -> None:
    assert bool((x_of("sorted_up", shape).diff(dim=1) >= 0).all())
    assert bool((x_of("sorted_down", shape).diff(dim=1) <= 0).all())
    assert bool((x_of("equal", shape).diff(dim=1) == 0).all())
    assert bool((x_of("all_negative", shape) < 0).all())
    n, k = shape.values["n"], shape.values["k"]
    assert bool((x_of("tail", shape).topk(k).indices >= n - k).all())


@small
def test_adjacent_floats(shape: Shape) -> None:
    bits = x_of("adjacent_floats", shape).view(torch.int32).sort(dim=1).values
    assert bool((bits.diff(dim=1) == 1).all())
    assert bool(x_of("adjacent_floats", shape).isfinite().all())


@small
def test_denormal(shape: Shape) -> None:
    x = x_of("denormal", shape)
    assert bool(((x.view(torch.int32) & 0x7F800000) == 0).all())
    assert bool((x.view(torch.int32) & 0x7FFFFFFF != 0).all())
    assert bool((x > 0).any() and (x < 0).any())


@small
def test_infinities(shape: Shape) -> None:
    x = x_of("inf", shape)
    empty = (x == -torch.inf).all(1)
    assert int(empty.sum()) == 1
    assert int((x == torch.inf).sum()) == (1 if len(x) > 1 else 0)
    others = (x[~empty] == -torch.inf).double().mean(1)
    assert bool(((others > 0.13) & (others < 0.15)).all())


@small
def test_magnitudes(shape: Shape) -> None:
    x = x_of("nominal", shape)
    assert torch.equal(x_of("1e30", shape), x * 1e30)
    assert torch.equal(x_of("1e-30", shape), x * 1e-30)
    assert bool(x_of("1e30", shape).isfinite().all())
