"""The clocks of a grade on a CPU: plan, rounds without calls, rounds with calls, reduction, comparison.

A worker shows what a round costs before anything of the submission is loaded into it. As many fresh processes make
calls as the mode asks for. Every timed call is compared like any other.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from kernelassay.decks import CaseTensors, LoadedProblem, draw
from kernelassay.devices import ceilings
from kernelassay.judge._plan import derive, weights_seed
from kernelassay.judge._request import Progress, Silent
from kernelassay.judge._settle import SETTLE_SEED, settle
from kernelassay.records import Case, Device, Floor, Role, Shape, ShapePlan, ShapeTiming, Tier
from kernelassay.session import Checked, Rig, Session, same_bytes
from kernelassay.timing import (
    Decision,
    Displacer,
    Mode,
    ProcessRun,
    ProcessSamples,
    Reduction,
    ShapeSamples,
    compare_calls,
    cpu_peaks,
    floor,
    plan_shape,
    reduce_shape,
    repeat_plan,
    run_nulls,
    run_process,
    set_bytes,
    work,
)

Nulls = dict[str, list[tuple[int, float]]]

MIN_PLACE = 3
"""Timed rounds before the first untimed one may come: even a plan cut short by its budget has more. [rule]"""


@contextmanager
def single_threaded() -> Iterator[None]:
    """Let torch use one thread here for a while.

    Where the submission runs on the cores beside the judge's, oracles of small shapes wait for each other's threads
    more than they compute: on a busy machine with two cores a grade took seven times as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def pinned(cpu: int) -> Iterator[None]:
    """Run this process on one core, with one thread, for a while."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        with single_threaded():
            yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass
class Clocks:
    """What the clocks of one grade, or of one comparison, have in common; plans are fixed when it is made."""

    loaded: LoadedProblem
    tier: Tier
    shapes: tuple[Shape, ...]
    """Those of the tier; fewer in a replay."""
    secret: bytes
    device: Device
    cpus: frozenset[int]
    """Cores that the device is."""
    home: Path
    mode: Mode
    progress: Progress
    floors: dict[str, Floor] = field(init=False)
    plans: dict[str, ShapePlan] = field(init=False)
    displace: Displacer = field(init=False)

    def __post_init__(self) -> None:
        peaks = cpu_peaks(ceilings(self.device, self.home, cpus=self.cpus))
        self.floors = {s.key: floor(work(self.loaded.problem.cost, s), peaks) for s in self.shapes}
        self.plans = {s.key: self._plan(s, peaks.cache_bytes) for s in self.shapes}
        self.displace = Displacer(max(plan.flush_bytes for plan in self.plans.values()))

    def _plan(self, shape: Shape, cache_bytes: int | None) -> ShapePlan:
        inputs, weights = set_bytes(self.loaded, self._public(shape))
        return plan_shape(
            shape.key,
            kind="cpu",
            mode=self.mode,
            floor_us=self.floors[shape.key].floor_us,
            set_bytes=inputs,
            weight_bytes=weights,
            cache_bytes=cache_bytes,
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            secret=self.secret,
        )

    def _public(self, shape: Shape) -> CaseTensors:
        return draw(self.loaded, shape, "nominal", SETTLE_SEED, SETTLE_SEED)

    def nulls(self, session: Session) -> Nulls:
        """w(K) per shape, from a worker that holds no submission yet."""
        session.load_nothing()
        out = {}
        for number, shape in enumerate(self.shapes):
            self.progress.advance(number, len(self.shapes), f"rounds without calls, {shape.key}")
            tensors = self._public(shape)
            rig = Rig(session, shape)
            rig.set_weights(tensors.weights)
            out[shape.key] = run_nulls(rig, self.plans[shape.key], tensors, self.displace)
        return out

    def settle(self, session: Session) -> dict[str, Rig]:
        """Every shape of the tier, constructed and called once, with the weights of its timed calls."""
        rigs = settle(self.loaded, session, self.tier, Silent())
        for shape in self.shapes:
            seed = weights_seed(self.loaded.problem, self.secret, shape.key)
            rigs[shape.key].set_weights(draw(self.loaded, shape, "nominal", SETTLE_SEED, seed).weights)
        return rigs

    def cases(self, shape: Shape, process: int) -> Iterator[Case]:
        """Nominal cases on fresh secret seeds, without end."""
        weights = weights_seed(self.loaded.problem, self.secret, shape.key)
        for number in itertools.count():
            seed = derive(self.secret, "timed", shape.key, str(process), str(number))
            yield Case(shape=shape.key, case="nominal", seed=seed, weights_seed=weights)

    def run(self, rig: Rig, shape: Shape, process: int, plan: ShapePlan, cases: Iterator[Case]) -> ProcessRun:
        """Both clocks on one shape in one process."""
        order = process % len(plan.orders)
        untimed = self.untimed(shape, process, plan)
        return run_process(self.loaded, rig, plan, order, cases, self.displace, untimed)

    def untimed(self, shape: Shape, process: int, plan: ShapePlan) -> dict[int, list[list[Case]]]:
        """Rounds of the problem's other cases at secret places among the timed ones; see `timing.run_process`.

        Full rounds of K_max calls, like the timed ones that count. Cases that change the weights are left out: these
        stand still under the clocks.
        """
        rng = random.Random(derive(self.secret, "untimed", shape.key, str(process)))
        weights = weights_seed(self.loaded.problem, self.secret, shape.key)
        names = [case.name for case in self.loaded.problem.cases if self._keeps_weights(shape, case.name)]
        rounds = -(-len(names) // plan.k_max)
        names = (names * (rounds * plan.k_max))[: rounds * plan.k_max]
        rng.shuffle(names)
        cases = [
            Case(
                shape=shape.key,
                case=name,
                seed=derive(self.secret, "untimed", shape.key, str(process), str(number)),
                weights_seed=weights,
            )
            for number, name in enumerate(names)
        ]
        places: dict[int, list[list[Case]]] = {}
        for start in range(0, len(cases), plan.k_max):
            place = rng.randrange(MIN_PLACE, max(MIN_PLACE + 1, len(plan.orders[0])))
            places.setdefault(place, []).append(cases[start : start + plan.k_max])
        return places

    def _keeps_weights(self, shape: Shape, case: str) -> bool:
        if not self.loaded.problem.role(Role.WEIGHT):
            return True
        nominal = self._public(shape).weights
        edited = draw(self.loaded, shape, case, SETTLE_SEED, SETTLE_SEED).weights
        return all(same_bytes(nominal[name], edited[name]) for name in nominal)

    def time_shape(
        self, rig: Rig, shape: Shape, process: int, earlier: list[ProcessRun], nulls: Nulls, copied: bool
    ) -> ShapeTiming:
        """Run one more process's part of a shape, append it to `earlier`, and reduce all of them.

        The last process repeats with twice the rounds where that may settle the time; a development grade, which is
        to be quick, says `ambiguous` instead.
        """
        plan, cases = self.plans[shape.key], self.cases(shape, process)
        earlier.append(self.run(rig, shape, process, plan, cases))
        reduction = self.reduce(shape, earlier, nulls, copied, final=False)
        if reduction.decision is Decision.REPEAT and len(earlier) == plan.processes and self.mode != "development":
            more = self.run(rig, shape, 0, repeat_plan(plan, self.secret), cases)
            earlier[-1].inner_us += more.inner_us
            earlier[-1].rounds += more.rounds
            earlier[-1].claims += more.claims
            earlier[-1].calls += more.calls
            reduction = self.reduce(shape, earlier, nulls, copied, final=True)
        return reduction.timing

    def reduce(self, shape: Shape, runs: list[ProcessRun], nulls: Nulls, copied: bool, *, final: bool) -> Reduction:
        """Reduce what some processes gave for one shape."""
        samples = ShapeSamples(
            processes=[ProcessSamples(inner_us=run.inner_us, rounds=run.rounds) for run in runs],
            nulls=nulls[shape.key],
            displaced_by_reading=not self.displace.by_line,
            copied_outputs=copied,
        )
        return reduce_shape(self.plans[shape.key], samples, self.floors[shape.key], final=final)

    def first_fault(self, rig: Rig, run: ProcessRun) -> tuple[int, Checked, list[tuple[str, dict[str, Tensor]]]] | None:
        """The first timed call at fault, its number, and the right answers before it; None when all are right."""
        earlier: list[tuple[str, dict[str, Tensor]]] = []
        for number, checked in enumerate(compare_calls(self.loaded, rig, run.calls), 1):
            if checked.faults:
                return number, checked, earlier
            earlier.append((f"timed call {number}", checked.actual))
        run.calls.clear()
        return None
