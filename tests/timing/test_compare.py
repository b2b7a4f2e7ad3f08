"""Comparisons of simulated pairs: how often identical code is told apart, and how often a real difference is found."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelassay.records import Check
from kernelassay.timing import Context, Pair, Relation, VersusResult, abba, compare

CONTEXT = Context(timer="outer", device="d", deck="p", cache_policy="cold")


def pairs(seed: int, slowdown: float = 0.0, noise: float = 0.003, drift: float = 0.0, count: int = 8) -> list[Pair]:
    """Neighbouring processes in ABBA order; `drift` per process, linear."""
    rng = np.random.default_rng(seed)
    order = abba(count)
    times = [
        100 * (1 + (slowdown if arm == "B" else 0)) * (1 + drift * i) * (1 + noise * float(rng.standard_normal()))
        for i, arm in enumerate(order)
    ]
    return [
        Pair(*(times[2 * i : 2 * i + 2] if order[2 * i] == "A" else times[2 * i : 2 * i + 2][::-1]))
        for i in range(count)
    ]


def relation(made: list[Pair], effect_floor: float = 0.005) -> Relation:
    return compare({"s": made}, CONTEXT, CONTEXT, effect_floor=effect_floor).overall.relation


def test_the_order_alternates_and_cancels_drift() -> None:
    assert abba(8) == "ABBABAABABBABAAB"
    order = abba(4)
    assert sum(i for i, arm in enumerate(order) if arm == "A") == sum(i for i, arm in enumerate(order) if arm == "B")


@pytest.mark.parametrize("noise", [0.001, 0.003, 0.01, 0.03])
def test_identical_code_is_rarely_told_apart(noise: float) -> None:
    claims = [relation(pairs(seed, noise=noise)) for seed in range(300)]
    wrong = sum(claim in (Relation.FASTER, Relation.SLOWER) for claim in claims)
    assert wrong <= 7  # 0.8 % claimed: 2.3 of 300, and three standard errors


def test_injected_slowdowns_are_found_at_the_rates_of_the_page() -> None:
    found = {
        (slow, noise): sum(relation(pairs(seed, slow, noise)) is Relation.SLOWER for seed in range(100))
        for slow in (0.005, 0.01, 0.02, 0.05, 0.10)
        for noise in (0.003, 0.01)
    }
    assert found[0.10, 0.01] >= 98 and found[0.10, 0.003] == 100
    assert found[0.05, 0.01] >= 90 and found[0.05, 0.003] == 100
    assert found[0.02, 0.003] >= 95
    assert found[0.005, 0.003] <= 5  # the effect floor itself is not claimed


def test_a_speedup_is_found_and_equal_code_is_the_same() -> None:
    assert relation(pairs(1, -0.05)) is Relation.FASTER
    assert relation(pairs(2, noise=0.0005)) is Relation.SAME


def test_drift_is_no_difference() -> None:
    claims = [relation(pairs(seed, noise=0.002, drift=0.01)) for seed in range(50)]
    assert not {Relation.FASTER, Relation.SLOWER} & set(claims)


def test_a_tie_says_what_would_settle_it() -> None:
    result = compare({"s": pairs(3, 0.006, 0.02)}, CONTEXT, CONTEXT).shapes[0]
    assert result.relation is Relation.AMBIGUOUS
    assert result.needed is not None and result.needed > 8
    assert "assay compare" in result.next_step


def test_few_pairs_support_no_comparison() -> None:
    result = compare({"s": pairs(4, 0.5, 0.001, count=3)}, CONTEXT, CONTEXT).overall
    assert result.relation is Relation.AMBIGUOUS and result.needed == 8


def test_the_devices_own_differences_raise_the_floor() -> None:
    assert relation(pairs(5, 0.02, 0.001)) is Relation.SLOWER
    assert relation(pairs(5, 0.02, 0.001), effect_floor=0.03) is Relation.SAME


def test_cycles_that_disagree_are_ambiguous() -> None:
    slow_clock = [Pair(p.a_us, p.b_us, 2_000.0, 1_800.0) for p in pairs(6, 1 / 0.9 - 1, 0.001)]
    same_clock = [Pair(p.a_us, p.b_us, 2_000.0, 2_000.0) for p in pairs(6, 1 / 0.9 - 1, 0.001)]
    results = [compare({"s": made}, CONTEXT, CONTEXT).shapes[0] for made in (slow_clock, same_clock)]
    assert [result.relation for result in results] == [Relation.AMBIGUOUS, Relation.SLOWER]
    assert "cycles" in results[0].reason


@pytest.mark.parametrize("name", ["timer", "device", "deck", "cache_policy"])
def test_unlike_measurements_are_not_compared(name: str) -> None:
    other = Context(**({"timer": "outer", "device": "d", "deck": "p", "cache_policy": "cold"} | {name: "other"}))
    result = compare({"s": pairs(7, 0.5)}, CONTEXT, other)
    assert result.overall.relation is Relation.INVALID and name in result.overall.reason


def test_an_invalid_arm_and_scattered_processes_are_not_compared() -> None:
    check = Check(name="x", effect="invalid", reason="throttled", next_step="cool it")
    assert compare({"s": pairs(8)}, CONTEXT, CONTEXT, checks=[check]).overall.reason == "throttled"
    assert relation(pairs(9, noise=0.3)) is Relation.INVALID
    with pytest.raises(ValueError, match="next: "):
        compare({}, CONTEXT, CONTEXT)


def test_over_all_shapes_the_geomean_decides() -> None:
    result = compare({"up": pairs(10, 0.10, 0.001), "down": pairs(11, 1 / 1.10 - 1, 0.001)}, CONTEXT, CONTEXT)
    assert [shape.relation for shape in result.shapes] == [Relation.SLOWER, Relation.FASTER]
    assert result.overall.relation is Relation.SAME
    assert VersusResult.model_validate_json(result.model_dump_json()) == result


anything = st.floats() | st.floats(1e-3, 1e6)


@settings(deadline=None)
@given(st.lists(st.builds(Pair, anything, anything, st.none() | anything, st.none() | anything), max_size=12))
def test_any_pairs_give_a_finite_result(made: list[Pair]) -> None:
    result = compare({"s": made}, CONTEXT, CONTEXT)
    for shape in (result.overall, *result.shapes):
        assert all(math.isfinite(v) for v in (shape.ratio, shape.low, shape.high) if v is not None)
