"""Two submissions on one device: neighbouring pairs from an A B B A order, one relation per shape and over all.

The rule starts from AMBIGUOUS and upgrades only with evidence: FASTER and SLOWER need every pair on one side of the
effect floor, SAME needs every pair within it. A tie is a result, and says what would settle it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from kernelassay.records import Check, Record
from kernelassay.timing._samples import SAMPLE_MAX_US, SAMPLE_MIN_US
from kernelassay.timing._statistics import (
    PROCESSES_RESOLUTION,
    UNSTEADY_SD,
    order_estimate,
    processes_needed,
    relative_sd,
)

PAIRS = 8
"""Four ABBA blocks: [min, max] of 8 ratios covers their median with 1 − 2⁻⁷ = 99.2 %. Fewer support no comparison.
[computed]"""
PAIR_COVERAGE = 0.992
"""Of the interval of log ratios; more than 8 pairs need not be [min, max]. [computed]"""
EFFECT_FLOOR = 0.005
"""Smaller differences are not claimed; larger where the device's own A/A differences are. [read, estimated]"""


class Relation(StrEnum):
    """B against A."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    AMBIGUOUS = "ambiguous"
    """A tie for now: not an error, and not a claim that they are equal."""
    INVALID = "invalid"
    """The two were not measured alike, or one of them has no usable times."""


@dataclass(frozen=True)
class Context:
    """What must be equal for two times to be comparable."""

    timer: str
    device: str
    """Fingerprint."""
    deck: str
    """Content hash of the problem."""
    cache_policy: str
    plan: str = ""
    """Anything else that the times depend on."""


@dataclass(frozen=True)
class Pair:
    """Times of two neighbouring processes, microseconds; clocks in MHz where the device has one to read."""

    a_us: float
    b_us: float
    a_mhz: float | None = None
    b_mhz: float | None = None


class ShapeComparison(Record):
    """B against A on one shape, or over all of them (`shape` empty): log ratios of B's time over A's."""

    shape: str
    relation: Relation
    reason: str = Field(min_length=1)
    next_step: str = ""
    """Empty only where the relation is settled."""
    ratio: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Median of t_B / t_A; None under `invalid`."""
    low: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    high: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    coverage: float | None = Field(default=None, ge=0, le=1)
    pairs: int = Field(ge=0)
    needed: int | None = Field(default=None, ge=1)
    """Pairs of fresh processes that would settle it."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        settled = self.relation in (Relation.FASTER, Relation.SLOWER, Relation.SAME)
        numbers = (self.low, self.ratio, self.high)
        if None in numbers and numbers != (None, None, None):
            raise ValueError("a ratio has an interval")
        if settled and (self.ratio is None or self.pairs < PAIRS):
            raise ValueError(f"a settled relation has a ratio of {PAIRS} pairs or more")
        if not settled and not self.next_step:
            raise ValueError("what is not settled says what to do next")
        if self.low is not None and self.ratio is not None and self.high is not None:
            if not self.low <= self.ratio <= self.high:
                raise ValueError("a ratio lies in its interval")
            if (self.relation is Relation.FASTER and self.high >= 1) or (
                self.relation is Relation.SLOWER and self.low <= 1
            ):
                raise ValueError("the interval contradicts the relation")
        return self


class VersusResult(Record):
    """B against A over all shapes and on each."""

    overall: ShapeComparison
    shapes: tuple[ShapeComparison, ...]


def abba(pairs: int) -> str:
    """The order of 2·`pairs` processes: `ABBA BAAB …` without the blanks; neighbours 2i and 2i + 1 form pair i.

    Linear drift cancels over each block of four.
    """
    pattern = ("AB", "BA", "BA", "AB")
    return "".join(pattern[i % 4] for i in range(pairs))


def compare(
    pairs: Mapping[str, Sequence[Pair]],
    a: Context,
    b: Context,
    *,
    effect_floor: float = EFFECT_FLOOR,
    checks: Sequence[Check] = (),
) -> VersusResult:
    """Compare B with A.

    Args:
        pairs: Shape → its pairs, in order.
        a: How the first was measured.
        b: How the second was measured; any difference makes the comparison INVALID.
        effect_floor: Relative; at least `EFFECT_FLOOR`, larger where the device's published A/A differences are.
        checks: Of both timings; one with effect `invalid` makes the comparison INVALID.

    Raises:
        ValueError: there are no shapes.
    """
    if not pairs:
        raise ValueError("no shape to compare; next: `assay grade` both submissions")
    limit = max(effect_floor, EFFECT_FLOOR)
    unlike = [f.name for f in fields(Context) if getattr(a, f.name) != getattr(b, f.name)]
    broken = [check for check in checks if check.effect in ("invalid", "impossible")]
    if unlike or broken:
        why = f"measured with different {', '.join(unlike)}" if unlike else broken[0].reason
        step = "`assay compare A B` on one device, in one run" if unlike else broken[0].next_step
        results = {shape: _invalid(shape, len(p), why, step) for shape, p in pairs.items()}
        return VersusResult(overall=_invalid("", 0, why, step), shapes=tuple(results.values()))
    shapes = tuple(_shape(shape, list(p), limit) for shape, p in pairs.items())
    return VersusResult(overall=_overall(pairs, shapes, limit), shapes=shapes)


def _invalid(shape: str, pairs: int, reason: str, next_step: str) -> ShapeComparison:
    return ShapeComparison(shape=shape, relation=Relation.INVALID, reason=reason, next_step=next_step, pairs=pairs)


def _plausible(*values: float | None) -> bool:
    return all(value is None or SAMPLE_MIN_US <= value <= SAMPLE_MAX_US for value in values)  # NaN is not


def _shape(shape: str, pairs: list[Pair], limit: float) -> ShapeComparison:
    again = "`assay compare A B` on a quiet machine"
    if not all(_plausible(p.a_us, p.b_us, p.a_mhz, p.b_mhz) for p in pairs):
        return _invalid(shape, len(pairs), "a time or a clock is no plausible number", again)
    if not pairs:
        return _invalid(shape, 0, "no pairs", again)
    scatter = max(relative_sd([p.a_us for p in pairs]), relative_sd([p.b_us for p in pairs]))
    if len(pairs) >= 3 and scatter >= UNSTEADY_SD:
        return _invalid(shape, len(pairs), f"process medians scatter by {100 * scatter:.0f} %", again)
    ratios = [math.log(p.b_us) - math.log(p.a_us) for p in pairs]
    clocks = [(p.a_mhz, p.b_mhz) for p in pairs]
    cycles = [
        r + math.log(b_mhz) - math.log(a_mhz)
        for r, (a_mhz, b_mhz) in zip(ratios, clocks, strict=True)
        if a_mhz is not None and b_mhz is not None
    ]
    return _decide(shape, ratios, cycles if len(cycles) == len(ratios) else [], limit)


def _overall(pairs: Mapping[str, Sequence[Pair]], shapes: Sequence[ShapeComparison], limit: float) -> ShapeComparison:
    """Over all shapes: the geomean ratio of each pair, taken over the shapes."""
    bad = [shape for shape in shapes if shape.relation is Relation.INVALID]
    if bad:
        return _invalid("", 0, f"{bad[0].shape}: {bad[0].reason}", bad[0].next_step)
    count = min(len(p) for p in pairs.values())
    ratios = [
        math.fsum(math.log(p[i].b_us) - math.log(p[i].a_us) for p in pairs.values()) / len(pairs) for i in range(count)
    ]
    return _decide("", ratios, [], limit)


def _side(ratios: Sequence[float], limit: float) -> Relation:
    interval = order_estimate(ratios, PAIR_COVERAGE)
    bound = math.log1p(limit)
    if interval.high < -bound:
        return Relation.FASTER
    if interval.low > bound:
        return Relation.SLOWER
    return Relation.SAME if -bound <= interval.low and interval.high <= bound else Relation.AMBIGUOUS


def _decide(shape: str, ratios: Sequence[float], cycles: Sequence[float], limit: float) -> ShapeComparison:
    interval = order_estimate(ratios, PAIR_COVERAGE)
    relation = _side(ratios, limit)
    # The scatter of single ratios resolves a difference as large as the one seen, and never asks for finer than 1 %.
    sigma = relative_sd([math.exp(r) for r in ratios]) / math.sqrt(2.0)
    needed = max(PAIRS, processes_needed(sigma, max(PROCESSES_RESOLUTION, abs(interval.median))))
    percent = f"{100 * math.expm1(interval.median):+.2f} %"
    span = f"{100 * math.expm1(interval.low):+.2f} … {100 * math.expm1(interval.high):+.2f} %"
    reason = f"B's time against A's: {percent} ({span}, {len(ratios)} pairs)"
    if relation in (Relation.FASTER, Relation.SLOWER) and cycles and _side(cycles, limit) is not relation:
        relation, reason = Relation.AMBIGUOUS, f"{reason}; in cycles the relation is another one"
    if len(ratios) < needed and relation is not Relation.AMBIGUOUS:
        relation, reason = Relation.AMBIGUOUS, f"{reason}; {needed} pairs are needed"
    next_step = f"`assay compare A B` with {max(needed, len(ratios) + PAIRS)} pairs" * (relation is Relation.AMBIGUOUS)
    return ShapeComparison(
        shape=shape,
        relation=relation,
        reason=reason,
        next_step=next_step,
        ratio=math.exp(interval.median),
        low=math.exp(interval.low),
        high=math.exp(interval.high),
        coverage=interval.coverage,
        pairs=len(ratios),
        needed=needed,
    )
