"""A forged clock is told from an honest one, and from an honest one on a busy machine."""

import random

import pytest

from kernelassay.timing import FORGED_SHARE, claimed_share

LOW, TOP, CALL_US = 16, 64, 40.0
NULLS = [(k, 300.0 + 5.0 * k) for k in (1, LOW, TOP) for _ in range(5)]


def a_round(k: int, *, outside_us: float = 0.0, told: float = 1.0) -> tuple[tuple[int, float], float]:
    """A round as the judge saw it, and what the worker claims of it."""
    return (k, 300.0 + 5.0 * k + k * CALL_US + outside_us), told * k * CALL_US


def share(rounds: list[tuple[tuple[int, float], float]]) -> float | None:
    return claimed_share([r for r, _ in rounds], [c for _, c in rounds], NULLS)


def test_an_honest_clock_owns_up_to_all_of_it() -> None:
    assert share([a_round(k) for k in (LOW, TOP) for _ in range(5)]) == pytest.approx(1.0)


def test_time_that_is_paid_once_per_round_counts_for_nothing() -> None:
    assert share([a_round(k, outside_us=9000.0) for k in (LOW, TOP) for _ in range(5)]) == pytest.approx(1.0)


@pytest.mark.parametrize("told", [0.0, 0.05, 0.2])
def test_a_forged_clock_shows(told: float) -> None:
    found = share([a_round(k, told=told) for k in (LOW, TOP) for _ in range(5)])
    assert found is not None
    assert found == pytest.approx(told)
    assert found < FORGED_SHARE


@pytest.mark.parametrize("told", [0.0, 0.2])
def test_a_forged_clock_shows_on_a_machine_with_some_noise(told: float) -> None:
    rng = random.Random(1)
    rounds = [a_round(k, told=told, outside_us=rng.uniform(0, 200)) for k in (LOW, TOP) for _ in range(5)]
    found = share(rounds)
    assert found is not None
    assert found < FORGED_SHARE


@pytest.mark.parametrize("disturbed", [1, 2, 3, 4])
def test_long_rounds_in_which_somebody_else_had_the_core_prove_nothing(disturbed: int) -> None:
    """The median of the largest K would say that 10 ms per round are owned up to by nobody."""
    rounds = [a_round(LOW) for _ in range(5)] + [a_round(TOP) for _ in range(5 - disturbed)]
    rounds += [a_round(TOP, outside_us=20_000.0) for _ in range(disturbed)]
    found = share(rounds)
    assert found is not None
    assert found > 0.9


def test_rounds_too_few_or_too_short_tell_nothing() -> None:
    assert share([a_round(k) for k in (LOW, TOP) for _ in range(2)]) is None
    assert claimed_share([], [], NULLS) is None
    short = [((k, 300.0 + 5.0 * k + 0.1 * k), 0.0) for k in (LOW, TOP) for _ in range(5)]
    assert share(short) is None
    assert claimed_share([(k, 1e6) for k in (LOW, TOP) for _ in range(5)], [0.0] * 10, []) is None
