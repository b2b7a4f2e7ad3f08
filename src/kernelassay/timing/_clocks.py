"""Both clocks of one shape, reduced step by step; a step may add checks, labels and values, never raise.

`outer = (T(K) − w(K)) / K` at the largest K, where w is the judge's own round with a clean worker: nothing that a
submission's process executed is ever subtracted.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from kernelassay.records import (
    Cause,
    Check,
    Floor,
    Interval,
    LineFit,
    Measurement,
    ProcessTiming,
    Round,
    ShapePlan,
)
from kernelassay.timing._line import agree, fit_line
from kernelassay.timing._physics import Gate, gate
from kernelassay.timing._plan import MIN_ROUNDS
from kernelassay.timing._samples import SAMPLE_MIN_US, ShapeSamples
from kernelassay.timing._statistics import (
    Estimate,
    check_drift,
    check_modes,
    check_outliers,
    check_processes_enough,
    check_processes_steady,
    check_tail,
    check_warm_up,
    estimate,
    median,
    order_estimate,
)

WIDTH_REL = 0.04
"""A time whose whole interval is wider than this share of it is AMBIGUOUS: with 5 to 15 rounds the medians of ten
grades then spread by about 0.7 of that width, 3 %. [computed from a normal distribution of rounds]"""
WIDTH_ABS_US = 0.8
"""Widths below it never decide: `WIDTH_REL` of 20 µs, the shortest time for which a bar is claimed. [computed]"""
PROCESS_INTERVAL_MIN = 6
"""Fewer process medians have no interval of their own worth the name: [min, max] of 6 covers 96.9 %. [computed]"""
PAIR_FLOOR_FACTOR = 3.0
"""An inner median below this many times the clock's own reading around nothing is not resolved. [estimated]"""
MAX_DISCARD = 0.20
MAX_DISCARD_RUN = 10
"""Throttled samples above this share, or this many in a row: INVALID. [estimated]"""
NULL_SHARE = 0.02
"""On a GPU, w(K)/T(K): what an early start could hide at most. [rule]"""
BAD_OUTER_SHARE = 0.2
"""Rounds of the judge's clock that are no duration, above this share: the clock itself is broken. [estimated]"""


Basis = Literal["samples", "rounds", "processes"]


class PerK(NamedTuple):
    """T(K) − w(K) at one K, and what its interval is made of."""

    value: Estimate
    basis: Basis


