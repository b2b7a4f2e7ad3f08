"""The inner clock: the worker's claim per call. It may only raise a time, so a doubt about it costs nothing but itself.

What the device did to it, throttling above all, is a different matter: that leaves no usable time at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelassay.records import Check, Floor, Interval, Measurement, ProcessTiming, ShapePlan
from kernelassay.timing._physics import Gate, gate
from kernelassay.timing._samples import ShapeSamples
from kernelassay.timing._statistics import (
    check_drift,
    check_modes,
    check_outliers,
    check_tail,
    check_warm_up,
    invalid,
    order_estimate,
    over_processes,
)

PAIR_FLOOR_FACTOR = 3.0
"""An inner median below this many times the clock's own reading around nothing is not resolved. [estimated]"""
MAX_DISCARD = 0.20
MAX_DISCARD_RUN = 10
"""Throttled samples above this share, or this many in a row: INVALID. [estimated]"""


class InnerClock:
    """The claim of one shape, reduced: its interval if it has one, the doubt that makes it unusable, the checks."""

    def __init__(
        self, plan: ShapePlan, samples: ShapeSamples, floor: Floor | None, processes: Sequence[ProcessTiming]
    ) -> None:
        self.plan, self.samples, self.floor, self.processes = plan, samples, floor, processes
        self.checks: list[Check] = []
        self.interval: Interval | None = None
        self.doubt = ""
        self._reduce()

    def _add(self, check: Check | None) -> None:
        if check is not None:
            self.checks.append(check)

    def _reduce(self) -> None:
        if self.samples.inner_fault:
            self.doubt = self.samples.inner_fault
            return
        series = [process.inner_us for process in self.processes if process.inner_us]
        accepted = [len(process.inner_us) for process in self.processes]
        self._throttled()
        if not series or min(accepted) < self.plan.inner_accepted:
            self.doubt = (
                f"{min(accepted, default=0)} of {self.plan.inner_samples} inner samples are usable, "
                f"{self.plan.inner_accepted} are needed"
            )
            self._add(
                Check(
                    name="few_inner_samples",
                    effect="inner_unusable",
                    reason=self.doubt,
                    next_step="read the discards in the record; a worker that sends no durations has no inner clock",
                )
            )
            return
        for values in series:
            self._add(check_warm_up(values, "inner samples"))
            self._add(check_drift(values, "inner samples"))
            self._add(check_modes(values, "inner samples"))
            self._add(check_tail(values, "inner samples"))
            self._doubt(check_outliers(values, "inner samples", "inner_unusable"))
        combined, basis = over_processes([order_estimate(values) for values in series])
        self.interval = combined.interval(basis or "samples")
        limit = PAIR_FLOOR_FACTOR * (self.samples.pair_floor_us or 0.0)
        if math.isfinite(limit) and self.interval.median_us < limit:
            self._doubt(
                Check(
                    name="inner_unresolved",
                    effect="inner_unusable",
                    reason=f"the inner clock reads {limit / PAIR_FLOOR_FACTOR:.3g} µs around nothing and "
                    f"{self.interval.median_us:.3g} µs around the call",
                    next_step="nothing: the outer clock counts",
                )
            )
        self._against_physics()

    def _doubt(self, check: Check | None) -> None:
        self._add(check)
        if check is not None and check.effect == "inner_unusable" and not self.doubt:
            self.doubt = check.reason

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
                    invalid(
                        "throttled",
                        f"throttled: {len(slow)} of {total} samples ran on a lowered clock",
                        "device",
                        "cool the device or raise its power limit, then `assay grade` again",
                    )
                )

    def _against_physics(self) -> None:
        if self.interval is None or self.floor is None or self.floor.gate_us is None:
            return
        below = sum(value < self.floor.gate_us for process in self.processes for value in process.inner_us)
        if not below:
            return
        whole = gate(self.interval, self.floor, repeated=True) is Gate.IMPOSSIBLE
        check = Check(
            name="inner_below_physics",
            effect="inner_unusable" if whole else "informs",
            finding=True,
            reason=f"{below} inner samples are shorter than the hardware allows ({self.floor.gate_us:.3g} µs)",
            next_step="suspect the cost model first, then the worker's clock: `assay deck lint`",
            measured=(Measurement(name="below", value=below),),
        )
        self._doubt(check)
