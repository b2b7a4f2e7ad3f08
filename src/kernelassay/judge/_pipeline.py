"""A grade, step by step: intake → build → check → decide → record.

Each step leaves facts; the verdict is decided once, at the end, from all of them. Whatever ends the worker early
ends the steps, never the record.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch

from kernelassay.decks import LoadedProblem, load
from kernelassay.devices import LeaseError, detect, environment
from kernelassay.judge._build import Built, build
from kernelassay.judge._builds import build_key, keep_build, kept_build
from kernelassay.judge._clocks import single_threaded
from kernelassay.judge._diagnose import Diagnosis, diagnose
from kernelassay.judge._findings import clock_findings, findings_of, recipe_of
from kernelassay.judge._intake import TakenIn, UsageError, take_in
from kernelassay.judge._job import job_for, settle_beside
from kernelassay.judge._leased import leased
from kernelassay.judge._plan import SECRET_BYTES, commitment, plan_cases
from kernelassay.judge._request import Graded, GradeRequest, Progress, Silent
from kernelassay.judge._settle import settle
from kernelassay.judge._store import LOG_FILE, SUBMISSION_FOLDER, commit, new_grade_id, open_partial, sweep_partials
from kernelassay.judge._trust import Live, Trust
from kernelassay.judge._workers import Workers
from kernelassay.judge.verdict import Facts, decide
from kernelassay.probes import Evidence
from kernelassay.records import (
    WAIT,
    Artefact,
    Case,
    Device,
    Edition,
    EntryKind,
    Force,
    Grade,
    Phase,
    ProbeResult,
    ProblemRef,
    Recipe,
    Status,
    Tier,
    Timing,
    TimingState,
    Verdict,
)
from kernelassay.sandbox import Sandbox, SandboxError, harden_judge, sweep
from kernelassay.session import Checked, DeviceMemoryError, Job, Rig, Trouble, check_case

NOT_TIMED = Timing(state=TimingState.INVALID, reason="not timed: only a right, unconvicted submission is")
NOT_ASKED = Timing(state=TimingState.INVALID, reason="not timed: not asked for")
SCORED = (Verdict.CLEAN, Verdict.RUBRIC_LEAK, Verdict.NEEDS_REVIEW)
"""Verdicts beside which a score may stand."""


def grade(request: GradeRequest, progress: Progress | None = None) -> Graded:
    """Grade one submission and keep the record.

    Raises:
        UsageError: the caller's mistake: no such path, device or home.
        kernelassay.decks.DeckError: no such problem, or a broken deck.
        kernelassay.sandbox.SandboxError: the asked level of isolation does not work here.
    """
    loaded = load(request.problem)
    device = detect(request.device)
    tier = request.tier or (Tier.SMALL if device.kind == "cpu" else Tier.FULL)
    if not loaded.problem.tier(tier):
        raise UsageError(f"{request.problem} has no shapes of tier {tier!r}\nnext: assay deck show {request.problem}")
    if device.kind == "cuda" and request.clocks:
        raise UsageError("this release has no clock for a GPU yet\nnext: the same command with --no-time")
    harden_judge()
    sweep()
    sweep_partials(request.home)
    now = datetime.now(UTC)
    partial = open_partial(request.home, new_grade_id(now))
    grading = _Grading(request, loaded, device, tier, now, partial, progress or Silent())
    try:
        with single_threaded() if device.kind == "cpu" else nullcontext():
            return grading.run()
    finally:
        if partial.exists():
            shutil.rmtree(partial, ignore_errors=True)


@dataclass
class _Grading:
    """One grade in the making."""

    request: GradeRequest
    loaded: LoadedProblem
    device: Device
    tier: Tier
    now: datetime
    partial: Path
    progress: Progress
    phases: list[Phase] = field(default_factory=list)
    checked: list[Checked] = field(default_factory=list)
    planned: tuple[Case, ...] = ()
    secret: bytes | None = None
    status: Status = Status.CORRECT
    trouble: tuple[Trouble, Recipe] | None = None
    infra: str | None = None
    diagnosis: Diagnosis | None = None
    kind: EntryKind | None = None
    log: list[str] = field(default_factory=list)
    artefacts: list[Artefact] = field(default_factory=list)
    sandbox: Sandbox | None = None
    timing: Timing = field(init=False)
    probes: list[ProbeResult] = field(default_factory=list)
    evidence: list[tuple[str, Evidence]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.timing = NOT_TIMED if self.request.clocks else NOT_ASKED

    @property
    def id(self) -> str:
        """The grade's id, as the partial folder's name holds it."""
        return self.partial.name.removeprefix(".partial-")[: len("g-00000000T000000-00000000")]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time one phase and tell the caller."""
        self.progress.phase(name)
        start = time.monotonic()
        try:
            yield
        finally:
            self.phases.append(Phase(name=name, seconds=time.monotonic() - start))

    def run(self) -> Graded:
        """All steps, then the record."""
        with self.phase("intake"):
            taken = take_in(self.request.submission, self.partial / SUBMISSION_FOLDER)
        self.kind = taken.submission.entry
        if self.device.kind == "cuda" and taken.submission.manifest.build is not None:
            raise UsageError(
                "`build` compiles host code, which no GPU runs\nnext: --device cpu, or read docs/devices.md"
            )
        if taken.refused is not None:
            self.status = Status.REFUSED
            return self._record(taken)
        self.sandbox = Sandbox(self.request.level)
        loaded_folder = self.partial / "loaded"
        shutil.copytree(taken.folder, loaded_folder)
        try:
            with Workers(self.sandbox, self._job(taken, loaded_folder), expected=self._expected()) as workers:
                self._build(taken, loaded_folder)
                if self.trouble is None:
                    with ExitStack() as stack:
                        if self.device.kind == "cuda":
                            self._hold(stack)  # whatever runs there disturbs whoever measures there
                            settle_beside(self.device)
                        self._judge(workers)
        except (SandboxError, LeaseError) as error:
            self.infra = str(error)
        except (torch.OutOfMemoryError, torch.AcceleratorError, DeviceMemoryError) as error:
            said = str(error).split(". ")[0].splitlines()[0]
            self.infra = f"{self.device.name} failed the judge: {said}\nnext: nvidia-smi, then the same command again"
        finally:
            shutil.rmtree(loaded_folder, ignore_errors=True)
        proven = self._checked_status()
        if self.infra is not None and proven is Status.CORRECT:
            self.status = Status.INFRA
        elif self.infra is not None:
            self.log.append(f"the machine failed after this was shown: {self.infra}")
            self.infra, self.status = None, proven
        elif self.trouble is not None:
            self.status = self.trouble[0].status
        else:
            self.status = proven
        return self._record(taken)

    def _checked_status(self) -> Status:
        """The worst that cases and probes showed."""
        shown = {c.result.status for c in self.checked}
        for _, evidence in self.evidence:
            if evidence.force is Force.CONVICTS:
                shown.add(Status.CONTRACT if evidence.rule.startswith("contract.") else Status.WRONG)
        return next((s for s in (Status.WRONG, Status.CONTRACT) if s in shown), Status.CORRECT)

    def _build(self, taken: TakenIn, into: Path) -> None:
        manifest = taken.submission.manifest
        if manifest.build is None or self.sandbox is None:
            return
        with self.phase("build"):
            built = self._built(self.sandbox, taken, into)
        self.log.append(built.log)
        if built.trouble is not None:
            self.trouble = built.trouble, Recipe(stage="build")
        elif built.sha256 is not None:
            when = "for an earlier grade of the same files" if built.kept else "for this grade"
            what = f"library built by the judge {when}, not part of this record"
            self.artefacts.append(Artefact(path=manifest.build.library, sha256=built.sha256, what=what))

    def _built(self, sandbox: Sandbox, taken: TakenIn, into: Path) -> Built:
        """The library; a development grade takes the one that an earlier grade of the same files left."""
        request, manifest = self.request, taken.submission.manifest
        key = build_key(taken.submission, sandbox.level) if request.mode == "development" else None
        if key is not None and manifest.build is not None:
            kept = kept_build(request.home, key, into / manifest.build.library)
            if kept is not None:
                return kept
        built = build(sandbox, taken.folder, manifest, into, request.limits)
        if key is not None:
            keep_build(request.home, key, built)
        return built

    def _expected(self) -> int:
        """Workers that a right submission needs: checks and probes share one, fresh ones are asked, one is timed."""
        probes = self.request.probes
        fresh = 2 if probes is None or "fresh_process" in probes else 1 if probes else 0
        return 1 + fresh + (1 if self.request.clocks else 0)

    def _job(self, taken: TakenIn, folder: Path) -> Job:
        """What every worker of this grade is started with."""
        return job_for(self.loaded, folder, taken.submission.manifest, self.request.limits, self.device)

    def _judge(self, workers: Workers) -> None:
        """Checks and probes in one process, clocks in others: what is wrong or convicted is not timed."""
        trust = None
        recipe = Recipe(stage="load")
        try:
            with ExitStack() as stack:
                with self.phase("load"):
                    session = stack.enter_context(workers.open(load=False))
                    live = Live(session, session.globals())
                    self.kind = session.load()
                    rigs = settle(self.loaded, session, self.tier, self.progress)
                self.secret = os.urandom(SECRET_BYTES)
                self.planned = plan_cases(self.loaded.problem, self.tier, self.secret)
                with self.phase("check"):
                    for number, case in enumerate(self.planned):
                        recipe = recipe_of(case)
                        self.progress.advance(number, len(self.planned), f"{case.case} on {case.shape}")
                        self._keep(check_case(self.loaded, rigs[case.shape], case))
                self._diagnose(workers, rigs)
                trust = self._trust(workers, self.secret)
                with self.phase("probe"):
                    trust.run_probes(live, self.request.probes)
            convicted = any(e.force is Force.CONVICTS for _, e in trust.evidence)
            if self.request.clocks and not convicted and all(c.result.status is Status.CORRECT for c in self.checked):
                with ExitStack() as stack:
                    if self.device.kind == "cpu":
                        self._hold(stack)
                    trust.progress = self.progress
                    with self.phase("time"):
                        self.timing = trust.run_clocks(self.request.timed)
        except Trouble as trouble:
            self.trouble = trouble, recipe if trust is None else Recipe(stage="probe", probe=trust.current)
        finally:
            self.log += workers.logs
            if trust is not None:
                self.probes, self.evidence = trust.probes, trust.evidence

    def _keep(self, one: Checked) -> None:
        """Remember a case; its tensors only if it is the one to be diagnosed, since all of them fit no memory."""
        first = one.result.status is Status.WRONG and all(c.result.status is not Status.WRONG for c in self.checked)
        self.checked.append(one if first else one.told())

    def _hold(self, stack: ExitStack) -> None:
        """Wait for the device and hold it until the stack ends; the wait is no part of any limit."""
        with self.phase(WAIT):
            before, self.progress = self.progress, stack.enter_context(leased(self.device, self.progress))
        stack.callback(setattr, self, "progress", before)

    def _diagnose(self, workers: Workers, rigs: dict[str, Rig]) -> None:
        """Say more of the first wrong case, unless only certain probes were asked for."""
        wrong = next((c for c in self.checked if c.result.status is Status.WRONG), None)
        if wrong is not None and self.request.probes is None:
            with self.phase("diagnose"):
                self.diagnosis = diagnose(
                    self.loaded, workers.sandbox, workers.job, rigs[wrong.result.case.shape], wrong
                )

    def _trust(self, workers: Workers, secret: bytes) -> Trust:
        return Trust(
            loaded=self.loaded,
            workers=workers,
            tier=self.tier,
            shapes=self.loaded.problem.tier(self.tier),
            secret=secret,
            device=self.device,
            home=self.request.home,
            mode=self.request.mode,
            progress=self.progress,
        )

    def _record(self, taken: TakenIn) -> Graded:
        self.progress.phase("record")
        timing = self.timing
        findings = findings_of(self.id, self.checked, self.trouble, self.diagnosis, self.evidence)
        findings += clock_findings(timing, len(findings))
        verdict, reasons = decide(Facts(self.status, timing, findings))
        if self.loaded.edition is Edition.EDITED:
            version = self.loaded.problem.version
            reasons += (f"{self.loaded.problem.name} was edited since its version {version} was frozen",)
        if taken.refused is not None:
            reasons = (f"refused: {taken.refused}",)
        if self.infra is not None:
            reasons = (self.infra,)
        (self.partial / LOG_FILE).write_text("\n".join(text for text in self.log if text), encoding="utf-8")
        record = Grade(
            id=self.id,
            created_at=self.now,
            problem=ProblemRef(
                name=self.loaded.problem.name,
                version=self.loaded.problem.version,
                content_hash=self.loaded.content_hash,
                edition=self.loaded.edition,
                tier=self.tier,
            ),
            submission=taken.submission.model_copy(update={"entry": self.kind}),
            device=self.device,
            environment=environment(),
            isolation=self.sandbox.isolation if self.sandbox else None,
            limits=self.request.limits,
            status=self.status,
            timing=timing,
            verdict=verdict,
            reasons=reasons,
            score=timing.score.value if timing.score and verdict in SCORED and self.status is Status.CORRECT else None,
            findings=findings,
            probes=tuple(self.probes),
            cases=tuple(c.result for c in self.checked),
            cases_planned=len(self.planned),
            secret_commitment=commitment(self.secret) if self.secret else None,
            secret=self.secret.hex() if self.secret else None,
            phases=tuple(self.phases),
            artefacts=tuple(self.artefacts),
        )
        return commit(self.partial, record)
