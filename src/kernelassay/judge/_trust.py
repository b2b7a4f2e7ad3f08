"""Probes and clocks of a grade: what decides whether a right submission is genuine, and how fast it is.

Probes run in a fresh worker. The clocks run in further fresh ones, after a worker without a submission has shown what
a round costs without calls. Every timed call is compared like any other.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from kernelassay.decks import CaseTensors, LoadedProblem, draw
from kernelassay.devices import ceilings
from kernelassay.judge._plan import derive, weights_seed
from kernelassay.judge._request import Progress, Silent
from kernelassay.judge._settle import SETTLE_SEED, settle
from kernelassay.probes import PROBES, Evidence, Outcome, Subject, result_of
from kernelassay.records import Case, Device, Floor, ProbeResult, Shape, ShapePlan, ShapeTiming, Tier, Timing, evaluate
from kernelassay.sandbox import Sandbox
from kernelassay.session import Job, Rig, Session
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
    reduce_grade,
    reduce_shape,
    repeat_plan,
    run_nulls,
    run_process,
    set_bytes,
    work,
)

HEAVY_FLOPS = 2e8
"""Shapes above this are probed on one secret shape only: a call takes milliseconds on one core. [estimated]"""
ONCE = frozenset({"fresh_process", "global_state"})
"""Probes about the process rather than a shape: one secret shape is enough."""


def device_cpus() -> tuple[int, frozenset[int]]:
    """The judge's own core, and the cores that are the device: all others, or the same one where there is no other."""
    cpus = sorted(os.sched_getaffinity(0))
    return cpus[0], frozenset(cpus[1:] or cpus)


