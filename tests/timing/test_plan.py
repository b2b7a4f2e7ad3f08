"""A plan depends on the shape's floor, the device and the secret, and on nothing else."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelassay.records import Round, ShapePlan
from kernelassay.timing import MIN_ROUNDS, next_round, plan_shape, repeat_plan


def make(**changes: object) -> ShapePlan:
    plain: dict[str, object] = {
        "kind": "cpu",
        "mode": "development",
        "floor_us": 100.0,
        "set_bytes": 1 << 20,
        "cache_bytes": 32 << 20,
        "memory_bytes": 16 << 30,
        "secret": b"secret",
    }
    return plan_shape("s", **(plain | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "floor_us", "k_max", "rounds"),
    [
        ("cpu", 0.4, 128, 15),
        ("cpu", None, 128, 15),
        ("cpu", 100.0, 64, 15),
        ("cpu", 160.0, 32, 15),
        ("cpu", 999.0, 8, 15),
        ("cpu", 1_000.0, 8, 10),
        ("cpu", 50_000.0, 1, 10),
        ("cuda", 0.4, 256, 5),
        ("cuda", 100.0, 64, 5),
        ("cuda", 5_000.0, 1, 10),
    ],
)
def test_k_and_rounds_follow_the_floor(kind: str, floor_us: float | None, k_max: int, rounds: int) -> None:
    plan = make(kind=kind, floor_us=floor_us)
    assert (plan.k_max, plan.rounds) == (k_max, rounds)


def test_a_cpu_has_its_own_samples_flush_and_budget() -> None:
    plan = make()
    assert (plan.inner_samples, plan.inner_accepted, plan.flush_bytes, plan.budget_s) == (15, 9, 64 << 20, 5.0)
    assert make(mode="careful").budget_s == 60.0
    gpu = make(kind="cuda", cache_bytes=60 << 20)
    assert (gpu.inner_samples, gpu.inner_accepted, gpu.flush_bytes, gpu.budget_s) == (50, 30, 256 << 20, 60.0)


@pytest.mark.parametrize(("mode", "processes"), [("development", 1), ("careful", 3), ("regrade", 8)])
def test_processes_follow_the_mode(mode: str, processes: int) -> None:
    plan = make(mode=mode)
    assert plan.processes == processes
    assert len(set(plan.orders)) == processes  # each has its own order


def test_sets_are_cold_by_construction_and_fit_the_memory() -> None:
    assert make().sets == 64
    gpu = make(kind="cuda", cache_bytes=60 << 20)
    assert gpu.sets * (1 << 20) >= 3 * (60 << 20)
    assert make(kind="cuda", weight_bytes=9 << 20, cache_bytes=60 << 20, floor_us=400.0).sets == 18
    assert make(kind="cuda", floor_us=1_500.0, set_bytes=1).sets == 64
    small = make(memory_bytes=64 << 20)
    assert small.k_max == small.sets == 8
    assert make(memory_bytes=1).k_max == 1


def test_the_secret_decides_the_order_and_nothing_else() -> None:
    plan, other = make(), make(secret=b"other")
    assert plan == make() and plan.orders != other.orders
    assert plan.model_copy(update={"orders": ()}) == other.model_copy(update={"orders": ()})
    assert plan.orders[0][0] == 1


def test_nothing_of_the_submission_enters_a_plan() -> None:
    assert set(inspect.signature(plan_shape).parameters) == {
        *("shape", "kind", "mode", "floor_us", "set_bytes", "weight_bytes", "cache_bytes", "memory_bytes", "secret")
    }


@pytest.mark.parametrize("changes", [{"floor_us": 0.0}, {"floor_us": float("nan")}, {"set_bytes": -1}])
def test_impossible_sizes_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="next: "):
        make(**changes)


@given(
    st.sampled_from(["cpu", "cuda"]),
    st.none() | st.floats(1e-6, 1e9),
    st.integers(0, 1 << 40),
    st.none() | st.integers(1, 1 << 30),
    st.none() | st.integers(1, 1 << 40),
)
def test_every_plan_is_consistent(
    kind: str, floor: float | None, size: int, cache: int | None, memory: int | None
) -> None:
    plan = make(kind=kind, floor_us=floor, set_bytes=size, cache_bytes=cache, memory_bytes=memory)
    assert plan.k_max & (plan.k_max - 1) == 0
    assert ShapePlan.model_validate_json(plan.model_dump_json()) == plan


def run(plan: ShapePlan, call_us: float, overhead_s: float = 0.0) -> list[Round]:
    done: list[Round] = []
    elapsed = 0.0
    while (k := next_round(plan, 0, done, elapsed)) is not None:
        done.append(Round(k=k, total_us=k * call_us))
        elapsed += 1e-6 * k * call_us + overhead_s
    return done


def test_a_fast_submission_runs_the_whole_order() -> None:
    plan = make()
    assert [r.k for r in run(plan, 100.0)] == list(plan.orders[0])


def test_a_slow_one_ends_within_the_budget_and_still_has_a_time() -> None:
    plan = make()
    for call_us in (2e4, 2e5, 1e7):
        done = run(plan, call_us)
        assert len(done) < len(plan.orders[0])
        assert sum(r.k == 1 for r in done) >= MIN_ROUNDS
        least = 1e-6 * call_us * MIN_ROUNDS
        assert sum(1e-6 * r.total_us for r in done) <= max(plan.budget_s, least) + least


def test_a_repetition_has_twice_the_rounds_in_another_order() -> None:
    plan = make()
    again = repeat_plan(plan, b"secret")
    assert again.rounds == 2 * plan.rounds and again.rungs == plan.rungs
    assert ShapePlan.model_validate(again.model_dump()) == again
    assert again.orders[0][: len(plan.orders[0])] != plan.orders[0]
