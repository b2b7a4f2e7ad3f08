"""Comparator `normalised`: three ratios, each relative to the result's own scale.

With r the oracle and y the result, both in fp64, σ = rms(r), groups *rows* (the declared leading axes) and *columns*
(the last axis, only where at least 12 rows weigh in it), and σ_G = max(rms(r_G), half the median of rms over the
groups of that kind), an output with tolerance (ε, γ, κ) uses the largest of

- `normalised.rms`: rms(y − r) / σ ÷ ε;
- `normalised.group`: max over groups of rms(y_G − r_G) / σ_G ÷ γ (an output without declared rows has no groups);
- `normalised.element`: max over elements of |y − r| ÷ (κ·σ_row + 2⁻⁷·|r|), σ_row being σ_G of its row;

and passes at 1 or below. A case scaled by 2⁻²⁰ has the same teeth as the nominal one. Integers, and state that has no
tolerance, are exact (`normalised.exact`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelassay.decks._problem import CaseTensors, LoadedProblem
from kernelassay.decks.comparators._common import (
    Comparison,
    Likeness,
    Mismatch,
    first_index,
    judged_specs,
    located,
    nonfinite,
    precheck,
    refused,
    show,
    where_in,
)
from kernelassay.records import TensorSpec, Tolerance

MIN_ROWS_FOR_COLUMNS = 12
"""Elements of about equal weight without which the rms of a column is a few rounding errors, not a statistic: over 4096
columns that of 12 reaches 1.8 times its expectation, of 7 twice, of 4 2.4 times. [computed: χ²] Seven tokens on a ramp,
two of which make most of a column, brought honest bf16 kernels to 1.7 of the group's tolerance. [measured:
bench/device/full_tier.py cuda/glm_moe]"""
MEDIAN_SHARE = 0.5
"""A group is held to at least half of its kind's typical scale, so that a nearly zero group asks for no miracle."""
RELATIVE_FLOOR = 2.0**-7
"""One bf16 half-ulp and a little: a large element may be rounded once whatever its row's scale."""
BLOCK_ELEMENTS = 1 << 22
"""Elements held in fp64 at a time: 32 MB per operand, whatever the output's size."""
SAME_RESIDUAL = 0.98
"""Cosine of two residuals that are called the same."""
SAME_NORM = 0.05
"""How far their norms may differ."""


