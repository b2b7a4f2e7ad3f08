"""Medians, intervals and checks against known distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelassay.timing import _statistics as s

values = st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("count", "rank", "coverage"),
    [
        (1, 1, 0.0),
        (3, 1, 0.75),
        (5, 1, 0.9375),
        (6, 1, 0.96875),
        (8, 1, 0.9921875),
        (9, 2, 0.9609),
        (10, 2, 0.9785),
        (15, 4, 0.9648),
        (50, 18, 0.9672),
    ],
)
def test_order_statistics_have_their_binomial_coverage(count: int, rank: int, coverage: float) -> None:
    estimate = s.order_estimate([float(i) for i in range(1, count + 1)])
    assert (estimate.low, estimate.high) == (rank, count + 1 - rank)
    assert estimate.coverage == pytest.approx(coverage, abs=1e-4)


def test_order_statistics_cover_what_they_claim() -> None:
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(2_000):
        estimate = s.order_estimate(rng.exponential(size=15).tolist())
        inside += estimate.low <= math.log(2) <= estimate.high
    assert inside / 2_000 == pytest.approx(0.9648, abs=0.013)  # three standard errors


@settings(deadline=None)
@given(values)
def test_an_estimate_holds_its_median_and_lies_among_the_values(series: list[float]) -> None:
    estimate = s.order_estimate(series)
    assert min(series) <= estimate.low <= estimate.median <= estimate.high <= max(series)


def test_the_bootstrap_is_for_twenty_and_more() -> None:
    with pytest.raises(ValueError, match="below 20"):
        s.bootstrap_estimate([1.0] * 19)
    series = np.random.default_rng(2).normal(100, 1, 40).tolist()
    estimate = s.estimate(series)
    assert 99 < estimate.low < estimate.median < estimate.high < 101
    assert s.estimate(series) == estimate  # the same samples, the same interval
    assert s.estimate([3.0] * 30)[:3] == (3.0, 3.0, 3.0)


@pytest.mark.parametrize(("sigma", "needed"), [(0.0, 1), (0.003, 2), (0.005, 4), (0.01, 16), (0.02, 62)])
def test_processes_needed_is_the_published_table(sigma: float, needed: int) -> None:
    assert s.processes_needed(sigma) == needed


def test_relative_deviation_and_mad() -> None:
    assert s.relative_sd([1.0]) == s.relative_sd([0.0, 0.0]) == s.relative_sd([-1.0, 1.0]) == 0.0
    assert s.relative_sd([90.0, 100.0, 110.0]) == pytest.approx(0.1)
    assert math.isfinite(s.relative_sd([1e300, 2e300]))
    series = np.random.default_rng(3).normal(100, 2, 2_000).tolist()
    assert s.mad_sigma(series) == pytest.approx(2, rel=0.1)
    assert s.mad_sigma([*series, 1e9]) == pytest.approx(2, rel=0.1)


def test_no_values_have_no_median() -> None:
    for function in (s.median, s.order_estimate, s.mad_sigma):
        with pytest.raises(ValueError, match="no values"):
            function([])


def test_two_modes_are_seen_and_one_is_not_taken_for_two() -> None:
    rng = np.random.default_rng(4)
    assert s.modes([100.0, 120.0] * 5) is None  # too few to tell
    assert s.modes([100 + (10 if i % 2 else 0) + 0.1 * float(rng.standard_normal()) for i in range(15)]) is not None
    assert s.modes([100.0] * 15) is None
    alarms = sum(
        s.modes((100 + 5 * rng.standard_normal(n)).tolist()) is not None for n in (12, 15, 50) for _ in range(400)
    )
    assert alarms <= 12  # 1 % of 1,200


def test_false_alarms_of_the_other_checks_are_rare() -> None:
    rng = np.random.default_rng(5)
    alarms = {"drift": 0, "tail": 0, "warm_up": 0, "outliers": 0}
    for _ in range(400):
        series = (100 + float(rng.uniform(0.2, 5)) * rng.standard_normal(15)).tolist()
        alarms["drift"] += s.check_drift(series, "x") is not None
        alarms["tail"] += s.check_tail(series, "x") is not None
        alarms["warm_up"] += s.check_warm_up(series, "x") is not None
        alarms["outliers"] += s.check_outliers(series, "x", "ambiguous") is not None
    assert alarms["outliers"] == 0
    assert alarms["tail"] <= 20
    assert alarms["drift"] <= 60 and alarms["warm_up"] <= 60, alarms


def test_every_check_gives_a_reason_and_a_next_step() -> None:
    step = [100.0] * 7 + [120.0] * 8
    found = [
        s.check_processes_steady([100, 130, 160]),
        s.check_processes_enough([100, 101, 103]),
        s.check_outliers([100.0] * 12 + [200.0] * 3, "x", "ambiguous"),
        s.check_warm_up([150.0, 140.0, *[100.0] * 13], "x"),
        s.check_drift(step, "x"),
        s.check_modes(step, "x"),
        s.check_tail([100.0] * 12 + [130.0] * 3, "x"),
    ]
    for check in found:
        assert check is not None and check.reason and check.next_step
    assert [check.effect for check in found if check is not None and check.name == "outliers"] == ["ambiguous"]


def test_one_interruption_is_told_and_spoils_nothing() -> None:
    check = s.check_outliers([100.0] * 14 + [900.0], "x", "ambiguous")
    assert check is not None and check.effect == "informs"
    assert s.check_outliers([1.0] * 14 + [2.5], "x", "ambiguous") is None  # below the clock's own 2 µs


@settings(deadline=None)
@given(values)
def test_checks_never_fail_on_positive_samples(series: list[float]) -> None:
    for check in (s.check_warm_up, s.check_drift, s.check_modes, s.check_tail):
        check(series, "x")
    s.check_outliers(series, "x", "ambiguous")
    s.check_processes_steady(series)
    s.check_processes_enough(series)
