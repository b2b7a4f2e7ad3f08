"""Replay one finding: the archived submission, the recorded seed, a fresh worker.

A case is tried alone first. If it then behaves, it is tried again after all the calls that came before it in the
grade, the settling ones included, because a submission may count its calls. What a probe or a clock found is found
by the same probe or clock, on the same shape, with the grade's revealed secret.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelassay.decks import LoadedProblem, load
from kernelassay.devices import DeviceError, detect
from kernelassay.judge._build import build
from kernelassay.judge._intake import UsageError, content_hash, take_in
from kernelassay.judge._job import job_for, settle_beside
from kernelassay.judge._leased import leased
from kernelassay.judge._plan import commitment, plan_cases
from kernelassay.judge._request import Progress, Silent, default_home
from kernelassay.judge._settle import settle
from kernelassay.judge._store import SUBMISSION_FOLDER, load_grade
from kernelassay.judge._trust import CLOCK_PROBES, Live, Trust
from kernelassay.judge._workers import AHEAD, Workers
from kernelassay.records import Case, Device, Finding, Grade
from kernelassay.sandbox import Level, Sandbox, harden_judge, sweep
from kernelassay.session import Fault, Job, Rig, Session, Trouble, check_case


@dataclass(frozen=True)
class Reproduction:
    """What a replay showed."""

    reference: str
    reproduced: bool
    expected: str
    actual: str
    message: str
    finding: Finding


def reproduce(
    reference: str, *, home: Path | None = None, level: Level | None = None, progress: Progress | None = None
) -> Reproduction:
    """Replay the finding `<grade>/<finding id>`.

    Raises:
        UsageError: no such grade or finding, or the deck is not the one that it was found with.
        kernelassay.sandbox.SandboxError: this machine cannot confine or build.
        kernelassay.devices.LeaseError: what a clock found needs the device, whose lease cannot be kept.
    """
    progress = progress or Silent()
    grade_reference, _, finding_id = reference.rpartition("/")
    graded = load_grade(grade_reference, home or default_home())
    finding = next((f for f in graded.grade.findings if f.id == finding_id), None)
    if finding is None or finding.recipe is None:
        ids = ", ".join(f.id for f in graded.grade.findings if f.recipe) or "none"
        raise UsageError(f"grade {graded.grade.id} has no finding {finding_id!r} to reproduce; it has: {ids}")
    loaded = load(graded.grade.problem.name)
    if loaded.content_hash != graded.grade.problem.content_hash:
        raise UsageError(
            f"{graded.grade.problem.name} is not the problem that this grade was made with "
            f"(hash {loaded.content_hash[:12]}, then {graded.grade.problem.content_hash[:12]})\n"
            "next: check out that deck"
        )
    _check_secret(graded.grade, finding)
    device = _device_of(graded.grade)
    harden_judge()
    sweep()
    with tempfile.TemporaryDirectory(prefix="kernelassay-reproduce-") as name:
        folder = Path(name) / "loaded"
        taken = take_in(graded.folder / SUBMISSION_FOLDER, folder)
        if taken.refused or content_hash(list(taken.submission.files)) != graded.grade.submission.content_hash:
            raise UsageError(f"the submission kept in {str(graded.folder)!r} is not the one that was graded")
        Path(folder).chmod(0o755)
        place = home or default_home()
        attempt = _Attempt(graded.grade, finding, loaded, folder, device, Sandbox(level), place, progress)
        if device.kind == "cpu":
            return attempt.run(reference)
        with leased(device, progress):
            settle_beside(device)
            return attempt.run(reference)


def _device_of(grade: Grade) -> Device:
    """The unit that the grade was made on where it is here, else one of its kind."""
    name, gpu = grade.device.name, grade.device.gpu
    if gpu is None:
        return detect(name)
    try:
        return detect(f"{name}:{gpu.uuid}")
    except DeviceError:
        return detect(name)


def _check_secret(grade: Grade, finding: Finding) -> None:
    """The revealed secret is the one that was committed to, and the finding's seed follows from it.

    Raises:
        UsageError: it is not, so the record was changed after it was written.
    """
    recipe = finding.recipe
    if grade.secret is None or recipe is None:
        return
    try:
        secret = bytes.fromhex(grade.secret)
    except ValueError:
        secret = b""
    problem = load(grade.problem.name).problem
    plan = {(c.shape, c.case): c.seed for c in plan_cases(problem, grade.problem.tier, secret)}
    told = recipe.stage != "case" or plan.get((recipe.shape or "", recipe.case or "")) == recipe.seed
    if commitment(secret) != grade.secret_commitment or not told:
        raise UsageError(f"grade {grade.id} was changed: its seeds do not follow from the secret it committed to")


@dataclass
class _Attempt:
    grade: Grade
    finding: Finding
    loaded: LoadedProblem
    folder: Path
    device: Device
    sandbox: Sandbox
    home: Path
    progress: Progress

    def run(self, reference: str) -> Reproduction:
        """Replay, and say what was seen."""
        recipe = self.finding.recipe
        assert recipe is not None
        seen: Trouble | tuple[str, str] | None
        self.progress.phase("build")
        source = self.folder.with_name("source")
        shutil.copytree(self.folder, source)
        built = build(self.sandbox, source, self.grade.submission.manifest, self.folder, self.grade.limits)
        if built.trouble is not None or recipe.stage == "build":
            return self._told(reference, built.trouble.rule if built.trouble else None, built.trouble)
        if recipe.stage == "probe" and recipe.probe is not None and self.grade.secret is not None:
            self.progress.phase(f"probe {recipe.probe}")
            seen = self._probe(recipe.probe, recipe.shape)
            return self._told(reference, self.finding.rule if seen is not None else None, seen)
        case = next((c for c in self._plan() if (c.shape, c.case) == (recipe.shape, recipe.case)), None)
        seen = None
        alone = [([case], False)] if case is not None else []
        for sequence, settled in [*alone, (self._sequence(case), True)]:
            self.progress.phase(f"replay {len(sequence)} call(s)")
            rules, seen = self._replay(sequence, settled)
            if self.finding.rule in rules:
                return self._told(reference, self.finding.rule, seen)
        return self._told(reference, None, seen)

    def _probe(self, probe: str, shape: str | None) -> Trouble | tuple[str, str] | None:
        """Run a probe, or the clocks, again with the grade's own seeds; what was seen of the finding's rule.

        Alone on its shape first; if that shows nothing, after all the probes that came before it in the grade.
        """
        if probe in CLOCK_PROBES:
            return self._trust(shape, self._clocks)
        alone = self._trust(shape, lambda trust: trust.run_probes(None, frozenset({probe})))
        return alone if alone is not None else self._trust(None, self._probe_after_checks)

    def _clocks(self, trust: Trust) -> None:
        with leased(trust.device, self.progress) as trust.progress:
            trust.run_clocks()

    def _probe_after_checks(self, trust: Trust) -> None:
        """All calls of the grade up to the end of its probes, in one worker as there."""
        with trust.workers.open(load=False) as session:
            live = Live(session, session.globals())
            session.load()
            self._calls(session, settle(self.loaded, session, self.grade.problem.tier, self.progress), self._plan())
            trust.run_probes(live)

    def _trust(self, shape: str | None, run: Callable[[Trust], object]) -> Trouble | tuple[str, str] | None:
        tier = self.grade.problem.tier
        with Workers(self.sandbox, self._job(), expected=AHEAD) as workers:
            trust = Trust(
                loaded=self.loaded,
                workers=workers,
                tier=tier,
                shapes=tuple(s for s in self.loaded.problem.tier(tier) if shape in (None, s.key)),
                secret=bytes.fromhex(self.grade.secret or ""),
                device=self.device,
                home=self.home,
                mode="development",
                progress=self.progress,
            )
            try:
                run(trust)
            except Trouble as trouble:
                return trouble if trouble.rule == self.finding.rule else None
        return next(((e.expected, e.actual) for _, e in trust.evidence if e.rule == self.finding.rule), None)

    def _plan(self) -> tuple[Case, ...]:
        if self.grade.secret is None:
            return ()
        return plan_cases(self.loaded.problem, self.grade.problem.tier, bytes.fromhex(self.grade.secret))

    def _sequence(self, case: Case | None) -> list[Case]:
        plan = self._plan()
        return [*plan[: plan.index(case)], case] if case is not None else []

    def _replay(self, sequence: Sequence[Case], settled: bool) -> tuple[set[str], Trouble | tuple[str, str] | None]:
        """Rules that the last call of a sequence breaks, and what was seen of the finding's rule."""
        with Session(self.sandbox, self._job()) as session:
            try:
                session.load()
                tier = self.grade.problem.tier
                rigs = settle(self.loaded, session, tier, self.progress) if settled else {}
                faults = self._calls(session, rigs, sequence)
                seen = next(((f.expected, f.actual) for f in faults if f.rule == self.finding.rule), None)
                return {f.rule for f in faults}, seen
            except Trouble as trouble:
                return {trouble.rule}, trouble

    def _calls(self, session: Session, rigs: dict[str, Rig], sequence: Sequence[Case]) -> list[Fault]:
        """Make the calls of some cases; the faults of the last one."""
        faults: list[Fault] = []
        for number, case in enumerate(sequence):
            self.progress.advance(number, len(sequence), f"{case.case} on {case.shape}")
            if case.shape not in rigs:
                rigs[case.shape] = Rig(session, self.loaded.problem.shape(case.shape))
            faults = list(check_case(self.loaded, rigs[case.shape], case).faults)
        return faults

    def _job(self) -> Job:
        return job_for(self.loaded, self.folder, self.grade.submission.manifest, self.grade.limits, self.device)

    def _told(self, reference: str, rule: str | None, seen: Trouble | tuple[str, str] | None) -> Reproduction:
        match seen:
            case Trouble():
                expected, actual = seen.expected, seen.actual or seen.title
            case (expected, actual):
                pass
            case _:
                expected, actual = self.finding.expected or "", "as expected"
        reproduced = rule == self.finding.rule
        message = f"{self.finding.rule}: {'seen again' if reproduced else 'not seen this time'}"
        return Reproduction(reference, reproduced, expected, actual, message, self.finding)
