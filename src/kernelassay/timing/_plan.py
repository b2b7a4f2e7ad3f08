"""How a shape is timed: fixed before the submission is imported, by the class of the shape's floor.

Nothing here may depend on how fast the submission is, so results stay comparable and a submission cannot choose its
own measurement. The order of the rounds comes from the grade's secret. Only the time budget may cut a plan short
(`next_round`), and then the time is labelled coarse.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from kernelassay.records import Round, ShapePlan

Kind = Literal["cpu", "cuda"]
Mode = Literal["development", "careful", "regrade"]

TARGET_US = 5_000.0
"""K × floor is at least this: jitter of the two stamps stays a small part of it. [estimated]"""
K_CAP: dict[Kind, int] = {"cpu": 128, "cuda": 256}
"""Calls of one round. A CPU's judge writes and evicts all K sets before each round; at 128 the 100 µs that a round
pays once (freezing, a first call) are below 1 µs per call. [measured: bench/clock_jitter.py]"""
MEMORY_SHARE = 8
"""One copy of the sets takes at most this part of the device's memory. [rule]"""
CLASS_LIMIT_US = 1_000.0
ROUNDS: dict[Kind, dict[str, int]] = {
    "cpu": {"below_1ms": 15, "from_1ms": 10},
    "cuda": {"below_1ms": 5, "from_1ms": 10},
}
"""Per rung and process, by timing class. [rule] On a CPU rounds of 64 calls of 5 µs scatter by 7 %, so 5 of them give
an interval of ±0.5 µs per call and 15 one of ±0.2 µs. [measured: bench/clock_jitter.py]"""
NULL_ROUNDS = 15
"""Per rung of the clean worker: its median is subtracted from every round. [estimated]"""
LONG_SETS_CAP = 64
"""Distinct timed sets of shapes above 1 ms. [rule]"""
COLD_FOOTPRINTS = 3
"""All sets together are this many last-level caches: the others displace a set before its next turn. [read]"""
INNER: dict[Kind, tuple[int, int]] = {"cpu": (15, 9), "cuda": (50, 30)}
"""Samples of the inner clock, and how many must be accepted: 60 %. [computed: the error of a median is 1.25·σ/√N]"""
CPU_FLUSH_CACHES = 2
CUDA_FLUSH_CACHES = 4
CUDA_FLUSH_MIN = 256 << 20
"""Bytes displaced before a cold call, in last-level caches; on a GPU at least 256 MiB. [computed from measured]"""
DEFAULT_CACHE_BYTES: dict[Kind, int] = {"cpu": 64 << 20, "cuda": 64 << 20}
"""Where the last-level cache is unknown: larger than that of most machines. [estimated]"""
PROCESSES: dict[Mode, int] = {"development": 1, "careful": 3, "regrade": 8}
"""Fresh processes: [min, max] of 8 medians covers their median with 99.2 %. [computed]"""
BUDGET_S = 60.0
CPU_DEVELOPMENT_BUDGET_S = 5.0
"""Per shape; past it the outer clock ends coarse. [rule]"""
MIN_ROUNDS = 3
"""Rounds at one K without which it gives no value: [min, max] of three covers their median with 75 %. [computed]"""