class Draft:
    """The reduction of one shape while it is being made; every step may add checks and labels."""

    def __init__(
        self,
        plan: ShapePlan,
        samples: ShapeSamples,
        floor: Floor | None,
        processes: Sequence[ProcessTiming],
        nulls: Sequence[Round],
        final: bool,
    ) -> None:
        self.plan, self.samples, self.floor, self.final = plan, samples, floor, final
        self.processes = processes
        self.nulls = _by_k(nulls)
        self.checks: list[Check] = []
        self.labels: list[str] = []
        self.settles_by_repeating = False
        self.inner: Interval | None = None
        self.outer: Interval | None = None
        self.single: Interval | None = None
        self.time: Interval | None = None
        self.line: LineFit | None = None
        self.merged_gain: float | None = None
        self.inner_doubt = ""

    def run(self) -> None:
        self._faults()
        self._inner_clock()
        k = self._largest_k()
        if k is not None:
            self._outer_clock(k)
        self._agreement()
        self._width()
        if self.floor is not None and self.floor.cache_resident:
            self.labels.append("cache-resident")
        if self.samples.copied_outputs:
            self.labels.append("outputs copied inside the clock")

    def _add(self, check: Check | None) -> None:
        if check is not None:
            self.checks.append(check)

    def _repeatable(self, check: Check | None) -> None:
        """Add a check that twice the rounds may lift."""
        if check is not None:
            self.checks.append(check)
            self.settles_by_repeating = self.settles_by_repeating or check.effect != "informs"

    def _faults(self) -> None:
        for fault in self.samples.device_faults:
            self._add(_invalid("device", fault, "device", "quiet the device, then `assay grade` again"))
        voided = len(self.samples.processes) - len(self.processes)
        if not self.processes:
            why = "every process was void: its calibration moved" if voided else "no process was timed"
            self._add(_invalid("no_process", why, "device", "quiet the machine, then `assay grade` again"))
        elif voided:
            self._add(
                Check(
                    name="void_process",
                    effect="informs",
                    reason=f"{voided} of {len(self.samples.processes)} processes do not count: their calibration moved",
                    next_step="nothing, if enough are left; otherwise quiet the machine and grade again",
                )
            )

    # The inner clock

    def _inner_clock(self) -> None:
        if self.samples.inner_fault:
            self.inner_doubt = self.samples.inner_fault
            return
        series = [process.inner_us for process in self.processes if process.inner_us]
        accepted = [len(process.inner_us) for process in self.processes]
        self._throttled()
        if not series or min(accepted) < self.plan.inner_accepted:
            self.inner_doubt = (
                f"{min(accepted, default=0)} of {self.plan.inner_samples} inner samples are usable, "
                f"{self.plan.inner_accepted} are needed"
            )
            self._add(
                Check(
                    name="few_inner_samples",
                    effect="inner_unusable",
                    reason=self.inner_doubt,
                    next_step="read the discards in the record; a worker that sends no durations has no inner clock",
                )
            )
            return
        for values in series:
            self._add(check_warm_up(values, "inner samples"))
            self._add(check_drift(values, "inner samples"))
            self._add(check_modes(values, "inner samples", "informs"))
            self._add(check_tail(values, "inner samples"))
            self._doubt(check_outliers(values, "inner samples", "inner_unusable"))
        combined, basis = _over_processes([order_estimate(values) for values in series])
        self.inner = combined.interval(basis or "samples")
        limit = PAIR_FLOOR_FACTOR * (self.samples.pair_floor_us or 0.0)
        if math.isfinite(limit) and self.inner.median_us < limit:
            self._doubt(
                Check(
                    name="inner_unresolved",
                    effect="inner_unusable",
                    reason=f"the inner clock reads {limit / PAIR_FLOOR_FACTOR:.3g} µs around nothing and "
                    f"{self.inner.median_us:.3g} µs around the call",
                    next_step="nothing: the outer clock counts",
                )
            )
        self._inner_against_physics()

    def _doubt(self, check: Check | None) -> None:
        self._add(check)
        if check is not None and check.effect == "inner_unusable" and not self.inner_doubt:
            self.inner_doubt = check.reason

    def _throttled(self) -> None:
        for process in self.processes:
            slow = {discard.index for discard in process.discards if discard.reason.startswith("throttled")}
            total = len(process.inner_us) + len(process.discards)
            run = longest = 0
            for index in range(total):
                run = run + 1 if index in slow else 0
                longest = max(longest, run)
            if slow and (len(slow) > MAX_DISCARD * total or longest >= MAX_DISCARD_RUN):
                self._add(
                    _invalid(
                        "throttled",
                        f"throttled: {len(slow)} of {total} samples ran on a lowered clock",
                        "device",
                        "cool the device or raise its power limit, then `assay grade` again",
                    )
                )

    def _inner_against_physics(self) -> None:
        if self.inner is None or self.floor is None or self.floor.gate_us is None:
            return
        below = sum(value < self.floor.gate_us for process in self.processes for value in process.inner_us)
        if not below:
            return
        whole = gate(self.inner, self.floor, repeated=True) is Gate.IMPOSSIBLE
        check = Check(
            name="inner_below_physics",
            effect="inner_unusable" if whole else "informs",
            finding=True,
            reason=f"{below} inner samples are shorter than the hardware allows ({self.floor.gate_us:.3g} µs)",
            next_step="suspect the cost model first, then the worker's clock: `assay deck lint`",
            measured=(Measurement(name="below", value=below),),
        )
        self._doubt(check)

    # The outer clock

    def _largest_k(self) -> int | None:
        """K of the outer value: the planned one, or after a coarse end the largest with `MIN_ROUNDS` in a process."""
        if not self.processes:
            return None
        counts = [Counter(r.k for r in process.rounds) for process in self.processes]
        dropped = sum(len(process.rounds_discarded) for process in self.processes)
        kept = sum(len(process.rounds) for process in self.processes)
        if dropped > BAD_OUTER_SHARE * (dropped + kept):
            self._add(
                _invalid(
                    "no_duration",
                    f"{dropped} of {dropped + kept} rounds of the outer clock are no durations",
                    "judge",
                    "`assay doctor`; the judge's own clock is broken",
                )
            )
            return None
        enough = [k for k in self.plan.rungs if all(count[k] >= MIN_ROUNDS for count in counts)]
        if any(count[k] < self.plan.rounds for count in counts for k in self.plan.rungs):
            self.labels.append("coarse")
        if not enough:
            self._add(
                _invalid(
                    "few_rounds",
                    f"fewer than {MIN_ROUNDS} rounds of the outer clock at every K",
                    "judge",
                    "`assay grade --careful`, which allows more time",
                )
            )
            return None
        missing = [k for k in enough if not self.nulls.get(k)]
        if enough[-1] in missing:
            self._add(
                _invalid(
                    "no_null",
                    f"the clean worker's round was not measured at K = {enough[-1]}",
                    "judge",
                    "`assay doctor`, then `assay grade` again",
                )
            )
            return None
        return enough[-1]

    def _outer_clock(self, k_max: int) -> None:
        rungs = {k: self._rung(k) for k in self.plan.rungs if k <= k_max and self._has(k)}
        value, basis = rungs[k_max]
        per_call = _scaled(value, 1.0 / k_max)
        self._round_checks(k_max)
        self._null_share(k_max)
        medians = [_process_median(process, k_max) for process in self.processes]
        nothing = median(self.nulls[k_max])
        self._repeatable(check_processes_steady([(m - nothing) / k_max for m in medians]))
        if len(medians) > 1:
            self._add(check_processes_enough([(m - nothing) / k_max for m in medians]))
        if per_call.high < SAMPLE_MIN_US:
            self._add(
                Check(
                    name="no_time",
                    effect="impossible",
                    finding=True,
                    reason=f"a round of {k_max} calls takes no longer than a clean worker's round without calls",
                    next_step="suspect the outer clock first: `assay doctor`, then read T(K) and w(K) in the record",
                )
            )
            return
        if per_call.median < SAMPLE_MIN_US:
            self._repeatable(
                Check(
                    name="unresolved",
                    effect="ambiguous",
                    reason="the calls of a round are lost in the noise of the round without calls",
                    next_step="`assay grade --careful`, or a larger shape",
                )
            )
            return
        self.outer = per_call.interval(basis)
        self._physics()
        if len(rungs) >= 2:
            self._line({k: rung for k, (rung, _) in rungs.items()})
        self._merged(rungs)

    def _has(self, k: int) -> bool:
        return bool(self.nulls.get(k)) and all(any(r.k == k for r in process.rounds) for process in self.processes)

    def _rung(self, k: int) -> PerK:
        """T(K) − w(K) over the processes, with the uncertainty of both."""
        totals, basis = _over_processes(
            [order_estimate([r.total_us for r in process.rounds if r.k == k]) for process in self.processes]
        )
        nothing = estimate(self.nulls[k])
        middle = totals.median - nothing.median
        down = math.hypot(totals.median - totals.low, nothing.high - nothing.median)
        up = math.hypot(totals.high - totals.median, nothing.median - nothing.low)
        return PerK(Estimate(middle, middle - down, middle + up, totals.size, totals.coverage), basis or "rounds")

    def _round_checks(self, k: int) -> None:
        for process in self.processes:
            values = [r.total_us for r in process.rounds if r.k == k]
            what = f"rounds of K = {k}"
            self._repeatable(check_outliers(values, what, "invalid"))
            self._repeatable(check_modes(values, what, "ambiguous"))
            self._add(check_drift(values, what))
            self._add(check_tail(values, what))

    def _null_share(self, k: int) -> None:
        share = median(self.nulls[k]) / median([_process_median(process, k) for process in self.processes])
        if self.plan.kind == "cuda" and share > NULL_SHARE:
            self._add(
                Check(
                    name="null_share",
                    effect="informs",
                    reason=f"writing and capturing take {100 * share:.1f} % of a round (limit "
                    f"{100 * NULL_SHARE:.0f} %): an early start could hide that much",
                    next_step="a larger shape, or fewer fresh bytes per round",
                    measured=(Measurement(name="share", value=100 * share, unit="%"),),
                )
            )

    def _physics(self) -> None:
        if self.outer is None or self.floor is None:
            return
        verdict = gate(self.outer, self.floor, repeated=self.final)
        if verdict is Gate.POSSIBLE or self.floor.gate_us is None:
            return
        whole = verdict is Gate.IMPOSSIBLE
        check = Check(
            name="physics",
            effect="impossible" if whole else "ambiguous",
            finding=True,
            reason=f"{'the time' if whole else 'the lower end of the time'}, "
            f"{(self.outer.high_us if whole else self.outer.low_us):.4g} µs, lies below what the hardware allows, "
            f"{self.floor.gate_us:.4g} µs",
            next_step="suspect the cost model first (`assay deck lint`), then the ceilings (`assay device --measure`), "
            "then the clock, then the submission",
            measured=(Measurement(name="gate", value=self.floor.gate_us, unit="us"),),
        )
        if whole:
            self._add(check)
        else:
            self._repeatable(check)

    def _line(self, rungs: Mapping[int, Estimate]) -> None:
        self.line = fit_line(rungs)
        if self.line.straight:
            return
        k, residual = max(((r.k, r.residual_us) for r in self.line.rungs), key=lambda pair: abs(pair[1]))
        offset = abs(self.line.intercept_us) > self.line.intercept_limit_us + self.line.intercept_noise_us
        text = (
            f"a fixed part of {self.line.intercept_us:.4g} µs per round (limit {self.line.intercept_limit_us:.4g})"
            if offset
            else f"T(K) − w(K) is no straight line: {residual:+.4g} µs off at K = {k}"
        )
        self._repeatable(
            Check(
                name="bent_line",
                effect="ambiguous",
                finding=True,
                reason=text,
                next_step="read T(K) and w(K) in the record: calls that are merged, skipped or delayed bend the line",
                measured=(
                    Measurement(name="intercept", value=self.line.intercept_us, unit="us"),
                    Measurement(name="slope", value=self.line.slope_us, unit="us"),
                ),
            )
        )

    def _merged(self, rungs: Mapping[int, PerK]) -> None:
        """How much a call of a long round may owe to its neighbours, bounded by calls that ran alone."""
        if self.outer is None or 1 not in rungs or len(rungs) < 2:
            return
        alone, basis = rungs[1]
        if alone.median < SAMPLE_MIN_US:
            return
        self.single = alone.interval(basis)
        self.merged_gain = max(0.0, 1.0 - self.outer.median_us / self.single.median_us)
        if self.single.low_us - self.outer.high_us <= agree(self.single.median_us):
            return
        self._add(
            Check(
                name="merged_calls",
                effect="informs",
                finding=True,
                reason=f"a call alone takes {self.single.median_us:.4g} µs, one of many {self.outer.median_us:.4g} µs: "
                f"calls were merged, overlap, or pay something once per round; at most "
                f"{100 * self.merged_gain:.0f} % of a call is hidden",
                next_step="compare the inner clock, which times single calls",
                measured=(Measurement(name="gain", value=100 * self.merged_gain, unit="%"),),
            )
        )

    # Both clocks

    def _agreement(self) -> None:
        if self.outer is None:
            return
        if self.inner is None or self.inner_doubt:
            self.time = self.outer
            return
        inner, outer = self.inner, self.outer
        larger = outer if outer.median_us >= inner.median_us else inner
        self.time = larger.model_copy(
            update={"low_us": max(inner.low_us, outer.low_us), "high_us": max(inner.high_us, outer.high_us)}
        )
        difference = outer.median_us - inner.median_us
        if abs(difference) <= agree(outer.median_us):
            return
        if difference > 0:
            self.labels.append("host-bound")
        elif self.single is not None and self.single.low_us - outer.high_us > agree(self.single.median_us):
            self.labels.append("overlapping calls")
        else:
            self.labels.append("warm outer")

    def _width(self) -> None:
        if self.time is None:
            return
        width, middle = self.time.high_us - self.time.low_us, self.time.median_us
        if width <= max(WIDTH_REL * middle, WIDTH_ABS_US):
            return
        self._repeatable(
            Check(
                name="wide",
                effect="ambiguous",
                reason=f"the interval is {100 * width / middle:.1f} % of the time wide (limit {100 * WIDTH_REL:.0f} %)",
                next_step="quiet the machine, then `assay grade --careful`",
                measured=(Measurement(name="width", value=100 * width / middle, unit="%"),),
            )
        )


