"""Two submissions on one problem: fresh processes in the order A B B A, both clocks in each, every call compared.

Neighbouring processes form pairs, so a drift of the machine hits both alike. The answer starts from `ambiguous` and
becomes more only with evidence from all pairs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from kernelassay.decks import LoadedProblem, load
from kernelassay.devices import detect, device_cpus
from kernelassay.judge._build import build
from kernelassay.judge._clocks import Clocks, Nulls, pinned
from kernelassay.judge._intake import UsageError, take_in
from kernelassay.judge._job import job_for
from kernelassay.judge._leased import leased
from kernelassay.judge._plan import SECRET_BYTES
from kernelassay.judge._request import Progress, Silent, default_home
from kernelassay.records import Device, Limits, Shape, Tier
from kernelassay.sandbox import Level, Sandbox, harden_judge, sweep
from kernelassay.session import Job, Session, Trouble
from kernelassay.timing import Context, Pair, ProcessRun, VersusResult, abba, awake, compare

PAIRS = 8
"""Four ABBA blocks: fewer support no claim (`timing._compare.PAIRS`)."""
POLICY = "cpu: inputs evicted, code warm"


@dataclass(frozen=True)
class VersusRequest:
    """Two submissions to compare."""

    a: Path
    b: Path
    problem: str
    device: str = "cpu"
    tier: Tier | None = None
    shapes: tuple[str, ...] = ()
    """Keys of the shapes to time; empty: all of the tier."""
    pairs: int = PAIRS
    level: Level | None = None
    limits: Limits = field(default_factory=Limits)
    home: Path = field(default_factory=default_home)


@dataclass(frozen=True)
class Versus:
    """The comparison, and the times that it stands on."""

    result: VersusResult
    times_us: dict[str, tuple[Pair, ...]]
    """Shape → its pairs."""


def versus(request: VersusRequest, progress: Progress | None = None) -> Versus:
    """Compare B with A.

    Raises:
        UsageError: no such path, shape or device, or one of the two is refused, does not build or is wrong.
        kernelassay.decks.DeckError: no such problem.
        kernelassay.sandbox.SandboxError: this machine cannot confine or build.
        kernelassay.devices.LeaseError: the device's lease cannot be kept.
    """
    loaded = load(request.problem)
    device = detect(request.device)
    if device.kind == "cuda":
        raise UsageError("this release has no clock for a GPU yet\nnext: assay grade … --device … --no-time")
    tier = request.tier or Tier.SMALL
    shapes = tuple(s for s in loaded.problem.tier(tier) if not request.shapes or s.key in request.shapes)
    if not shapes:
        raise UsageError(f"{request.problem} has no such shape\nnext: assay deck show {request.problem}")
    harden_judge()
    sweep()
    sandbox = Sandbox(request.level)
    judge_cpu, cpus = device_cpus()
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="kernelassay-compare-"))
        jobs = [
            _job(loaded, sandbox, path, Path(name) / side, request.limits, device)
            for side, path in (("a", request.a), ("b", request.b))
        ]
        held = stack.enter_context(leased(device, progress or Silent()))
        stack.enter_context(pinned(judge_cpu))
        stack.enter_context(awake({judge_cpu, *cpus}))
        clocks = Clocks(
            loaded=loaded,
            tier=tier,
            shapes=shapes,
            secret=os.urandom(SECRET_BYTES),
            device=device,
            cpus=cpus,
            home=request.home,
            mode="development",
            progress=held,
        )
        context = Context("two clocks", device.fingerprint, loaded.content_hash, POLICY)
        pairs = _Race(clocks, sandbox, jobs, request.pairs).run()
        return Versus(compare(pairs, context, context), {key: tuple(p) for key, p in pairs.items()})


def _job(loaded: LoadedProblem, sandbox: Sandbox, path: Path, folder: Path, limits: Limits, device: Device) -> Job:
    taken = take_in(path, folder / "source")
    if taken.refused is not None:
        raise UsageError(f"{str(path)!r} is refused: {taken.refused}")
    manifest = taken.submission.manifest
    shutil.copytree(taken.folder, folder / "loaded")
    built = build(sandbox, taken.folder, manifest, folder / "loaded", limits)
    if built.trouble is not None:
        raise UsageError(f"{str(path)!r} does not build: {built.trouble.title}\nnext: assay grade {path}")
    return job_for(loaded, folder / "loaded", manifest, limits, device)


@dataclass
class _Race:
    clocks: Clocks
    sandbox: Sandbox
    jobs: list[Job]
    pairs: int

    def run(self) -> dict[str, list[Pair]]:
        """The pairs of every shape."""
        with Session(self.sandbox, self.jobs[0]) as session:
            nulls = self.clocks.nulls(session)
        order = abba(self.pairs)
        times: dict[str, list[tuple[str, float]]] = {s.key: [] for s in self.clocks.shapes}
        for first in range(0, len(order), 2):
            with ExitStack() as stack:
                waiting = [stack.enter_context(self._start(side)) for side in order[first : first + 2]]
                for session in waiting:  # both are up before either is timed, so that no start falls into a clock
                    session.start()
                for number, session in enumerate(waiting, first):
                    side = order[number]
                    self.clocks.progress.advance(number, len(order), f"process of {side}")
                    try:
                        found = self._process(session, side, number, nulls)
                    except Trouble as trouble:
                        text = f"{side} does not hold: {trouble.title}\nnext: assay grade it alone"
                        raise UsageError(text) from trouble
                    for key, time_us in found.items():
                        times[key].append((side, time_us))
        return {
            key: [_pair(values[2 * i], values[2 * i + 1]) for i in range(self.pairs)] for key, values in times.items()
        }

    def _start(self, side: str) -> Session:
        return Session(self.sandbox, self.jobs["AB".index(side)])

    def _process(self, session: Session, side: str, number: int, nulls: Nulls) -> dict[str, float]:
        """Times of one process, microseconds by shape; the process ends here, before another is loaded."""
        out = {}
        with session:
            session.load()
            rigs = self.clocks.settle(session)
            for shape in self.clocks.shapes:
                rig, plan = rigs[shape.key], self.clocks.plans[shape.key]
                run = self.clocks.run(rig, shape, 0, plan, self.clocks.cases(shape, number))
                out[shape.key] = self._time(shape, run, nulls, not session.readable)
                if self.clocks.first_fault(rig, run) is not None:
                    raise UsageError(f"{side} gives a wrong answer on {shape.key}\nnext: assay grade it alone")
        return out

    def _time(self, shape: Shape, run: ProcessRun, nulls: Nulls, copied: bool) -> float:
        timing = self.clocks.reduce(shape, [run], nulls, copied, final=True).timing
        values = [clock.median_us for clock in (timing.inner, timing.outer) if clock is not None]
        return max(values, default=0.0)


def _pair(first: tuple[str, float], second: tuple[str, float]) -> Pair:
    by_side = dict((first, second))
    return Pair(a_us=by_side["A"], b_us=by_side["B"])
