"""Medians, intervals and checks. A check returns None, or a reason with a next step; none of them changes a number.

Values inside one process are not independent: the unit of statistics is the process median, and an interval that is
made of less says so. Few values get order statistics, which assume nothing about the distribution; the bootstrap is
for twenty and more. All times are microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from kernelassay.records import Cause, Check, Interval, Measurement

COVERAGE = 0.95
"""Wanted of an interval; fewer than six values cannot reach it and say what they reach. [convention]"""
BOOTSTRAP_MIN = 20
"""BCa covers too little below 20 values. [computed]"""
BOOTSTRAP_RESAMPLES = 2000
"""Monte Carlo error of a 95 % end point is then a few per cent of the interval's width. [computed]"""
PROCESSES_RESOLUTION = 0.01
"""What `processes_needed` resolves at 95 %, pyperf's value. [read]"""
UNSTEADY_SD = 0.10
"""Relative standard deviation of process medians from which a time is no time. [read: pyperf]"""
OUTLIER_DISTANCE = 0.50
"""A sample this far from the median, relative, is an outlier. [read: pyperf]"""
OUTLIER_SHARE = 0.05
OUTLIER_COUNT = 3
"""Outliers spoil the samples above this share and from this count: 5 % of 50 samples; a shorter series cannot tell
one interruption by the machine from a habit. [read: pyperf; the count computed]"""
OUTLIER_ABS_US = 2.0
"""A distance below this is the clock's, whatever its share of a short time. [measured: `AGREE_ABS`]"""
DRIFT_LIMIT = 0.03
"""Between the first and the last third of a process. [estimated]"""
DRIFT_MIN_COUNT = 9
"""Three values per third. [computed]"""
BIMODAL_MIN_COUNT = 12
BIMODAL_SHARE = 0.2
BIMODAL_DISTANCE = 0.03
"""Two modes: a gap wider than the spread of either side, at least 3 % of the median, with a fifth of the samples and
three of them on each side. Simulated normal samples of 12 to 50 pass for bimodal in less than 1 %. [computed]"""
TAIL_SIGMAS = 5.0
TAIL_SHARE = 0.1
"""A heavy tail: more than a tenth of the samples lie above median + 5 σ, σ from the MAD. [estimated]"""
WARM_UP_COUNT = 4
"""Leading samples above Q3 + 1.5 IQR of the second half count as warm-up; more than a quarter of a series is drift, and
fewer than this many samples say nothing. [read: pyperf; the count estimated]"""
MAD_TO_SIGMA = 1.4826
"""σ of a normal distribution over its median absolute deviation. [computed]"""


PROCESS_INTERVAL_MIN = 6
"""Fewer process medians have no interval of their own worth the name: [min, max] of 6 covers 96.9 %. [computed]"""

Basis = Literal["samples", "rounds", "processes"]
"""What an interval is made of."""


class Estimate(NamedTuple):
    """A median with its interval; may be negative before it becomes a time. Microseconds."""

    median: float
    low: float
    high: float
    size: int
    coverage: float

    @property
    def noise(self) -> float:
        """The longer arm of the interval."""
        return max(self.median - self.low, self.high - self.median)

    def interval(self, basis: Basis) -> Interval:
        """As a record; an end below zero is cut to zero. The median must not be negative."""
        low = max(self.low, 0.0)
        return Interval(
            median_us=self.median,
            low_us=low,
            high_us=self.high,
            basis=basis,
            count=self.size,
            coverage=self.coverage,
        )


