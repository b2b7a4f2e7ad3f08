"""Probes and clocks of a grade: what decides whether a right submission is genuine, and how fast it is.

Each needs fresh workers, and one process of the submission lives at a time: a live worker is killed before a fresh one
is asked for comparison.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from kernelassay.decks import LoadedProblem
from kernelassay.devices import device_cpus
from kernelassay.judge._clocks import Clocks, Nulls, pinned
from kernelassay.judge._plan import derive
from kernelassay.judge._request import Progress
from kernelassay.judge._workers import Workers
from kernelassay.probes import PROBES, Evidence, Outcome, Subject, result_of
from kernelassay.records import (
    Case,
    Device,
    Force,
    Measurement,
    ProbeResult,
    Shape,
    ShapeTiming,
    Tier,
    Timing,
    TimingState,
    Verdict,
    evaluate,
)
from kernelassay.session import Rig, Session
from kernelassay.timing import BLATANT_SHARE, FORGED_SHARE, Mode, ProcessRun, awake, claimed_share, reduce_grade

HEAVY_FLOPS = 2e8
"""Shapes above this are probed on one secret shape only: a call takes milliseconds on one core. [estimated]"""
TIMED = "timed_is_checked"
"""Name under which the comparison of timed calls stands among the probes."""
CLAIMED = "claimed_times"
"""Name under which the worker's clock is held against the judge's."""
CLOCK_PROBES = frozenset({TIMED, CLAIMED})
"""What a run of the clocks answers."""
ONCE = frozenset({"fresh_process", "global_state"})
"""Probes about the process rather than a shape: one secret shape is enough."""
ENDING = frozenset({"fresh_process"})
"""Probes that end the live worker: they come last, so that no other has to be started for those after it."""


@dataclass(frozen=True)
class Live:
    """A worker with the submission, and its global state before that was loaded."""

    session: Session
    before: dict[str, str]


@dataclass
class Trust:
    """Probes and clocks over one built submission."""

    loaded: LoadedProblem
    workers: Workers
    tier: Tier
    shapes: tuple[Shape, ...]
    """Those of the tier; fewer in a replay."""
    secret: bytes
    device: Device
    home: Path
    mode: Mode
    progress: Progress
    probes: list[ProbeResult] = field(default_factory=list)
    evidence: list[tuple[str, Evidence]] = field(default_factory=list)
    """Probe name and what it found; of several findings by one rule the first."""
    convicting: set[str] = field(default_factory=set)
    """Probes that have convicted, by a rule of their own or by one that another probe found first."""
    current: str | None = None
    """The probe that is running."""

    def run_probes(self, live: Live | None, only: frozenset[str] | None = None) -> None:
        """Every probe on every shape (heavy shapes: one of them).

        Args:
            live: A worker with the submission; a probe may end it, and the later ones get another. None: get one.
            only: Names of the probes to run; None: all.

        Raises:
            kernelassay.session.Trouble: a call did not return.
        """
        once = self._secret_shape()
        steps = [
            (shape, name)
            for shape in self._probed()
            for name in PROBES
            if (only is None or name in only) and (name not in ONCE or shape is once)
        ]
        steps.sort(key=lambda step: step[1] in ENDING)
        total = len(steps)
        ran = 0 if live is None or live.session.ended else self._probe_until_retired(live, steps, total)
        while steps := [step for step in steps[ran:] if not self._convicted_by(step[1])]:
            with self.workers.open(load=False) as session:  # a probe that asked for a fresh worker ended the live one
                live = Live(session, session.globals())
                session.load()
                ran = self._probe_until_retired(live, steps, total)

    def _probe_until_retired(self, live: Live, steps: list[tuple[Shape, str]], total: int) -> int:
        """Run probes in one worker until none is left or the worker is gone; returns how many ran."""
        session = live.session
        for number, (shape, name) in enumerate(steps):
            self.progress.advance(total - len(steps) + number, total, f"{name} on {shape.key}")
            proves, run = PROBES[name]
            self.current = name
            begun = time.monotonic()
            subject = self._subject(Rig(session, shape), shape, session, live.before)
            self._keep(name, proves, run(subject), shape, time.monotonic() - begun)
            if session.ended:
                return number + 1
        return len(steps)

    def _convicted_by(self, name: str) -> bool:
        """Whether the probe has convicted on some shape: one counter-example is enough, the next ones cost workers."""
        return name in self.convicting

    def _convicted(self) -> bool:
        return any(evidence.force is Force.CONVICTS for _, evidence in self.evidence)

    def _subject(self, rig: Rig, shape: Shape, session: Session, before: dict[str, str]) -> Subject:
        def seed(purpose: str) -> int:
            return derive(self.secret, "probe", shape.key, purpose)

        def retire() -> None:
            session.close()

        return Subject(self.loaded, rig, self.workers.open, seed, retire, before)

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
        if any(e.force is Force.CONVICTS for e in outcome.evidence):
            self.convicting.add(name)
        known = {e.rule for _, e in self.evidence}
        self.evidence += [(name, e) for e in outcome.evidence if e.rule not in known]

    def _secret_shape(self) -> Shape:
        probed = self._probed()
        return probed[derive(self.secret, "probed shape") % len(probed)]

    def _probed(self) -> tuple[Shape, ...]:
        light = tuple(s for s in self.shapes if evaluate(self.loaded.problem.cost.flops, s.values) <= HEAVY_FLOPS)
        heavy = tuple(s for s in self.shapes if s not in light)
        chosen = heavy[derive(self.secret, "heavy shape") % len(heavy)] if heavy else None
        return light + ((chosen,) if chosen else ())

    def run_clocks(self, only: frozenset[str] | None = None) -> Timing:
        """Both clocks on every shape, or on those in `only`, in as many fresh processes as the mode asks for.

        Raises:
            kernelassay.session.Trouble: a call did not return.
        """
        self.current = TIMED
        judge_cpu, cpus = device_cpus()
        shapes = tuple(s for s in self.shapes if only is None or s.key in only)
        self.workers.wait()
        with pinned(judge_cpu), awake({judge_cpu, *cpus}):
            clocks = Clocks(
                loaded=self.loaded,
                tier=self.tier,
                shapes=shapes,
                secret=self.secret,
                device=self.device,
                cpus=cpus,
                home=self.home,
                mode=self.mode,
                progress=self.progress,
            )
            nulls: Nulls = {}
            runs: dict[str, list[ProcessRun]] = {s.key: [] for s in shapes}
            timings: dict[str, ShapeTiming] = {}
            copied = False
            for process in range(max(plan.processes for plan in clocks.plans.values())):
                with self.workers.open(load=False) as session:
                    nulls = nulls or clocks.nulls(session)
                    session.load()
                    copied = copied or not session.readable
                    rigs = clocks.settle(session)
                    for number, shape in enumerate(shapes):
                        self.progress.advance(number, len(shapes), f"calls, {shape.key}")
                        rig, earlier = rigs[shape.key], runs[shape.key]
                        timings[shape.key] = clocks.time_shape(rig, shape, process, earlier, nulls, copied)
                        noisy = timings[shape.key].state is TimingState.AMBIGUOUS
                        limit = BLATANT_SHARE if noisy else FORGED_SHARE
                        share = claimed_share(earlier[-1].rounds, earlier[-1].claims, nulls[shape.key])
                        self._hold_against(shape, share, limit, next(clocks.cases(shape, process)))
                        if not self._compare(clocks, session, rig, shape, earlier[-1]):
                            return Timing(
                                state=TimingState.INVALID, reason="a timed call was at fault", cause="submission"
                            )
            timing = reduce_grade([timings[s.key] for s in shapes])
            return timing if len(shapes) == len(self.shapes) else timing.model_copy(update={"score": None})

    def _hold_against(self, shape: Shape, share: float | None, limit: float, case: Case) -> None:
        """What it means that the worker's clock owns up to `share` of the judge's time, on the same calls."""
        if share is None:
            outcome = Outcome("unresolved", "the rounds are too short to tell")
        elif share >= limit:
            outcome = Outcome("passed", measured=(Measurement(name="share", value=100 * share, unit="%"),))
        else:
            title = "the worker's clock does not own up to the time that its calls take"
            wanted, told = "about 100 % of the judge's time per call", f"{100 * share:.3g} % of it"
            evidence = Evidence(
                f"probe.{CLAIMED}", Force.CONVICTS, Verdict.REWARD_HACK, title, wanted, told, case,
                detail="its clock is forged, or the work is done outside the calls; the score is the judge's clock's",
            )  # fmt: skip
            outcome = Outcome("failed", title, (evidence,))
        self._keep(CLAIMED, "the worker's clock and the judge's agree on what a call adds", outcome, shape, 0.0)

    def _compare(self, clocks: Clocks, session: Session, rig: Rig, shape: Shape, run: ProcessRun) -> bool:
        """Whether every timed call is right; the first at fault becomes evidence."""
        begun = time.monotonic()
        fault = clocks.first_fault(rig, run)
        outcome = Outcome("passed")
        if fault is not None:
            number, checked, earlier = fault
            subject = self._subject(rig, shape, session, {})
            outcome = subject.explain(f"probe.{TIMED}", f"timed call {number}", checked, earlier)
        self._keep(TIMED, "timed calls take the checked path and are right", outcome, shape, time.monotonic() - begun)
        return fault is None
