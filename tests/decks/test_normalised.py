"""Comparator `normalised`: the page's formula, by a slow second implementation, and its teeth."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernelassay.decks import CaseTensors, Comparison, LoadedProblem, attribute, compare, draw, expect, load
from kernelassay.decks.comparators import normalised
from kernelassay.records import Problem, Shape, TensorSpec, Tier, Tolerance

Toy = Callable[..., Path]
QUICK = settings(max_examples=40, deadline=None)
RMS, GROUP, ELEMENT = 0.006, 0.015, 0.04
TOLERANCE = Tolerance(rms=RMS, group=GROUP, element=ELEMENT)


def problem(dims: tuple[int, ...], rows: int | None, dtype: str = "float32") -> tuple[LoadedProblem, CaseTensors]:
    """A problem with one output of the given size."""
    output = TensorSpec.model_validate_json(
        f'{{"name": "y", "role": "output", "dtype": "{dtype}", "dims": {[str(d) for d in dims]}, '.replace("'", '"')
        + f'"rows": {"null" if rows is None else rows}}}'
    )
    record = Problem.from_plain(
        {
            "name": "toy/one",
            "version": 1,
            "title": "One output",
            "summary": "",
            "entry": "forward",
            "tensors": [output.model_dump(mode="json")],
            "shapes": [{"key": "small", "tier": "small", "values": {}}],
            "comparator": "normalised",
            "tolerance": {"y": TOLERANCE.model_dump()},
            "cases": [{"name": "nominal"}],
            "legal": [],
            "mutants": [],
            "cost": {"flops": "1", "bytes": "1", "precision": "fp32"},
            "rules": {"languages": ["any"]},
        }
    )
    loaded = LoadedProblem(problem=record, folder=Path(), content_hash="", prompt="", reference=None)  # type: ignore[arg-type]
    shape = Shape(key="small", tier=Tier.SMALL, values={})
    return loaded, CaseTensors(shape=shape, case="nominal", seed=0, weights_seed=0, weights={}, inputs={})


def judge(expected: Tensor, actual: Tensor, rows: int | None = 1) -> Comparison:
    loaded, case = problem(tuple(expected.shape), rows, str(actual.dtype).removeprefix("torch."))
    return compare(loaded, case, {"y": expected}, {"y": actual})


def rms(numbers: list[float]) -> float:
    return math.sqrt(sum(number * number for number in numbers) / len(numbers))


def slow_usage(expected: Tensor, actual: Tensor, rows: int | None) -> float:
    """The three ratios of the specification in plain Python, one number at a time."""
    r, y = expected.double(), actual.double()
    n = math.prod(expected.shape[: rows or 0])
    r_rows, e_rows = r.reshape(n, -1).tolist(), (y - r).reshape(n, -1).tolist()
    usage = [rms((y - r).flatten().tolist()) / rms(r.flatten().tolist()) / RMS]

    def scales(groups: list[list[float]]) -> list[float]:
        own = [rms(group) for group in groups]
        return [max(one, 0.5 * median(own)) for one in own]

    row_scale = scales(r_rows)
    if rows is not None:
        usage += [rms(e) / s / GROUP for e, s in zip(e_rows, row_scale, strict=True)]
        if n >= 4 and rows < expected.ndim:
            last = expected.shape[-1]
            r_columns, e_columns = r.reshape(-1, last).T.tolist(), (y - r).reshape(-1, last).T.tolist()
            usage += [rms(e) / s / GROUP for e, s in zip(e_columns, scales(r_columns), strict=True)]
    for r_row, e_row, scale in zip(r_rows, e_rows, row_scale, strict=True):
        usage += [abs(e) / (ELEMENT * scale + abs(a) / 128) for a, e in zip(r_row, e_row, strict=True)]
    return max(usage)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Tensor, Tensor, int | None]:
    dims = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    rows = draw(st.none() | st.integers(0, len(dims)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scale = torch.randn(dims[:1] + (1,) * (len(dims) - 1), generator=generator).exp()
    r = scale * torch.randn(dims, generator=generator, dtype=torch.float64)
    noise = draw(st.sampled_from([0.0, 1e-4, 3e-3, 0.01, 0.3]))
    y = r + noise * torch.randn(dims, generator=generator, dtype=torch.float64)
    return r, y.float(), rows


@QUICK
@given(pairs())
def test_usage_is_the_formula(pair: tuple[Tensor, Tensor, int | None]) -> None:
    expected, actual, rows = pair
    result = judge(expected, actual, rows)
    assert result.usage == pytest.approx(slow_usage(expected, actual, rows), rel=1e-9)
    assert result.passed == (result.usage <= 1.0) == (not result.mismatches) == (result.where == "")


@QUICK
@given(pairs(), st.integers(-60, 60))
def test_a_power_of_two_changes_nothing(pair: tuple[Tensor, Tensor, int | None], exponent: int) -> None:
    expected, actual, rows = pair
    factor = 2.0**exponent
    scaled = judge(expected * factor, (actual.double() * factor), rows)
    assert scaled.usage == pytest.approx(judge(expected, actual.double(), rows).usage, rel=1e-12)


@QUICK
@given(st.integers(0, 2**32), st.data())
def test_any_corrupted_element_fails(seed: int, data: st.DataObject) -> None:
    """Off by a twelfth of its row's scale and of itself, somewhere, in an answer that is otherwise exact."""
    generator = torch.Generator().manual_seed(seed)
    r = torch.randn(6, 40, generator=generator, dtype=torch.float64)
    y = r.float()
    row, column = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 39))
    sign = data.draw(st.sampled_from([1.0, -1.0]))
    y[row, column] += sign * float(r[row].square().mean().sqrt() + r[row, column].abs()) / 12
    result = judge(r, y)
    assert not result.passed
    element = next(m for m in result.mismatches if m.rule == "normalised.element")
    assert element.index == (row, column)
    assert result.where == f"row {row} of 6, column {column} of 40"


