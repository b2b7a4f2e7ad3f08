"""Both clocks of one shape, reduced step by step; a step may add checks, labels and values, never raise.

`outer = (T(K) − w(K)) / K` at the largest K, where w is the judge's own round with a clean worker: nothing that a
submission's process executed is ever subtracted.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kernelassay.records import (
    Check,
    Floor,
    Interval,
    LineFit,
    Measurement,
    ProcessTiming,
    Round,
    ShapePlan,
)
from kernelassay.timing._inner import InnerClock
from kernelassay.timing._line import agree, fit_line
from kernelassay.timing._physics import Gate, gate
from kernelassay.timing._plan import MIN_ROUNDS
from kernelassay.timing._samples import SAMPLE_MIN_US, ShapeSamples
from kernelassay.timing._statistics import (
    Basis,
    Estimate,
    check_drift,
    check_modes,
    check_outliers,
    check_processes_enough,
    check_processes_steady,
    check_tail,
    estimate,
    invalid,
    median,
    order_estimate,
    over_processes,
)

WIDTH_REL = 0.03
"""A time whose whole interval is wider than this share of it is AMBIGUOUS. Simulated with one repetition allowed, ten
grades that all pass then spread by 2.5 % at most, whatever the noise; 4 % let 3.4 % pass. Rounds that scatter by 1 %
are confirmed in all of 250 grades, by 1.5 % in 92 %, by 2 % in 59 %. [computed]"""
WIDTH_ABS_US = 0.6
"""Widths below it never decide: `WIDTH_REL` of 20 µs, the shortest time for which a bar is claimed. [computed]"""
NULL_SHARE = 0.02
"""On a GPU, w(K)/T(K): what an early start could hide at most. [rule]"""
BAD_OUTER_SHARE = 0.2
"""Rounds of the judge's clock that are no duration, above this share: the clock itself is broken. [estimated]"""


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
        self.repeatable: list[Check] = []
        self.inner: Interval | None = None
        self.outer: Interval | None = None
        self.single: Interval | None = None
        self.time: Interval | None = None
        self.line: LineFit | None = None
        self.merged_gain: float | None = None
        self.inner_doubt = ""

    def run(self) -> None:
        self._faults()
        claim = InnerClock(self.plan, self.samples, self.floor, self.processes)
        self.inner, self.inner_doubt = claim.interval, claim.doubt
        self.checks += claim.checks
        k = self._largest_k()
        if k is not None:
            self._outer_clock(k)
        self._agreement()
        self._width()
        if self.floor is not None and self.floor.cache_resident:
            self.labels.append("cache-resident")
        if self.samples.displaced_by_reading:
            self.labels.append("code displaced with the data")
        if self.samples.copied_outputs:
            self.labels.append("outputs copied inside the clock")

    def _add(self, check: Check | None) -> None:
        if check is not None:
            self.checks.append(check)

    def _repeatable(self, check: Check | None) -> None:
        """Add a check that twice the rounds may lift."""
        if check is not None:
            self.checks.append(check)
            self.repeatable.append(check)

    def _faults(self) -> None:
        for fault in self.samples.device_faults:
            self._add(invalid("device", fault, "device", "quiet the device, then `assay grade` again"))
        voided = len(self.samples.processes) - len(self.processes)
        if not self.processes:
            why = "every process was void: its calibration moved" if voided else "no process was timed"
            self._add(invalid("no_process", why, "device", "quiet the machine, then `assay grade` again"))
        elif voided:
            self._add(
                Check(
                    name="void_process",
                    effect="informs",
                    reason=f"{voided} of {len(self.samples.processes)} processes do not count: their calibration moved",
                    next_step="nothing, if enough are left; otherwise quiet the machine and grade again",
                )
            )

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
                invalid(
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
                invalid(
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
                invalid(
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
        totals, basis = over_processes(
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
            self._repeatable(check_outliers(values, what, "ambiguous"))
            self._add(check_modes(values, what))
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
        self.time = outer if outer.median_us >= inner.median_us else inner  # with the interval of the clock that counts
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
        """The clock that counts must have settled, and the judge's own in any case: it might be the larger one."""
        clocks = [clock for clock in (self.time, self.outer) if clock is not None]
        if not clocks or self.time is None:
            return
        wide = max(clocks, key=lambda clock: clock.high_us - clock.low_us)
        width, middle = wide.high_us - wide.low_us, wide.median_us
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


def _by_k(rounds: Iterable[Round]) -> dict[int, list[float]]:
    grouped: dict[int, list[float]] = defaultdict(list)
    for finished in rounds:
        grouped[finished.k].append(finished.total_us)
    return dict(grouped)


def _process_median(process: ProcessTiming, k: int) -> float:
    return median([r.total_us for r in process.rounds if r.k == k])


def _scaled(value: Estimate, factor: float) -> Estimate:
    return value._replace(median=value.median * factor, low=value.low * factor, high=value.high * factor)