def median(values: Sequence[float]) -> float:
    """The median; the mean of the two middle values of an even count.

    Raises:
        ValueError: there is none.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low + (high - low) / 2  # not (low + high) / 2: equal values stay exactly equal


def order_estimate(values: Sequence[float], coverage: float = COVERAGE) -> Estimate:
    """Median and the narrowest interval [x₍ᵣ₎, x₍ₙ₊₁₋ᵣ₎] that covers it with probability `coverage`.

    P = 1 − 2·P(Bin(n, ½) < r), exact for any continuous distribution. Where even [min, max] covers less, that is the
    interval, and `coverage` of the result says what it reaches (n = 1: 0).

    Raises:
        ValueError: there are no values.
    """
    ordered = sorted(values)
    count = len(ordered)
    middle = median(ordered)
    rank, below = 1, 1  # below · 2⁻ⁿ = P(Bin(n, ½) < rank), in whole numbers
    while 2 * (rank + 1) <= count and 1.0 - 2 * (below + math.comb(count, rank)) / 2**count >= coverage:
        below += math.comb(count, rank)
        rank += 1
    reached = 1.0 - 2 * below / 2**count
    return Estimate(middle, ordered[rank - 1], ordered[count - rank], count, max(reached, 0.0))


def bootstrap_estimate(values: Sequence[float], coverage: float = COVERAGE) -> Estimate:
    """Median with its BCa bootstrap interval; order statistics where BCa has no answer (equal values, say).

    Raises:
        ValueError: fewer than `BOOTSTRAP_MIN` values.
    """
    if len(values) < BOOTSTRAP_MIN:
        raise ValueError(f"the bootstrap covers too little below {BOOTSTRAP_MIN} values; use order statistics")
    from scipy import stats  # half a second that only a regrade of many processes needs

    plain = order_estimate(values, coverage)
    if plain.low == plain.high:
        return plain
    with np.errstate(all="ignore"):
        result = stats.bootstrap(
            (np.asarray(values, dtype=float),),
            np.median,
            n_resamples=BOOTSTRAP_RESAMPLES,
            confidence_level=coverage,
            method="BCa",
            rng=np.random.default_rng(0),  # the same samples give the same interval
        )
    low, high = float(result.confidence_interval.low), float(result.confidence_interval.high)
    if not (math.isfinite(low) and math.isfinite(high)) or not low <= plain.median <= high:
        return plain
    return Estimate(plain.median, low, high, len(values), coverage)


def estimate(values: Sequence[float], coverage: float = COVERAGE) -> Estimate:
    """Median with the interval that the count allows: order statistics, from `BOOTSTRAP_MIN` values on BCa.

    Raises:
        ValueError: there are no values.
    """
    return (bootstrap_estimate if len(values) >= BOOTSTRAP_MIN else order_estimate)(values, coverage)


def over_processes(parts: Sequence[Estimate]) -> tuple[Estimate, Basis | None]:
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


def relative_sd(values: Sequence[float]) -> float:
    """Sample standard deviation over the mean's size; 0 for fewer than two values or a mean of zero."""
    if len(values) < 2:
        return 0.0
    largest = max(abs(value) for value in values)
    if largest == 0.0:
        return 0.0
    scaled = [value / largest for value in values]  # keeps squares finite
    mean = math.fsum(scaled) / len(scaled)
    if mean == 0.0:
        return 0.0
    variance = math.fsum((value - mean) ** 2 for value in scaled) / (len(scaled) - 1)
    return math.sqrt(variance) / abs(mean)


def mad_sigma(values: Sequence[float]) -> float:
    """Standard deviation from the median absolute deviation: deaf to outliers.

    Raises:
        ValueError: there are no values.
    """
    middle = median(values)
    return MAD_TO_SIGMA * median([abs(value - middle) for value in values])


def processes_needed(sigma: float, resolution: float = PROCESSES_RESOLUTION) -> int:
    """Processes that resolve a relative difference of `resolution` at 95 %: ⌈4·1.96²·σ²/resolution²⌉, at least 1.

    Args:
        sigma: Relative standard deviation of the process medians.
        resolution: Relative difference to be resolved, above zero.
    """
    return max(1, math.ceil(4 * 1.96**2 * (sigma / resolution) ** 2 - 1e-9))