@QUICK
@given(st.integers(0, 2**32), st.data())
def test_any_lost_element_fails(seed: int, data: st.DataObject) -> None:
    generator = torch.Generator().manual_seed(seed)
    r = torch.randn(6, 40, generator=generator, dtype=torch.float64)
    y = r.float()
    y[data.draw(st.integers(0, 5)), data.draw(st.integers(0, 39))] = data.draw(
        st.sampled_from([math.nan, math.inf, -math.inf])
    )
    result = judge(r, y)
    assert result.usage == math.inf
    assert [m.rule for m in result.mismatches] == ["output.nonfinite"]


def test_nan_is_no_wildcard_anywhere() -> None:
    r = torch.ones(4, 8, dtype=torch.float64)
    r[0, 0], r[1, 1] = math.inf, math.nan
    y = r.float()
    result = judge(r, y)
    assert result.mismatches[0].index == (1, 1)  # the oracle's own NaN is matched by nothing
    r[1, 1] = 1.0
    assert judge(r, r.float()).passed
    y = r.float()
    y[0, 0] = -math.inf
    assert judge(r, y).mismatches[0].index == (0, 0)
    y[0, 0] = 3e38
    assert judge(r, y).mismatches[0].index == (0, 0)


def test_bf16_rounding_alone_uses_a_third() -> None:
    r = torch.randn(64, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert 0.25 < judge(r, r.bfloat16()).usage < 0.4


@pytest.mark.parametrize("answer", [0.0, 1.0])
def test_constants_fail_by_far(answer: float) -> None:
    r = torch.randn(64, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert judge(r * 2.0**-20, torch.full((64, 256), answer)).usage > 30


def test_a_wrong_row_and_a_wrong_column_are_named() -> None:
    r = torch.randn(64, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    row = r.clone()
    row[7] *= 1.02
    result = judge(r, row.float())
    assert [m.rule for m in result.mismatches] == ["normalised.group", "normalised.element"] or [
        m.rule for m in result.mismatches
    ] == ["normalised.group"]
    assert "row 7 by 0.02 of its scale" in result.mismatches[0].message
    assert result.mismatches[0].index is not None
    assert result.mismatches[0].index[0] == 7
    assert "row 7 of 64" in result.where

    column = r.clone()
    column[:, 9] *= 1.02
    result = judge(r, column.float())
    assert "column 9 by 0.02 of its scale" in result.mismatches[0].message
    assert "column 9 of 256" in result.where
    # The same error without column groups hides in rows of 256: that is why columns are groups.
    assert judge(r, column.float(), rows=None).passed


def test_an_error_everywhere_is_said_to_be_everywhere() -> None:
    r = torch.randn(8, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    result = judge(r, (r * 1.0065).float())
    assert [m.rule for m in result.mismatches] == ["normalised.rms"]
    assert result.where == "all 8 rows, all 32 columns"
    assert "0.0065 of the result's rms; 0.006 is allowed" in result.mismatches[0].message


def test_a_zero_row_in_its_own_right() -> None:
    """A zero row is held to half of the typical scale, an all-zero oracle to exact zeros."""
    r = torch.randn(8, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    r[3] = 0.0
    y = r.float()
    assert judge(r, y).usage < 1e-4
    y[3] = 0.001
    assert judge(r, y).passed
    y[3] = 0.1
    assert not judge(r, y).passed
    nothing = torch.zeros(8, 32, dtype=torch.float64)
    assert judge(nothing, nothing.float()).usage == 0.0
    assert judge(nothing, nothing.float() + 1e-30).usage == math.inf


def test_blocks_do_not_change_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    r = torch.randn(37, 5, 11, generator=generator, dtype=torch.float64)
    y = (r + 0.01 * torch.randn(37, 5, 11, generator=generator, dtype=torch.float64)).float()
    whole = judge(r, y)
    monkeypatch.setattr(normalised, "BLOCK_ELEMENTS", 200)
    parts = judge(r, y)
    assert parts.usage == pytest.approx(whole.usage, rel=1e-12)
    assert [(m.rule, m.index) for m in parts.mismatches] == [(m.rule, m.index) for m in whole.mismatches]
    assert parts.where == whole.where


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64"])
def test_every_float_is_read(dtype: str) -> None:
    r = torch.tensor([[1.0, -2.0, 0.5, 4.0]] * 5, dtype=torch.float64)
    assert judge(r, r.to(getattr(torch, dtype))).usage == 0.0


def test_integers_are_exact() -> None:
    r = torch.arange(20).reshape(4, 5)
    assert judge(r, r.clone()).usage == 0.0
    wrong = r.clone()
    wrong[2, 3] += 1
    result = judge(r, wrong)
    assert (result.usage, result.mismatches[0].rule) == (math.inf, "normalised.exact")
    assert (result.mismatches[0].index, result.mismatches[0].actual) == ((2, 3), "14")


@pytest.mark.parametrize(
    "actual",
    [
        {},
        {"y": None},
        {"y": torch.zeros(4, 4)},
        {"y": torch.zeros(20)},
        {"y": torch.zeros(())},
        {"y": torch.zeros(4, 5, dtype=torch.float64)},
        {"y": torch.zeros(4, 5, dtype=torch.int64)},
        {"y": torch.zeros(4, 5, dtype=torch.complex64)},
        {"y": torch.full((4, 5), math.nan)},
        {"y": torch.full((4, 5), 3.4e38)},
        {"y": torch.zeros(4, 5), "z": torch.zeros(1)},
    ],
)
def test_hostile_results_fail_and_do_not_crash(actual: dict[str, Tensor]) -> None:
    loaded, case = problem((4, 5), 1)
    result = compare(loaded, case, {"y": torch.ones(4, 5, dtype=torch.float64)}, actual)
    assert not result.passed
    assert result.mismatches


@pytest.mark.parametrize("dims", [(), (0,), (0, 5), (5, 0), (1,), (1, 1)])
def test_small_and_empty_outputs(dims: tuple[int, ...]) -> None:
    r = torch.ones(dims, dtype=torch.float64)
    assert judge(r, r.float(), rows=min(1, len(dims))).usage == 0.0
    if r.numel():
        assert not judge(r, r.float() * 1.1, rows=None).passed


# --- attribution ---


def test_residuals_name_their_mutant(toy: Toy) -> None:
    toy()
    loaded = load("toy/scale")
    for case_name in ("nominal", "onehot"):
        case = draw(loaded, loaded.problem.shapes[0], case_name, 1, 2)
        expected = expect(loaded, case)
        for name, mutant in loaded.reference.mutants.items():
            actual = mutant(case.weights, case.inputs, case.shape)
            noise = torch.randn(actual["y"].shape, generator=torch.Generator().manual_seed(3)).bfloat16()
            noisy = {"y": actual["y"] + 0.001 * noise}
            assert getattr(attribute(loaded, case, expected, noisy), "mutant", None) == name
        honest = loaded.reference.legal["fp32"](case.weights, case.inputs, case.shape)
        assert attribute(loaded, case, expected, honest) is None
        # In case onehot only the last k counts, so dropping it leaves zeros.
        zeros = {"y": torch.zeros(8, 16, dtype=torch.bfloat16)}
        assert getattr(attribute(loaded, case, expected, zeros), "mutant", None) == (
            "last_k_dropped" if case_name == "onehot" else None
        )
        assert attribute(loaded, case, expected, {"y": torch.full((8, 16), math.nan, dtype=torch.bfloat16)}) is None
        assert attribute(loaded, case, expected, {}) is None


def test_the_same_direction_with_another_length_is_another_error(toy: Toy) -> None:
    toy()
    loaded = load("toy/scale")
    case = draw(loaded, loaded.problem.shapes[0], "nominal", 1, 2)
    expected = expect(loaded, case)
    assert attribute(loaded, case, expected, {"y": (expected["y"] * 1.2).bfloat16()}) is None