@dataclass
class Trust:
    """Probes and clocks over one built submission."""

    loaded: LoadedProblem
    sandbox: Sandbox
    job: Job
    tier: Tier
    shapes: tuple[Shape, ...]
    """Those of the tier; fewer in a replay."""
    secret: bytes
    device: Device
    home: Path
    mode: Mode
    progress: Progress
    logs: list[str]
    probes: list[ProbeResult] = field(default_factory=list)
    evidence: list[tuple[str, Evidence]] = field(default_factory=list)
    """Probe name and what it found."""
    current: str | None = None
    """The probe that is running."""

    @contextmanager
    def open(self, job: Job | None = None) -> Iterator[Session]:
        """A fresh, loaded worker whose output ends in the log."""
        with Session(self.sandbox, job or self.job) as session:
            try:
                session.load()
                yield session
            finally:
                session.close()
                self.logs.append(session.log().decode(errors="replace"))

    def run_probes(self, only: frozenset[str] | None = None, stop_at_conviction: bool = False) -> None:
        """Every probe on every shape (heavy shapes: one of them).

        Raises:
            kernelassay.session.Trouble: a call did not return.
        """
        with Session(self.sandbox, self.job) as session:
            try:
                session.start()
                before = session.globals()
                session.load()
                steps = [(shape, name) for shape in self._probed() for name in PROBES if only is None or name in only]
                once = self._secret_shape()
                for number, (shape, name) in enumerate(steps):
                    if name in ONCE and shape is not once:
                        continue
                    self.progress.advance(number, len(steps), f"{name} on {shape.key}")
                    self._probe(session, shape, name, before)
                    if stop_at_conviction and self.evidence:
                        return
            finally:
                session.close()
                self.logs.append(session.log().decode(errors="replace"))

    def _probe(self, session: Session, shape: Shape, name: str, before: dict[str, str]) -> None:
        proves, run = PROBES[name]
        self.current = name
        begun = time.monotonic()
        subject = Subject(self.loaded, Rig(session, shape), self.open, self._seeds(shape), before)
        outcome = run(subject)
        self._keep(name, proves, outcome, shape, time.monotonic() - begun)

    def _keep(self, name: str, proves: str, outcome: Outcome, shape: Shape, seconds: float) -> None:
        """One record per probe: the worst of its shapes."""
        rank = ("failed", "unresolved", "passed", "not_applicable")
        result = result_of(name, proves, outcome, seconds)
        if outcome.state in rank[:2]:
            result = result.model_copy(update={"note": f"{shape.key}: {outcome.note}"})
        earlier = next((r for r in self.probes if r.name == name), None)
        if earlier is not None:
            self.probes.remove(earlier)
            worse = min(earlier, result, key=lambda r: rank.index(r.state))
            result = worse.model_copy(update={"seconds": earlier.seconds + seconds})
        self.probes.append(result)
        known = {e.rule for _, e in self.evidence}
        self.evidence += [(name, e) for e in outcome.evidence if e.rule not in known]

    def _seeds(self, shape: Shape) -> Callable[[str], int]:
        def seed(purpose: str) -> int:
            return derive(self.secret, "probe", shape.key, purpose)

        return seed

    def _secret_shape(self) -> Shape:
        probed = self._probed()
        return probed[derive(self.secret, "probed shape") % len(probed)]

    def _probed(self) -> tuple[Shape, ...]:
        light = tuple(s for s in self.shapes if evaluate(self.loaded.problem.cost.flops, s.values) <= HEAVY_FLOPS)
        heavy = tuple(s for s in self.shapes if s not in light)
        chosen = heavy[derive(self.secret, "heavy shape") % len(heavy)] if heavy else None
        return light + ((chosen,) if chosen else ())

    def run_clocks(self) -> Timing:
        """Both clocks on every shape, in as many fresh processes as the mode asks for.

        Raises:
            kernelassay.session.Trouble: a call did not return.
        """
        self.current = "timed_is_checked"
        judge_cpu, cpus = device_cpus()
        peaks = cpu_peaks(ceilings(self.device, self.home, cpus=cpus))
        with pinned(judge_cpu):
            floors = {s.key: floor(work(self.loaded.problem.cost, s), peaks) for s in self.shapes}
            plans = {s.key: self._plan(s, floors[s.key], peaks.cache_bytes) for s in self.shapes}
            displace = Displacer(max(plan.flush_bytes for plan in plans.values()))
            nulls = self._nulls(plans, displace)
            return reduce_grade(self._time_all(plans, floors, nulls, displace))

    def _plan(self, shape: Shape, known: Floor, cache_bytes: int | None) -> ShapePlan:
        inputs, weights = set_bytes(self.loaded, self._public(shape))
        return plan_shape(
            shape.key,
            kind="cpu",
            mode=self.mode,
            floor_us=known.floor_us,
            set_bytes=inputs,
            weight_bytes=weights,
            cache_bytes=cache_bytes,
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            secret=self.secret,
        )

    def _public(self, shape: Shape) -> CaseTensors:
        return draw(self.loaded, shape, "nominal", SETTLE_SEED, SETTLE_SEED)

    def _nulls(self, plans: dict[str, ShapePlan], displace: Displacer) -> dict[str, list[tuple[int, float]]]:
        out = {}
        with self.open(replace(self.job, clean=True)) as session:
            for number, shape in enumerate(self.shapes):
                self.progress.advance(number, 2 * len(self.shapes), f"rounds without calls, {shape.key}")
                tensors = self._public(shape)
                rig = Rig(session, shape)
                rig.set_weights(tensors.weights)
                out[shape.key] = run_nulls(rig, plans[shape.key], tensors, displace)
        return out

    def _time_all(
        self,
        plans: dict[str, ShapePlan],
        floors: dict[str, Floor],
        nulls: dict[str, list[tuple[int, float]]],
        displace: Displacer,
    ) -> list[ShapeTiming]:
        runs: dict[str, list[ProcessRun]] = {s.key: [] for s in self.shapes}
        copied = False
        timings: dict[str, ShapeTiming] = {}
        processes = max(plan.processes for plan in plans.values())
        for process in range(processes):
            with self.open() as session:
                copied = copied or not session.readable
                rigs = settle(self.loaded, session, self.tier, Silent())
                for number, shape in enumerate(self.shapes):
                    self.progress.advance(len(self.shapes) + number, 2 * len(self.shapes), f"calls, {shape.key}")
                    plan, rig = plans[shape.key], rigs[shape.key]
                    cases = self._cases(shape, process)
                    rig.set_weights(self._weights(shape))
                    runs[shape.key].append(run_process(self.loaded, rig, plan, process, cases, displace))
                    reduction = self._reduce(plan, runs[shape.key], nulls[shape.key], floors[shape.key], copied, False)
                    if reduction.decision is Decision.REPEAT and process == processes - 1:
                        again = repeat_plan(plan, self.secret)
                        runs[shape.key].append(run_process(self.loaded, rig, again, 0, cases, displace))
                        reduction = self._reduce(
                            plan, runs[shape.key], nulls[shape.key], floors[shape.key], copied, True
                        )
                    timings[shape.key] = reduction.timing
                    self._compare(rig, shape, runs[shape.key][-1])
        return [timings[s.key] for s in self.shapes]

    @staticmethod
    def _reduce(
        plan: ShapePlan,
        runs: list[ProcessRun],
        nulls: list[tuple[int, float]],
        known: Floor,
        copied: bool,
        final: bool,
    ) -> Reduction:
        samples = ShapeSamples(
            processes=[ProcessSamples(inner_us=run.inner_us, rounds=run.rounds) for run in runs],
            nulls=nulls,
            copied_outputs=copied,
        )
        return reduce_shape(plan, samples, known, final=final)

    def _weights(self, shape: Shape) -> dict[str, torch.Tensor]:
        seed = weights_seed(self.loaded.problem, self.secret, shape.key)
        return draw(self.loaded, shape, "nominal", SETTLE_SEED, seed).weights

    def _cases(self, shape: Shape, process: int) -> Iterator[Case]:
        weights = weights_seed(self.loaded.problem, self.secret, shape.key)
        for number in itertools.count():
            seed = derive(self.secret, "timed", shape.key, str(process), str(number))
            yield Case(shape=shape.key, case="nominal", seed=seed, weights_seed=weights)

    def _compare(self, rig: Rig, shape: Shape, run: ProcessRun) -> None:
        """Every timed call is compared; the first at fault becomes evidence."""
        begun = time.monotonic()
        proves = "timed calls take the checked path and their results are right"
        subject = Subject(self.loaded, rig, self.open, self._seeds(shape))
        outcome = Outcome("passed")
        earlier: list[tuple[str, dict[str, torch.Tensor]]] = []
        for number, checked in enumerate(compare_calls(self.loaded, rig, run.calls), 1):
            if checked.faults:
                outcome = subject.explain("probe.timed_is_checked", f"timed call {number}", checked, earlier)
                break
            earlier.append((f"timed call {number}", checked.actual))
        self._keep("timed_is_checked", proves, outcome, shape, time.monotonic() - begun)


@contextmanager
def pinned(cpu: int) -> Iterator[None]:
    """Run this process on one core, with one thread, for a while."""
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, {cpu})
    torch.set_num_threads(1)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)