def plan_shape(
    shape: str,
    *,
    kind: Kind,
    mode: Mode,
    floor_us: float | None,
    set_bytes: int,
    weight_bytes: int = 0,
    cache_bytes: int | None,
    memory_bytes: int | None,
    secret: bytes,
) -> ShapePlan:
    """The plan of one shape.

    Args:
        shape: Its key.
        kind: Kind of the device.
        mode: How much certainty was asked for: 1, 3 or 8 fresh processes.
        floor_us: Microseconds of one call at the least; None: unknown, planned as the shortest class.
        set_bytes: One set of inputs and state.
        weight_bytes: All weights; where smaller than the cache, they are multiplied with the sets on a GPU.
        cache_bytes: The device's last-level cache; None: unknown.
        memory_bytes: The device's memory; None: unknown, no bound.
        secret: The grade's secret; only the order of the rounds depends on it.

    Raises:
        ValueError: a size or the floor is negative or zero where it cannot be.
    """
    if set_bytes < 0 or weight_bytes < 0 or (floor_us is not None and not floor_us > 0):
        raise ValueError(f"shape {shape!r}: sizes and the floor are not negative; next: `assay deck lint`")
    cache = cache_bytes or DEFAULT_CACHE_BYTES[kind]
    room = None if memory_bytes is None else max(1, memory_bytes // MEMORY_SHARE // max(set_bytes, 1))
    k_max = _k_max(kind, floor_us, room)
    timing_class: Literal["below_1ms", "from_1ms"] = (
        "from_1ms" if floor_us is not None and floor_us >= CLASS_LIMIT_US else "below_1ms"
    )
    rungs = tuple(sorted({1, max(1, k_max // 4), k_max}))  # a line needs three points, and each costs rounds
    rounds, processes = ROUNDS[kind][timing_class], PROCESSES[mode]
    samples, accepted = INNER[kind]
    return ShapePlan(
        shape=shape,
        kind=kind,
        mode=mode,
        timing_class=timing_class,
        floor_us=floor_us,
        inner_samples=samples,
        inner_accepted=accepted,
        flush_bytes=CPU_FLUSH_CACHES * cache if kind == "cpu" else max(CUDA_FLUSH_MIN, CUDA_FLUSH_CACHES * cache),
        k_max=k_max,
        rungs=rungs,
        rounds=rounds,
        orders=tuple(_order(secret, shape, process, rungs, rounds) for process in range(processes)),
        null_rounds=NULL_ROUNDS,
        sets=_sets(kind, timing_class, k_max, set_bytes, weight_bytes, cache, room),
        processes=processes,
        budget_s=CPU_DEVELOPMENT_BUDGET_S if (kind, mode) == ("cpu", "development") else BUDGET_S,
    )


def _k_max(kind: Kind, floor_us: float | None, room: int | None) -> int:
    """The power of two with K × floor ≥ `TARGET_US`, within the caps and the room for that many sets."""
    k = 1
    while k < K_CAP[kind] and (floor_us is None or k * floor_us < TARGET_US) and (room is None or 2 * k <= room):
        k *= 2
    return k


def _sets(
    kind: Kind, timing_class: str, k_max: int, set_bytes: int, weight_bytes: int, cache: int, room: int | None
) -> int:
    if kind == "cpu":
        return k_max  # the judge writes every set anew before each round, and evicts it
    per_set = max(1, set_bytes + (weight_bytes if weight_bytes < cache else 0))
    wanted = -(-COLD_FOOTPRINTS * cache // per_set)
    if timing_class == "from_1ms":
        wanted = min(wanted, LONG_SETS_CAP)
    if room is not None:
        wanted = min(wanted, room)
    return max(k_max, wanted)


def _order(secret: bytes, shape: str, process: int, rungs: Sequence[int], rounds: int) -> tuple[int, ...]:
    """All rounds of a process, shuffled by the secret. One round of K = 1 comes first: the time budget needs it."""

    def rank(position: int) -> bytes:
        return hashlib.sha256(b"\0".join((secret, shape.encode(), b"%d" % process, b"%d" % position))).digest()

    rest = [k for k in rungs for _ in range(rounds)][1:]  # rungs ascend from 1
    return (1, *(rest[i] for i in sorted(range(len(rest)), key=rank)))


def next_round(plan: ShapePlan, process: int, done: Sequence[Round], elapsed_s: float) -> int | None:
    """K of the next round to run; None when the process has no more.

    The earliest round of the order that has not run, unless, at the slowest rate per call seen so far, it would end
    past the budget. The first `MIN_ROUNDS` rounds of K = 1 always run, so that even a very slow submission has a time.
    A process that ends with fewer rounds than its order was coarse.

    Args:
        plan: The shape's plan.
        process: Which of the plan's processes.
        done: The rounds that ran in this process, in order; each is one of the plan's.
        elapsed_s: Seconds that the outer clock of this shape and process has taken, writes and captures included.
    """
    counts = Counter(finished.k for finished in done)
    per_call_s = max((1e-6 * finished.total_us / finished.k for finished in done), default=0.0)
    share = plan.budget_s / plan.processes
    seen: Counter[int] = Counter()
    for k in plan.orders[process]:
        seen[k] += 1
        if seen[k] <= counts[k]:
            continue
        if elapsed_s + k * per_call_s <= share or (k == 1 and counts[1] < MIN_ROUNDS):
            return k
    return None


def repeat_plan(plan: ShapePlan, secret: bytes) -> ShapePlan:
    """The plan of the repetition: twice the rounds, in another order. Its rounds are added to those of the first."""
    rounds = 2 * plan.rounds
    orders = tuple(
        _order(secret + b"repeat", plan.shape, process, plan.rungs, rounds) for process in range(plan.processes)
    )
    return plan.model_copy(update={"rounds": rounds, "orders": orders})
