"""The reducer against samples whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelassay.records import ShapeTiming, TimingState
from kernelassay.timing import (
    Decision,
    ProcessSamples,
    Reduction,
    ShapeSamples,
    geomean_score,
    reduce_grade,
    reduce_shape,
)
from tests.timing.simulate import Machine, floor, plan

PLAN = plan()


def reduced(machine: Machine, *, final: bool = True, mode: str = "development") -> ShapeTiming:
    chosen = plan(mode=mode)
    return reduce_shape(chosen, machine.samples(chosen), floor(), final=final).timing


def names(timing: ShapeTiming) -> set[str]:
    return {check.name for check in timing.checks}


@pytest.mark.parametrize("true_us", [20.0, 100.0, 5_000.0])
@pytest.mark.parametrize("mode", ["development", "careful", "regrade"])
def test_an_honest_call_is_confirmed_with_its_true_time(true_us: float, mode: str) -> None:
    timing = reduced(Machine(1, true_us=true_us), mode=mode)
    assert timing.state is TimingState.CONFIRMED, timing.reason
    assert timing.time is not None and timing.outer is not None and timing.score is not None
    assert timing.time.median_us == pytest.approx(true_us, rel=0.01)
    assert timing.score.value == pytest.approx(1 / true_us, rel=0.01)
    assert timing.outer.basis == ("processes" if mode == "regrade" else "rounds")
    assert timing.line is not None and timing.line.straight
    assert not {"host-bound", "warm outer", "overlapping calls", "coarse"} & set(timing.labels)
    assert ShapeTiming.model_validate_json(timing.model_dump_json()) == timing


def test_honest_calls_are_rarely_ambiguous_and_their_intervals_cover() -> None:
    states, covered = [], 0
    for seed in range(200):
        timing = reduced(Machine(seed, noise=0.005))
        states.append(timing.state)
        assert timing.outer is not None
        covered += timing.outer.low_us <= 100.0 <= timing.outer.high_us
    assert states.count(TimingState.CONFIRMED) >= 195
    assert covered >= 180  # five rounds claim 93.75 %: 187 ± 3.4, minus two sigma


def test_ten_grades_agree_or_say_that_they_do_not() -> None:
    """Spread of ten medians, over machines from quiet to loud: at most 3 %, or a grade says AMBIGUOUS."""
    spreads = []
    for noise in (0.003, 0.01, 0.02, 0.03, 0.05):
        for trial in range(8):
            times = []
            for seed in range(10):
                machine = Machine(1_000 * trial + seed, noise=noise)
                result = reduce_shape(PLAN, machine.samples(PLAN), floor())
                if result.decision is Decision.REPEAT:
                    result = reduce_shape(PLAN, machine.samples(PLAN, times=3), floor(), final=True)
                if result.timing.state is TimingState.CONFIRMED and result.timing.outer is not None:
                    times.append(result.timing.outer.median_us)
            if len(times) == 10:
                spreads.append((max(times) - min(times)) / 100.0)
    assert len(spreads) >= 16  # quiet machines are not called ambiguous
    assert max(spreads) <= 0.03, spreads


def test_a_forged_inner_clock_leaves_the_judges_value() -> None:
    timing = reduced(Machine(2, inner_factor=0.01))
    assert timing.state is TimingState.CONFIRMED
    assert timing.time is not None and timing.time.median_us == pytest.approx(100, rel=0.01)
    assert "host-bound" in timing.labels


def test_an_inner_clock_that_reads_more_counts() -> None:
    timing = reduced(Machine(3, inner_factor=1.5))
    assert timing.time is not None and timing.time.median_us == pytest.approx(150, rel=0.01)
    assert "warm outer" in timing.labels


@pytest.mark.parametrize("junk", [[math.nan] * 15, [0.0] * 15, [-1.0] * 15, [math.inf] * 15, [], [50.0] * 3])
def test_a_worthless_inner_clock_leaves_outer_only(junk: list[float]) -> None:
    timing = reduced(Machine(4, inner_edit=lambda _: junk))
    assert timing.state is TimingState.OUTER_ONLY
    assert "inner samples are usable" in timing.reason
    assert timing.inner is None and timing.score is not None
    if junk and not junk[0] > 0:
        assert [discard.reason for discard in timing.processes[0].discards]


def test_a_few_bad_inner_samples_are_set_aside_with_their_reason() -> None:
    def edit(values: np.ndarray) -> list[float]:
        return [math.nan, -3.0, 0.0, *map(float, values[3:])]

    timing = reduced(Machine(5, inner_edit=edit))
    assert timing.state is TimingState.CONFIRMED
    assert [d.reason for d in timing.processes[0].discards] == [
        "not a finite number",
        "not above zero",
        "not above zero",
    ]
    assert [d.value_us for d in timing.processes[0].discards] == [None, -3.0, 0.0]


def test_an_inner_clock_below_physics_is_a_finding_and_no_claim() -> None:
    timing = reduced(Machine(6, inner_factor=1e-4))
    assert timing.state is TimingState.OUTER_ONLY
    assert [check.finding for check in timing.checks if check.name == "inner_below_physics"] == [True]


def test_no_inner_clock_says_why() -> None:
    timing = reduced(Machine(7, inner_fault="the call synchronises inside"))
    assert (timing.state, timing.reason) == (TimingState.OUTER_ONLY, "the call synchronises inside")


def test_bent_rungs_are_ambiguous_with_a_finding() -> None:
    # The longest rounds merge half of their calls; the small rungs are honest.
    timing = reduced(Machine(8, calls=lambda k, total: total if k < PLAN.k_max else total * 0.5))
    assert timing.state is TimingState.AMBIGUOUS
    assert [check.finding for check in timing.checks if check.name == "bent_line"] == [True]
    assert timing.score is None


def test_small_rungs_delayed_gain_nothing() -> None:
    """The withdrawn sketch read a slope: delaying the small rungs lowered it. Here it lowers nothing."""
    delayed = reduced(Machine(9, calls=lambda k, total: total + (3_000 if k < PLAN.k_max else 0)))
    honest = reduced(Machine(9))
    assert delayed.outer is not None and honest.outer is not None
    assert delayed.outer.median_us >= honest.outer.median_us * 0.999
    assert delayed.state is TimingState.AMBIGUOUS


def test_slowed_fixed_costs_only_raise_the_time() -> None:
    slowed = reduced(Machine(10, calls=lambda _, total: total + 10_000))
    assert slowed.outer is not None and slowed.outer.median_us > 150
    assert slowed.state is TimingState.AMBIGUOUS and "fixed part" in slowed.reason


def test_merged_calls_are_bounded_by_calls_that_ran_alone() -> None:
    timing = reduced(Machine(11, calls=lambda k, total: total if k == 1 else total * 0.6, inner_factor=1.0))
    assert timing.merged_gain == pytest.approx(0.4, abs=0.05)
    assert [check.finding for check in timing.checks if check.name == "merged_calls"] == [True]
    assert "overlapping calls" in timing.labels
    assert timing.time is not None and timing.time.median_us == pytest.approx(100, rel=0.02)  # the inner clock counts


def test_an_early_done_is_impossible() -> None:
    timing = reduced(Machine(12, calls=lambda _k, _total: 0.0, null_noise=0.0, inner_factor=0.5))
    assert timing.state is TimingState.IMPOSSIBLE
    assert timing.time is None and timing.score is None


def test_below_the_gate_is_impossible_and_across_it_is_repeated_then_ambiguous() -> None:
    below = reduce_shape(PLAN, Machine(13).samples(PLAN), floor(200, 150), final=False)
    assert (below.timing.state, below.decision) == (TimingState.IMPOSSIBLE, Decision.DONE)
    samples = Machine(13).samples(PLAN)
    outer = reduce_shape(PLAN, samples, floor()).timing.outer
    assert outer is not None
    across = floor(200, (outer.low_us + outer.median_us) / 2)
    first, last = (reduce_shape(PLAN, samples, across, final=final) for final in (False, True))
    assert (first.timing.state, first.decision) == (TimingState.AMBIGUOUS, Decision.REPEAT)
    assert (last.timing.state, last.decision) == (TimingState.AMBIGUOUS, Decision.DONE)


def test_noise_is_repeated_and_then_ambiguous() -> None:
    noisy = Machine(14, noise=0.08)
    first = reduce_shape(PLAN, noisy.samples(PLAN), floor())
    assert (first.timing.state, first.decision) == (TimingState.AMBIGUOUS, Decision.REPEAT)
    assert "wide" in names(first.timing)
    last = reduce_shape(PLAN, Machine(14, noise=0.08).samples(PLAN, times=3), floor(), final=True)
    assert (last.timing.state, last.decision) == (TimingState.AMBIGUOUS, Decision.DONE)


def _interrupted(times: int) -> Callable[[list[tuple[int, float]]], list[tuple[int, float]]]:
    """An edit that makes the first `times` rounds of the largest K take 30 % longer."""

    def edit(rounds: list[tuple[int, float]]) -> list[tuple[int, float]]:
        at = [i for i, (k, _) in enumerate(rounds) if k == PLAN.k_max][:times]
        return [(k, t * 1.3) if i in at else (k, t) for i, (k, t) in enumerate(rounds)]

    return edit


def test_one_interruption_does_not_move_the_time() -> None:
    first = reduce_shape(PLAN, Machine(15, rounds_edit=_interrupted(1)).samples(PLAN), floor())
    assert first.timing.state is TimingState.CONFIRMED, first.timing.reason


def test_a_repetition_can_settle_some_interruptions() -> None:
    first = reduce_shape(PLAN, Machine(15, rounds_edit=_interrupted(5)).samples(PLAN), floor())
    assert first.decision is Decision.REPEAT
    last = reduce_shape(PLAN, Machine(15, rounds_edit=_interrupted(5)).samples(PLAN, times=3), floor(), final=True)
    assert last.timing.state is TimingState.CONFIRMED, last.timing.reason


def test_two_modes_of_rounds_are_ambiguous() -> None:
    def alternate(rounds: list[tuple[int, float]]) -> list[tuple[int, float]]:
        return [(k, t * (1.2 if i % 2 else 1)) for i, (k, t) in enumerate(rounds)]

    samples = Machine(16, true_us=200, rounds_edit=alternate).samples(PLAN, times=3)
    timing = reduce_shape(PLAN, samples, floor(), final=True).timing
    assert timing.state is TimingState.AMBIGUOUS
    assert {"bimodal", "wide"} <= names(timing)


def test_drift_is_told() -> None:
    def edit(values: np.ndarray) -> list[float]:
        return [float(v) * (1 + 0.01 * i) for i, v in enumerate(values)]

    assert "drift" in names(reduced(Machine(17, inner_edit=edit)))


def test_a_heavy_tail_is_told_and_the_median_stands() -> None:
    def edit(values: np.ndarray) -> list[float]:
        return [float(v) * (1.3 if i in (3, 7, 12) else 1) for i, v in enumerate(values)]

    timing = reduced(Machine(18, inner_edit=edit))
    assert "heavy_tail" in names(timing)
    assert timing.time is not None and timing.time.median_us == pytest.approx(100, rel=0.01)


def test_a_cold_start_is_told_and_the_median_stands() -> None:
    def edit(values: np.ndarray) -> list[float]:
        return [float(v) * (1.4 if i < 2 else 1) for i, v in enumerate(values)]

    timing = reduced(Machine(19, inner_edit=edit))
    assert "warm_up" in names(timing) and timing.state is TimingState.CONFIRMED


def test_throttled_samples_are_discarded_and_too_many_are_invalid() -> None:
    for slow, state in ((2, TimingState.CONFIRMED), (5, TimingState.INVALID)):
        good = Machine(20).samples(PLAN)
        process = good.processes[0]
        clocks = [1_400.0 if i < slow else 1_800.0 for i in range(len(process.inner_us))]
        samples = ShapeSamples(processes=[ProcessSamples(process.inner_us, process.rounds, clocks)], nulls=good.nulls)
        timing = reduce_shape(PLAN, samples, floor(), final=True).timing
        assert timing.state is state
        assert sum(d.reason.startswith("throttled") for d in timing.processes[0].discards) == slow
        assert timing.cause == ("device" if state is TimingState.INVALID else None)


def test_a_device_fault_voids_everything() -> None:
    timing = reduced(Machine(21, faults=("another process is on the device",)))
    assert (timing.state, timing.cause) == (TimingState.INVALID, "device")
    assert timing.time is None


def test_a_moved_calibration_voids_its_process() -> None:
    good = Machine(22).samples(PLAN)
    moved = ProcessSamples(good.processes[0].inner_us, good.processes[0].rounds, calibration_us=(100.0, 120.0))
    alone = reduce_shape(PLAN, ShapeSamples([moved], good.nulls), floor(), final=True).timing
    assert alone.state is TimingState.INVALID and "calibration" in alone.processes[0].void
    beside = reduce_shape(PLAN, ShapeSamples([moved, *good.processes], good.nulls), floor(), final=True).timing
    assert beside.state is TimingState.CONFIRMED and "void_process" in names(beside)


def test_scattered_processes_are_invalid() -> None:
    timing = reduced(Machine(23, process_noise=0.3), mode="regrade")
    assert timing.state is TimingState.INVALID and "scatter" in timing.reason


@pytest.mark.parametrize(
    ("samples", "cause", "word"),
    [
        (ShapeSamples(processes=[], nulls=[]), "device", "no process"),
        (ShapeSamples(processes=[ProcessSamples()], nulls=[]), "judge", "fewer than 3 rounds"),
        (ShapeSamples([ProcessSamples(rounds=[(1, 5.0)] * 3)], nulls=[]), "judge", "clean worker"),
        (ShapeSamples([ProcessSamples(rounds=[(1, math.nan)] * 9)], nulls=[(1, 1.0)]), "judge", "no durations"),
    ],
)
def test_missing_samples_are_invalid_and_say_whose_fault(samples: ShapeSamples, cause: str, word: str) -> None:
    timing = reduce_shape(PLAN, samples, floor()).timing
    assert (timing.state, timing.cause) == (TimingState.INVALID, cause)
    assert word in timing.reason


def test_a_coarse_end_uses_the_largest_k_that_was_measured() -> None:
    timing = reduced(Machine(24, rounds_edit=lambda rounds: [r for r in rounds if r[0] <= 16]))
    assert timing.state is TimingState.CONFIRMED and "coarse" in timing.labels
    assert timing.outer is not None and timing.outer.median_us == pytest.approx(100, rel=0.02)


def test_calls_lost_in_the_noise_are_ambiguous_not_negative() -> None:
    timing = reduced(Machine(25, true_us=0.05, null_us=5_000, null_noise=0.05))
    assert timing.state in (TimingState.AMBIGUOUS, TimingState.IMPOSSIBLE)
    assert timing.score is None


def test_labels_of_the_shape_and_of_the_protocol() -> None:
    samples = Machine(26).samples(PLAN)
    copied = ShapeSamples(samples.processes, samples.nulls, copied_outputs=True)
    timing = reduce_shape(PLAN, copied, floor(cache_resident=True)).timing
    assert set(timing.labels) == {"cache-resident", "outputs copied inside the clock"}


def test_without_a_floor_there_is_a_time_and_no_score() -> None:
    timing = reduce_shape(PLAN, Machine(27).samples(PLAN), None).timing
    assert timing.state is TimingState.CONFIRMED and timing.score is None and timing.time is not None
    assert reduce_grade([timing]).score is None


def test_a_grade_is_as_good_as_its_worst_shape_and_scores_the_geomean() -> None:
    good, other = reduced(Machine(28)), reduced(Machine(29, true_us=400))
    outer_only = reduced(Machine(30, inner_fault="none"))
    ambiguous = reduced(Machine(31, noise=0.1))
    impossible = reduce_shape(PLAN, Machine(32).samples(PLAN), floor(200, 150)).timing
    both = reduce_grade([good, other])
    assert both.score is not None and good.score is not None and other.score is not None
    assert both.score.value == pytest.approx(math.sqrt(good.score.value * other.score.value))
    assert both.score == geomean_score([good.score, other.score])
    for shapes, state in (
        ([good, other], TimingState.CONFIRMED),
        ([good, outer_only], TimingState.OUTER_ONLY),
        ([outer_only, ambiguous], TimingState.AMBIGUOUS),
        ([ambiguous, impossible], TimingState.IMPOSSIBLE),
        ([], TimingState.INVALID),
    ):
        timing = reduce_grade(shapes)
        assert timing.state is state
        assert (timing.score is not None) == (state in (TimingState.CONFIRMED, TimingState.OUTER_ONLY))


# Properties

finite = st.floats(allow_nan=False, allow_infinity=False)
any_float = st.floats()
positive = st.floats(min_value=1e-2, max_value=1e7)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def shape_samples(draw: st.DrawFn, numbers: st.SearchStrategy[float] = any_float) -> ShapeSamples:
    ks = st.sampled_from([*PLAN.rungs, *PLAN.rungs, 0, 3])
    rounds = st.lists(st.tuples(ks, numbers), max_size=30)
    process = st.builds(
        ProcessSamples,
        inner_us=st.lists(numbers, max_size=20),
        rounds=rounds,
        clock_mhz=st.lists(numbers, max_size=20),
        calibration_us=st.none() | st.tuples(numbers, numbers),
    )
    return ShapeSamples(
        processes=draw(st.lists(process, max_size=8)),
        nulls=draw(rounds),
        inner_fault=draw(st.sampled_from(["", "fault"])),
        pair_floor_us=draw(st.none() | numbers),
    )


def numbers_of(value: object) -> list[float]:
    if isinstance(value, dict):
        return [n for v in value.values() for n in numbers_of(v)]
    if isinstance(value, (list, tuple)):
        return [n for v in value for n in numbers_of(v)]
    return [value] if isinstance(value, float) else []


def assert_finite(result: Reduction) -> None:
    assert all(math.isfinite(n) for n in numbers_of(result.timing.model_dump()))
    assert all(math.isfinite(n) for n in numbers_of(reduce_grade([result.timing]).model_dump()))


@quick
@given(shape_samples(), st.booleans(), st.sampled_from([None, floor(), floor(1e-9, None), floor(1e9, 1e8)]))
def test_whatever_is_delivered_a_finite_record_comes_out(samples: ShapeSamples, final: bool, f: object) -> None:
    assert_finite(reduce_shape(PLAN, samples, f, final=final))  # type: ignore[arg-type]


@quick
@given(st.data())
def test_full_series_of_any_positive_numbers_reduce(data: st.DataObject) -> None:
    """Enough rounds at every rung, so that every step of the reducer runs."""
    count = data.draw(st.integers(1, 8))
    processes = [
        ProcessSamples(
            inner_us=data.draw(st.lists(positive, min_size=9, max_size=15)),
            rounds=[(k, data.draw(positive)) for k in PLAN.rungs for _ in range(3)],
        )
        for _ in range(count)
    ]
    nulls = [(k, data.draw(positive)) for k in PLAN.rungs for _ in range(3)]
    assert_finite(reduce_shape(PLAN, ShapeSamples(processes, nulls), floor()))


@quick
@given(st.integers(0, 1_000), st.sampled_from([2.0**e for e in range(-3, 8)]))
def test_scaling_all_samples_scales_the_times(seed: int, factor: float) -> None:
    samples = Machine(seed, true_us=200.0).samples(PLAN)
    scaled = ShapeSamples(
        processes=[
            ProcessSamples([factor * v for v in p.inner_us], [(k, factor * t) for k, t in p.rounds])
            for p in samples.processes
        ],
        nulls=[(k, factor * t) for k, t in samples.nulls],
    )
    before, after = (reduce_shape(PLAN, s, None).timing for s in (samples, scaled))
    for name in ("inner", "outer", "time"):
        one, other = getattr(before, name), getattr(after, name)
        assert other.median_us == pytest.approx(factor * one.median_us, rel=1e-9)
        assert other.low_us == pytest.approx(factor * one.low_us, rel=1e-9)


@quick
@given(st.integers(0, 1_000), st.floats(1.0, 3.0))
def test_slower_rounds_never_read_faster(seed: int, factor: float) -> None:
    honest = reduced(Machine(seed))
    slower = reduced(Machine(seed, calls=lambda _, total: total * factor))
    assert honest.outer is not None and slower.outer is not None
    assert slower.outer.median_us >= honest.outer.median_us * (1 - 1e-9)
