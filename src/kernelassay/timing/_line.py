"""The line through T(K) − w(K): a straight one through about zero, or the calls of a round are not what they seem."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kernelassay.records import LineFit, Rung
from kernelassay.timing._samples import SAMPLE_MIN_US
from kernelassay.timing._statistics import Estimate

AGREE_ABS_US = 2.0
AGREE_REL = 0.05
"""Beyond the larger of both, a label says why the clocks differ: largest honest difference 1.7 µs; ±1.3 % times about
4. [measured]"""
BEND_REL = AGREE_REL
"""A rung may lie this far from the line beyond its noise: what the clocks may honestly differ by. [measured]"""


def agree(value_us: float) -> float:
    """How far the clocks may honestly differ at `value_us`, microseconds."""
    return max(AGREE_ABS_US, AGREE_REL * value_us)


def fit_line(rungs: Mapping[int, Estimate]) -> LineFit:
    """T(K) − w(K) = a + b·K, least squares with weights 1/noise², and whether the rungs lie on it.

    Straight: |a| is at most A_MAX = max(`AGREE_ABS_US` · K_max, `AGREE_REL` · D(K_max)) beyond its noise (it moves the
    value per call by no more than the clocks may differ), and no rung lies off the line by more than its noise and
    `BEND_REL` of itself.

    Args:
        rungs: K → estimate of T(K) − w(K), microseconds; two at least.

    Raises:
        ValueError: fewer than two rungs.
    """
    if len(rungs) < 2:
        raise ValueError("a line needs two rungs")
    top = max(rungs)
    unit = max(max(abs(rung.median) for rung in rungs.values()), SAMPLE_MIN_US)  # keeps squares finite
    noise = {k: max(rung.noise, 1e-3 * abs(rung.median), 1e-6 * unit) / unit for k, rung in rungs.items()}
    weight = {k: 1.0 / noise[k] ** 2 for k in rungs}
    total = math.fsum(weight.values())
    k_mean = math.fsum(weight[k] * k for k in rungs) / total
    d_mean = math.fsum(weight[k] * rungs[k].median / unit for k in rungs) / total
    k_spread = math.fsum(weight[k] * (k - k_mean) ** 2 for k in rungs)
    slope = math.fsum(weight[k] * (k - k_mean) * (rungs[k].median / unit - d_mean) for k in rungs) / k_spread
    intercept = d_mean - slope * k_mean
    intercept_noise = unit * math.sqrt(1.0 / total + k_mean**2 / k_spread)
    limit = max(AGREE_ABS_US * top, AGREE_REL * abs(rungs[top].median))
    listed = tuple(
        Rung(
            k=k,
            value_us=rung.median,
            noise_us=rung.noise,
            residual_us=rung.median - unit * (intercept + slope * k),
            allowed_us=rung.noise + max(BEND_REL * abs(rung.median), AGREE_ABS_US),
        )
        for k, rung in sorted(rungs.items())
    )
    level = abs(unit * intercept) <= limit + intercept_noise
    return LineFit(
        intercept_us=unit * intercept,
        intercept_noise_us=intercept_noise,
        intercept_limit_us=limit,
        slope_us=unit * slope,
        rungs=listed,
        straight=level and all(abs(rung.residual_us) <= rung.allowed_us for rung in listed),
    )