def warm_up(values: Sequence[float]) -> int:
    """How many leading samples lie above Q3 + 1.5 IQR of the second half, counted up to a quarter of all."""
    if len(values) < WARM_UP_COUNT:
        return 0
    low, high = (float(q) for q in np.quantile(values[len(values) // 2 :], (0.25, 0.75)))
    limit = max(high + 1.5 * (high - low), high * 1.01)  # equal values have no IQR; 1 % is not cold
    leading = 0
    while leading < len(values) // 4 and values[leading] > limit:
        leading += 1
    return leading


def drift(values: Sequence[float]) -> float:
    """Relative change from the median of the first third to that of the last; 0 for too few values."""
    if len(values) < DRIFT_MIN_COUNT:
        return 0.0
    third = len(values) // 3
    first, last = median(values[:third]), median(values[-third:])
    return last / first - 1.0 if first > 0 else 0.0


def modes(values: Sequence[float]) -> tuple[float, float] | None:
    """The medians of two separate groups of samples, or None where there is one group (see `BIMODAL_DISTANCE`)."""
    ordered = sorted(values)
    count = len(ordered)
    least = max(3, math.ceil(BIMODAL_SHARE * count))
    if count < BIMODAL_MIN_COUNT:
        return None
    split = max(range(least, count - least + 1), key=lambda i: ordered[i] - ordered[i - 1])
    low, high = ordered[:split], ordered[split:]
    spread = max(low[-1] - low[0], high[-1] - high[0])
    gap = high[0] - low[-1]
    if gap <= spread or gap < BIMODAL_DISTANCE * abs(median(ordered)):
        return None
    return median(low), median(high)


def tail_share(values: Sequence[float]) -> float:
    """Share of the values above median + `TAIL_SIGMAS`·σ, σ from the MAD (at least 1 % of the median)."""
    middle = median(values)
    limit = middle + TAIL_SIGMAS * max(mad_sigma(values), 0.01 * abs(middle))
    return sum(value > limit for value in values) / len(values)


def invalid(name: str, reason: str, cause: Cause, next_step: str) -> Check:
    """A check that leaves the shape without a usable time."""
    return Check(name=name, effect="invalid", reason=reason, cause=cause, next_step=next_step)


def _percent(share: float) -> Measurement:
    return Measurement(name="share", value=100.0 * share, unit="%")


def check_processes_steady(medians: Sequence[float]) -> Check | None:
    """Process medians scatter by `UNSTEADY_SD` or more: no usable time."""
    sd = relative_sd(medians)
    if len(medians) < 3 or sd < UNSTEADY_SD:
        return None
    return Check(
        name="unsteady_processes",
        effect="invalid",
        cause="device",
        reason=f"the medians of {len(medians)} processes scatter by {100 * sd:.1f} % (limit {100 * UNSTEADY_SD:.0f} %)",
        next_step="quiet the machine, then `assay grade` again",
        measured=(_percent(sd),),
    )


def check_processes_enough(medians: Sequence[float]) -> Check | None:
    """Fewer processes ran than a comparison at 1 % needs; a grade only widens its interval."""
    needed = processes_needed(relative_sd(medians)) if len(medians) >= 2 else 1
    if len(medians) >= needed:
        return None
    return Check(
        name="few_processes",
        effect="informs",
        reason=f"{len(medians)} processes ran; telling 1 % apart at this scatter needs {needed}",
        next_step=f"`assay compare` with {needed} processes before claiming a difference of 1 %",
        measured=(Measurement(name="processes_needed", value=needed),),
    )


def check_outliers(values: Sequence[float], what: str, effect: Literal["inner_unusable", "ambiguous"]) -> Check | None:
    """Samples far from the median: told, and from `OUTLIER_COUNT` and `OUTLIER_SHARE` on with `effect`."""
    middle = median(values)
    limit = max(OUTLIER_DISTANCE * middle, OUTLIER_ABS_US)
    far = sum(abs(value - middle) >= limit for value in values)
    if not far:
        return None
    spoilt = far >= OUTLIER_COUNT and far > OUTLIER_SHARE * len(values)
    return Check(
        name="outliers",
        effect=effect if spoilt else "informs",
        reason=f"{far} of {len(values)} {what} lie {100 * OUTLIER_DISTANCE:.0f} % or more from their median",
        next_step="look for other work on the machine, then `assay grade` again",
        measured=(Measurement(name="outliers", value=far), Measurement(name="samples", value=len(values))),
    )


def check_warm_up(values: Sequence[float], what: str) -> Check | None:
    """The first samples are slower than the settled ones."""
    leading = warm_up(values)
    if not leading:
        return None
    return Check(
        name="warm_up",
        effect="informs",
        reason=f"the first {leading} of {len(values)} {what} were not warm yet",
        next_step="nothing: the median does not follow them; finish lazy work in the first, untimed calls",
        measured=(Measurement(name="leading", value=leading),),
    )


def check_drift(values: Sequence[float], what: str) -> Check | None:
    """The last third differs from the first by more than `DRIFT_LIMIT` and by more than its noise."""
    change = drift(values)
    if abs(change) <= DRIFT_LIMIT:
        return None
    third = len(values) // 3
    noise = max(mad_sigma(values[:third]), mad_sigma(values[-third:])) / median(values)
    if abs(change) <= 2 * noise:
        return None
    return Check(
        name="drift",
        effect="informs",
        reason=f"{what} moved by {100 * change:+.1f} % from the first third of the process to the last",
        next_step="check the machine's clock and temperature, then `assay grade` again",
        measured=(Measurement(name="drift", value=100 * change, unit="%"),),
    )


def check_modes(values: Sequence[float], what: str) -> Check | None:
    """The samples fall into two groups. It decides nothing by itself: where both groups reach into the interval of the
    median, the interval is too wide for a time; where they do not, the smaller group was an interruption.
    """
    found = modes(values)
    if found is None:
        return None
    return Check(
        name="bimodal",
        effect="informs",
        reason=f"{what} fall into two groups, around {found[0]:.4g} and {found[1]:.4g} µs",
        next_step="look for two clock states, two cache states or two code paths, then `assay grade` again",
        measured=(
            Measurement(name="low_mode", value=found[0], unit="us"),
            Measurement(name="high_mode", value=found[1], unit="us"),
        ),
    )


def check_tail(values: Sequence[float], what: str) -> Check | None:
    """Too many samples far above the median for its spread to mean much."""
    share = tail_share(values)
    if share <= TAIL_SHARE:
        return None
    return Check(
        name="heavy_tail",
        effect="informs",
        reason=f"{100 * share:.0f} % of the {what} lie more than {TAIL_SIGMAS:.0f} σ above their median",
        next_step="look for other work on the machine, then `assay grade` again",
        measured=(_percent(share),),
    )