@dataclass(frozen=True)
class _Blocks:
    """One output as a matrix of rows (n, width), walked in blocks."""

    expected: Tensor
    actual: Tensor
    columns: int | None
    """Size of the last axis, which divides the width; None where columns are no groups."""

    @property
    def rows(self) -> int:
        return self.expected.shape[0]

    def __len__(self) -> int:
        return math.ceil(self.rows / self._step)

    @property
    def _step(self) -> int:
        return max(1, BLOCK_ELEMENTS // self.expected.shape[1])

    def span(self, block: int) -> slice:
        return slice(block * self._step, min(self.rows, (block + 1) * self._step))

    def pair(self, block: int) -> tuple[Tensor, Tensor]:
        """(r, y − r) in fp64; where the oracle is infinite and the result agrees both are 0."""
        span = self.span(block)
        r, y = self.expected[span].to(torch.float64), self.actual[span].to(torch.float64)
        finite = r.isfinite()
        if not bool(finite.all()):
            r, y = r.where(finite, torch.zeros_like(r)), y.where(finite, torch.zeros_like(y))
        return r, y - r


@dataclass(frozen=True)
class _Figures:
    """The three ratios of one output, each already divided by its tolerance."""

    rms: float
    rows: Tensor | None
    """(rows,) or None where rows are no groups."""
    columns: Tensor | None
    scale: Tensor
    """σ_row, (rows,)."""
    element: float

    @property
    def group(self) -> float:
        return max([float(part.max()) for part in (self.rows, self.columns) if part is not None], default=0.0)

    @property
    def usage(self) -> float:
        return max(self.rms, self.group, self.element)


def compare(
    loaded: LoadedProblem, tensors: CaseTensors, expected: dict[str, Tensor], actual: dict[str, Tensor]
) -> Comparison:
    """Judge one case; usage is the largest over outputs and ratios."""
    found = precheck(loaded, tensors, expected, actual)
    if found:
        return refused(found)
    usage = 0.0
    masks: dict[str, Tensor] = {}
    for spec in judged_specs(loaded, expected):
        tolerance = loaded.problem.tolerance.get(spec.name)
        r, y = expected[spec.name], actual[spec.name]
        if tolerance is None or not y.dtype.is_floating_point:
            mismatches, wrong, used = _exact(spec, r, y)
        else:
            mismatches, wrong, used = within(spec, tolerance, r, y)
        usage = max(usage, used)
        if mismatches:
            found += mismatches
            masks[spec.name] = wrong
    return Comparison(usage=usage, mismatches=tuple(found), where=where_in(masks))


def _exact(spec: TensorSpec, expected: Tensor, actual: Tensor) -> tuple[list[Mismatch], Tensor, float]:
    reference = expected.to(actual.dtype)
    wrong = reference != actual
    if not bool(wrong.any()):
        return [], wrong, 0.0
    text = f"{int(wrong.sum())} of {wrong.numel()} elements of {spec.name}, which is exact, differ"
    return [located("normalised.exact", spec.name, text, wrong, reference, actual)], wrong, math.inf


def within(
    spec: TensorSpec,
    tolerance: Tolerance,
    expected: Tensor,
    actual: Tensor,
    *,
    grouped_columns: bool = True,
    floor: float = 0.0,
) -> tuple[list[Mismatch], Tensor, float]:
    """The three ratios of one float output: broken rules, mask of wrong elements, usage.

    Args:
        spec: gives the name and the leading axes that make a row.
        tolerance: (ε, γ, κ).
        expected: the oracle's numbers.
        actual: the result, of the same size.
        grouped_columns: whether the last axis may make groups.
        floor: least value of σ, σ_G and σ_row, for outputs that may be small by chance.
    """
    mismatches, wrong = nonfinite(spec.name, expected, actual)
    if mismatches:
        return mismatches, wrong, math.inf
    if not expected.numel():
        return [], wrong, 0.0
    rows = math.prod(expected.shape[: spec.rows or 0])
    # Where the rows take up every axis, the last one cannot be a second kind of group.
    columns = expected.shape[-1] if grouped_columns and spec.rows is not None and spec.rows < expected.ndim else None
    blocks = _Blocks(expected.reshape(rows, -1), actual.reshape(rows, -1), columns)
    figures = _figures(blocks, tolerance, spec.rows is not None, floor)
    if figures.usage <= 1.0:
        return [], wrong, figures.usage
    return _explain(spec, tolerance, expected, actual, blocks, figures)


def _figures(blocks: _Blocks, tolerance: Tolerance, grouped: bool, floor: float = 0.0) -> _Figures:
    """Two passes: sums of squares for the scales, then the largest element ratio."""
    n, width = blocks.expected.shape
    last = blocks.columns
    row = torch.zeros(2, n, dtype=torch.float64)
    column = torch.zeros(2, last or 0, dtype=torch.float64)
    for block in range(len(blocks)):
        for kind, part in enumerate(blocks.pair(block)):
            square = part.square()
            row[kind, blocks.span(block)] = square.sum(1)
            if last is not None:
                column[kind] += square.reshape(-1, last).sum(0)
    if last is not None and _weighing(row[0]) * (width // last) < MIN_ROWS_FOR_COLUMNS:
        last = None
    total = (row.sum(1) / (n * width)).sqrt()
    row_rms = (row / width).sqrt()
    scale = _scale(row_rms[0]).clamp_min(floor)
    element = 0.0
    for block in range(len(blocks)):
        r, error = blocks.pair(block)
        bound = tolerance.element * scale[blocks.span(block), None] + RELATIVE_FLOOR * r.abs()
        element = max(element, float(_ratio(error.abs(), bound).max()))
    columns = None
    if last is not None:
        column_rms = (column / (n * width // last)).sqrt()
        columns = _ratio(column_rms[1], _scale(column_rms[0]).clamp_min(floor)) / tolerance.group
    return _Figures(
        rms=float(_ratio(total[1], total[0].clamp_min(floor))) / tolerance.rms,
        rows=_ratio(row_rms[1], scale) / tolerance.group if grouped else None,
        columns=columns,
        scale=scale,
        element=element,
    )


def _weighing(squares: Tensor) -> float:
    """How many rows of equal weight say as much as these: (Σs)² / Σs², Kish's effective sample size."""
    return float(_ratio(squares.sum().square(), squares.square().sum()))


def _scale(rms: Tensor) -> Tensor:
    """σ_G of every group of one kind, (groups,)."""
    ordered = rms.sort().values
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return rms.clamp_min(MEDIAN_SHARE * float(middle))


def _ratio(error: Tensor, scale: Tensor) -> Tensor:
    """Error over scale, with 0 / 0 = 0: an exact zero where zero is due uses nothing of a tolerance."""
    return torch.where(error == 0, torch.zeros_like(error), error / scale)


def _explain(
    spec: TensorSpec, tolerance: Tolerance, expected: Tensor, actual: Tensor, blocks: _Blocks, figures: _Figures
) -> tuple[list[Mismatch], Tensor, float]:
    """The broken ratios with a place each, and the mask that says where."""
    excess = torch.zeros(blocks.expected.shape, dtype=torch.bool)
    size = torch.zeros(blocks.expected.shape, dtype=torch.float32)
    for block in range(len(blocks)):
        r, error = blocks.pair(block)
        span = blocks.span(block)
        excess[span] = error.abs() > tolerance.element * figures.scale[span, None] + RELATIVE_FLOOR * r.abs()
        # Relative to σ_row, so that the place shown is the worst one for its row; 1 where the scale is 0.
        size[span] = _ratio(error.abs(), figures.scale[span, None]).to(torch.float32)
    mismatches = []
    if figures.rms > 1.0:
        text = f"rms error is {figures.rms * tolerance.rms:.3g} of the result's rms; {tolerance.rms:g} is allowed"
        mismatches.append(_at("normalised.rms", spec, text, size, expected, actual))
    groups = torch.zeros_like(excess)
    if figures.group > 1.0:
        groups, mismatch = _group(spec, tolerance, expected, actual, blocks, figures, size)
        mismatches.append(mismatch)
    if figures.element > 1.0:
        text = f"{int(excess.sum())} of {excess.numel()} elements of {spec.name} lie outside the tolerance"
        wrong = excess.reshape(expected.shape)
        mismatches.append(located("normalised.element", spec.name, text, wrong, expected, actual))
    mask = excess if bool(excess.any()) else groups
    mask = mask if bool(mask.any()) else torch.ones_like(mask)  # only the rms: the error is everywhere
    return mismatches, mask.reshape(expected.shape), figures.usage


def _group(
    spec: TensorSpec,
    tolerance: Tolerance,
    expected: Tensor,
    actual: Tensor,
    blocks: _Blocks,
    figures: _Figures,
    size: Tensor,
) -> tuple[Tensor, Mismatch]:
    mask = torch.zeros_like(size, dtype=torch.bool)
    worst, kind, number, count = 0.0, "", 0, 0
    for name, ratios in (("row", figures.rows), ("column", figures.columns)):
        if ratios is None or float(ratios.max()) <= 1.0:
            continue
        over = ratios > 1.0
        if name == "row":
            mask[over] = True
        else:
            mask.view(-1, len(over))[:, over] = True  # a view: this writes into the mask
        count += int(over.sum())
        if float(ratios.max()) > worst:
            worst, kind, number = float(ratios.max()), name, int(ratios.argmax())
    chosen = torch.zeros_like(mask)
    if kind == "row":
        chosen[number] = True
    else:
        chosen.view(-1, expected.shape[-1])[:, number] = True
    text = (
        f"{count} rows or columns are off; {kind} {number} by {worst * tolerance.group:.3g} of its scale, "
        f"{tolerance.group:g} is allowed"
    )
    return mask, _at("normalised.group", spec, text, size.where(chosen, -torch.ones_like(size)), expected, actual)


def _at(rule: str, spec: TensorSpec, message: str, size: Tensor, expected: Tensor, actual: Tensor) -> Mismatch:
    """A mismatch shown where `size` (relative error) is largest."""
    index = first_index((size == size.max()).reshape(expected.shape))
    return Mismatch(rule, spec.name, message, index, show(expected, index), show(actual, index))


def attribute(
    loaded: LoadedProblem, tensors: CaseTensors, expected: dict[str, Tensor], actual: dict[str, Tensor]
) -> Likeness | None:
    """The mutant whose residual is the submission's: cosine ≥ 0.98, norms within 5 %; the closest if there are several.

    Residuals of several outputs are laid end to end, each divided by its output's rms.
    """
    if precheck(loaded, tensors, expected, actual):
        return None
    mine = _residual(loaded, expected, actual)
    norm = _dot(mine, mine) ** 0.5
    if norm == 0.0 or not math.isfinite(norm):
        return None
    best, best_cosine = None, SAME_RESIDUAL
    for name, mutant in loaded.reference.mutants.items():
        answer = mutant(tensors.weights, tensors.inputs, tensors.shape)
        if any(part.shape != expected[output].shape for output, part in answer.items() if output in expected):
            continue
        if not set(mine) <= set(answer):
            continue
        theirs = _residual(loaded, expected, answer)
        other = _dot(theirs, theirs) ** 0.5
        if other == 0.0 or not math.isfinite(other) or abs(norm / other - 1.0) > SAME_NORM:
            continue
        cosine = _dot(mine, theirs) / (norm * other)
        if cosine >= best_cosine:
            best, best_cosine = name, cosine
    return None if best is None else Likeness(best, best_cosine)


def _residual(loaded: LoadedProblem, expected: dict[str, Tensor], answer: dict[str, Tensor]) -> dict[str, Tensor]:
    parts = {}
    for spec in judged_specs(loaded, expected):
        if spec.name not in answer or spec.name not in loaded.problem.tolerance:
            continue
        r = expected[spec.name].to(torch.float64)
        scale = float(r.square().mean().sqrt()) or 1.0
        parts[spec.name] = (answer[spec.name].to(torch.float64) - r).flatten() / scale
    return parts


def _dot(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    return sum(float(left[name] @ right[name]) for name in left)
