"""Comparator `selection`: every legal answer passes, every other fails, nothing crashes it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernelassay.decks import CaseTensors, Comparison, DeckError, LoadedProblem, attribute, compare, expect, load
from kernelassay.records import Shape, Tier

Toy = Callable[..., Path]
QUICK = settings(max_examples=40, deadline=None)
ORDINARY = (0.0, -0.0, 1.0, -1.0, 1.5, 2.0**-149, -(2.0**-149), 2.0**-126, 3e38, -3e38, math.inf, -math.inf)


@cache
def topk() -> LoadedProblem:
    return load("ops/topk")


def case_of(x: Tensor, k: int) -> CaseTensors:
    batch, n = x.shape
    shape = Shape(key="test", tier=Tier.SMALL, values={"batch": batch, "n": n, "k": k})
    return CaseTensors(shape=shape, case="nominal", seed=0, weights_seed=0, weights={}, inputs={"x": x})


def judge(case: CaseTensors, actual: dict[str, Tensor]) -> Comparison:
    return compare(topk(), case, expect(topk(), case), actual)


@st.composite
def cases(draw: st.DrawFn) -> CaseTensors:
    """Rows full of ties, zeros of both signs, denormals and infinities."""
    batch, n = draw(st.integers(1, 4)), draw(st.integers(1, 24))
    k = draw(st.integers(1, n))
    rows = st.lists(st.sampled_from(ORDINARY) | st.floats(width=32, allow_nan=False), min_size=n, max_size=n)
    x = torch.tensor(draw(st.lists(rows, min_size=batch, max_size=batch)), dtype=torch.float32)
    return case_of(x, k)


def shuffled(case: CaseTensors, seed: int) -> dict[str, Tensor]:
    """The k largest with a random choice and a random order among equal values."""
    x, k = case.inputs["x"], case.shape.values["k"]
    generator = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(x.shape[1], generator=generator) for _ in x])
    picked = x.gather(1, order).argsort(dim=1, descending=True, stable=True)[:, :k]
    indices = order.gather(1, picked)
    return {"values": x.gather(1, indices), "indices": indices}


def rules(result: Comparison) -> set[str]:
    assert not result.passed
    assert result.usage == math.inf
    return {mismatch.rule for mismatch in result.mismatches}


@QUICK
@given(cases(), st.integers(0, 2**32))
def test_any_order_among_equals_passes(case: CaseTensors, seed: int) -> None:
    result = judge(case, shuffled(case, seed))
    assert result.passed, result
    assert (result.usage, result.where) == (0.0, "")


@QUICK
@given(cases(), st.data())
def test_any_changed_value_fails(case: CaseTensors, data: st.DataObject) -> None:
    actual = shuffled(case, 1)
    values = actual["values"]
    row = data.draw(st.integers(0, values.shape[0] - 1))
    column = data.draw(st.integers(0, values.shape[1] - 1))
    bits = values.view(torch.int32)
    bits[row, column] ^= data.draw(st.sampled_from([1, 2, 1 << 12, 1 << 23, 1 << 30, -(1 << 31)]))
    result = judge(case, actual)
    assert rules(result) <= {"selection.values", "selection.indices_gather"}
    assert "selection.indices_gather" in rules(result)  # a sign flip of 0 leaves the value, not the bits
    assert result.mismatches[0].index == (row, column)


@QUICK
@given(cases(), st.data())
def test_any_changed_index_fails(case: CaseTensors, data: st.DataObject) -> None:
    """Unless it is a legal one: an unused position of bitwise the same value."""
    actual = shuffled(case, 1)
    x, indices, values = case.inputs["x"], actual["indices"], actual["values"]
    row = data.draw(st.integers(0, indices.shape[0] - 1))
    column = data.draw(st.integers(0, indices.shape[1] - 1))
    new = data.draw(st.integers(-3, x.shape[1] + 3) | st.sampled_from([-(2**63), 2**63 - 1, 2**32]))
    old = int(indices[row, column])
    taken = set(indices[row].tolist())
    indices[row, column] = new
    legal = new == old or (
        0 <= new < x.shape[1]
        and new not in taken
        and x.view(torch.int32)[row, new] == values.view(torch.int32)[row, column]
    )
    assert judge(case, actual).passed == legal


def test_minus_zero_equals_plus_zero_but_must_be_the_one_that_is_there() -> None:
    case = case_of(torch.tensor([[-1.0, -0.0, 0.0]]), 2)
    for order in ([1, 2], [2, 1]):
        indices = torch.tensor([order])
        assert judge(case, {"values": case.inputs["x"].gather(1, indices), "indices": indices}).passed
    swapped = {"values": torch.tensor([[0.0, -0.0]]), "indices": torch.tensor([[1, 2]])}
    assert rules(judge(case, swapped)) == {"selection.indices_gather"}


def test_denormals_count_even_when_the_processor_flushes_them() -> None:
    case = case_of(torch.tensor([[2.0**-149, 2.0**-148, 0.0]]), 1)
    expected = expect(topk(), case)
    assert torch.set_flush_denormal(True)
    try:
        wrong = compare(topk(), case, expected, {"values": torch.tensor([[0.0]]), "indices": torch.tensor([[2]])})
    finally:
        torch.set_flush_denormal(False)
    assert rules(wrong) == {"selection.values"}


def test_each_rule_is_named_and_located() -> None:
    x = torch.arange(32, dtype=torch.float32).reshape(2, 16)
    case = case_of(x, 4)
    right = expect(topk(), case)

    def broken(output: str, row: int, column: int, value: float) -> Comparison:
        actual = {name: tensor.clone() for name, tensor in right.items()}
        actual[output][row, column] = value
        return judge(case, actual)

    value = broken("values", 1, 2, 7.5)
    assert rules(value) == {"selection.values", "selection.indices_gather"}
    first = value.mismatches[0]
    assert (first.rule, first.output, first.index) == ("selection.values", "values", (1, 2))
    assert (first.expected, first.actual) == ("29", "7.5")
    assert "row 1 of 2, column 2 of 4" in value.where

    outside = broken("indices", 0, 3, 16)
    assert rules(outside) == {"selection.indices_range"}
    assert (outside.mismatches[0].expected, outside.mismatches[0].actual) == ("0 to 15", "16")

    again = broken("indices", 0, 3, 15)
    assert rules(again) == {"selection.indices_gather", "selection.indices_distinct"}
    assert {m.index for m in again.mismatches} == {(0, 3)}

    lost = broken("values", 0, 0, math.nan)
    assert lost.mismatches[0].actual == "nan"


@pytest.mark.parametrize(
    "actual",
    [
        {},
        {"values": torch.zeros(2, 4)},
        {"values": torch.zeros(2, 4), "indices": torch.zeros(2, 3, dtype=torch.int64)},
        {"values": torch.zeros(2, 4), "indices": torch.zeros(2, 4, dtype=torch.int32)},
        {"values": torch.zeros(2, 4), "indices": torch.zeros(2, 4)},
        {"values": torch.zeros(2, 4, dtype=torch.float64), "indices": torch.zeros(2, 4, dtype=torch.int64)},
        {"values": torch.zeros(8), "indices": torch.zeros(8, dtype=torch.int64)},
        {"values": torch.zeros(()), "indices": torch.zeros((), dtype=torch.int64)},
        {"values": torch.zeros(0, 4), "indices": torch.zeros(0, 4, dtype=torch.int64)},
        {"values": torch.full((2, 4), math.nan), "indices": torch.zeros(2, 4, dtype=torch.int64)},
        {"values": torch.full((2, 4), math.inf), "indices": torch.full((2, 4), -(2**63))},
        {"values": torch.zeros(2, 4), "indices": torch.full((2, 4), 2**63 - 1)},
        {"values": torch.zeros(4, 2).T, "indices": torch.zeros(4, 2, dtype=torch.int64).T},
        {"values": torch.zeros(2, 4), "indices": torch.zeros(2, 4, dtype=torch.complex64)},
        {"values": torch.zeros(2, 4, dtype=torch.bool), "indices": torch.zeros(2, 4, dtype=torch.bool)},
        {"values": None, "indices": 3},
        {
            "values": torch.zeros(2, 4),
            "indices": torch.zeros(2, 4, dtype=torch.int64),
            "verdict": torch.ones(1),
        },
    ],
)
def test_hostile_results_fail_and_do_not_crash(actual: dict[str, Tensor]) -> None:
    case = case_of(torch.randn(2, 16, generator=torch.Generator().manual_seed(0)), 4)
    result = judge(case, actual)
    assert rules(result)
    attribute(topk(), case, expect(topk(), case), actual)


def test_strided_results_are_read_by_value() -> None:
    case = case_of(torch.randn(3, 16, generator=torch.Generator().manual_seed(0)), 4)
    right = expect(topk(), case)
    assert judge(case, {name: tensor.T.contiguous().T for name, tensor in right.items()}).passed


def test_a_problem_that_is_no_selection_is_a_broken_deck(toy: Toy) -> None:
    toy(
        yaml=[
            ("comparator: normalised", "comparator: selection"),
            ("tolerance:", ""),
            ("  y: {rms: 0.006, group: 0.015, element: 0.04}", ""),
        ]
    )
    loaded = load("toy/scale")
    case = replace(case_of(torch.zeros(8, 32), 1), shape=loaded.problem.shapes[0])
    with pytest.raises(DeckError, match="'selection' needs"):
        compare(loaded, case, {"y": torch.zeros(8, 16)}, {"y": torch.zeros(8, 16)})


# --- attribution ---


@pytest.mark.parametrize("name", [m.name for m in topk().problem.mutants])
def test_each_mutant_is_attributed_to_itself(name: str) -> None:
    """On the first small case that rejects it, up to mutants that answer the same there."""
    from kernelassay.decks import draw

    loaded = topk()
    spec = next(m for m in loaded.problem.mutants if m.name == name)
    order = [spec.case or "nominal", *loaded.reference.cases]
    for case_name in order:
        for shape in loaded.problem.tier(Tier.SMALL):
            case = draw(loaded, shape, case_name, 5, 0)
            expected = expect(loaded, case)
            actual = loaded.reference.mutants[name](case.weights, case.inputs, shape)
            if not compare(loaded, case, expected, actual).passed:
                found = getattr(attribute(loaded, case, expected, actual), "mutant", None)
                assert found is not None
                assert name in found.split(" or ")
                return
    raise AssertionError(f"no case rejects {name}")


def test_a_right_answer_and_an_error_of_its_own_are_not_attributed() -> None:
    case = case_of(torch.randn(2, 64, generator=torch.Generator().manual_seed(0)), 4)
    right = expect(topk(), case)
    assert attribute(topk(), case, right, right) is None
    odd = {"values": right["values"] + 1.0, "indices": right["indices"]}
    assert attribute(topk(), case, right, odd) is None


def test_only_the_wrong_rows_decide() -> None:
    """A submission that is a mutant in one row and right in the others is still that mutant."""
    case = case_of(torch.randn(4, 64, generator=torch.Generator().manual_seed(0)), 8)
    right = expect(topk(), case)
    mutant = topk().reference.mutants["ascending"]({}, case.inputs, case.shape)
    mixed = {name: torch.cat((right[name][:3], mutant[name][3:])) for name in right}
    assert getattr(attribute(topk(), case, right, mixed), "mutant", None) == "ascending"