def _invalid(name: str, reason: str, cause: Cause, next_step: str) -> Check:
    return Check(name=name, effect="invalid", reason=reason, cause=cause, next_step=next_step)


def _by_k(rounds: Iterable[Round]) -> dict[int, list[float]]:
    grouped: dict[int, list[float]] = defaultdict(list)
    for finished in rounds:
        grouped[finished.k].append(finished.total_us)
    return dict(grouped)


def _process_median(process: ProcessTiming, k: int) -> float:
    return median([r.total_us for r in process.rounds if r.k == k])


def _scaled(value: Estimate, factor: float) -> Estimate:
    return value._replace(median=value.median * factor, low=value.low * factor, high=value.high * factor)


def _over_processes(parts: Sequence[Estimate]) -> tuple[Estimate, Basis | None]:
    """Median of the process medians with its interval, and `processes` where that is what the interval is made of.

    With too few processes it is the hull of the intervals inside them, which covers at least what each of them does.
    """
    medians = [part.median for part in parts]
    if len(parts) >= PROCESS_INTERVAL_MIN:
        return estimate(medians), "processes"
    hull = Estimate(
        median(medians),
        min(part.low for part in parts),
        max(part.high for part in parts),
        min(part.size for part in parts),
        min(part.coverage for part in parts),
    )
    return hull, None
