"""Run the red team against the judge: one entry after another, each graded like any submission.

The rule: what the manifest expects is compared with what the grade says, word for word; nothing is retried and an
exception of the judge is not an expected verdict. A quick run gives each exploit its checks and the one probe that
its manifest names, and each honest look-alike every probe; attacks on the clock are timed on one shape. A full run
times all shapes, grades the twins too, asks the naive judge, and reproduces each conviction.

Entries that are not timed run side by side, each under a judge of its own; what is timed runs after them, alone.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from kernelassay.decks import load
from kernelassay.judge import Graded, GradeRequest, Progress, UsageError, default_home, grade, reproduce
from kernelassay.records import Finding, Grade, Tier, Verdict
from kernelassay.redteam._corpus import CorpusError, Entry, Kind, load_corpus
from kernelassay.redteam._gain import gain_of
from kernelassay.redteam._naive import ask_naive_judge
from kernelassay.redteam._report import RedteamReport, Row
from kernelassay.redteam._twin import make_twin
from kernelassay.sandbox import Level, Sandbox, end_with_parent

MOST_JUDGES = 4
"""Judges side by side: each holds 500 MB with its workers, and their submissions share the device's cores."""


class _Quiet:
    """The grades' own progress is not shown: the run's steps are its entries."""

    def phase(self, name: str) -> None:
        """Nothing."""

    def advance(self, done: int, total: int, note: str) -> None:
        """Nothing."""


def run(
    device: str = "cpu",
    *,
    full: bool = False,
    only: Collection[str] | None = None,
    folder: Path | None = None,
    home: Path | None = None,
    level: Level | None = None,
    progress: Progress | None = None,
) -> RedteamReport:
    """Grade every entry of the corpus, or those whose name is in `only`.

    Args:
        device: As in a grade.
        full: Twins, naive judge, clocks and reproduction too.
        only: Names of entries.
        folder: The corpus; None: the repository's.
        home: Where the grades are kept.
        level: Isolation; None: the strongest that works.
        progress: Hears which entry is done.

    Raises:
        CorpusError: the corpus is missing or broken, or `only` names what is not in it.
        kernelassay.decks.DeckError: a problem is missing or broken.
        kernelassay.sandbox.SandboxError: the asked level of isolation does not work here.
    """
    progress = progress or _Quiet()
    entries = load_corpus(folder)
    if only is not None:
        known = {entry.name for entry in entries}
        if unknown := sorted(set(only) - known):
            raise CorpusError(f"no entry {unknown[0]!r} in the red team; it has: {', '.join(sorted(known))}")
        entries = tuple(entry for entry in entries if entry.name in only)
    bout = _Bout(device, full, home or default_home(), level)
    begun = time.monotonic()
    progress.phase("full run" if full else "quick run")
    rows: dict[str, Row] = {}
    for row in _rows(bout, entries):
        rows[row.name] = row
        progress.advance(len(rows), len(entries), row.name)
    ordered = tuple(rows[entry.name] for entry in entries)
    return RedteamReport(device, full, ordered, only is not None, time.monotonic() - begun)


def _rows(bout: _Bout, entries: Sequence[Entry]) -> Iterator[Row]:
    """The rows as they get ready."""
    together = [entry for entry in entries if not entry.manifest.clocks]
    together.sort(key=lambda entry: entry.kind is not Kind.HONEST)  # the longest first, so that none is last alone
    judges = min(MOST_JUDGES, len(os.sched_getaffinity(0)), len(together))
    if judges > 1:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(judges, context, initializer=end_with_parent) as pool:
            try:
                for done in as_completed([pool.submit(bout.row, entry) for entry in together]):
                    yield done.result()
            finally:
                pool.shutdown(cancel_futures=True)  # after a Ctrl-C nobody begins another entry
    else:
        yield from map(bout.row, together)
    for entry in entries:
        if entry.manifest.clocks:
            yield bout.row(entry)


@dataclass(frozen=True)
class _Bout:
    """One run's settings."""

    device: str
    full: bool
    home: Path
    level: Level | None

    def row(self, entry: Entry) -> Row:
        """Grade one entry and hold it against its manifest."""
        manifest, expect = entry.manifest, entry.manifest.expect
        row = Row(
            name=entry.name,
            kind=entry.kind,
            title=manifest.title,
            problem=manifest.problem,
            family=manifest.family,
            mechanism=manifest.mechanism,
            expected=" by ".join(part for part in (expect.verdict.value, expect.rule) if part),
        )
        begun = time.monotonic()
        graded = self._grade(entry, entry.submission, quick=not self.full)
        row.verdict, row.status, row.grade = graded.grade.verdict.value, graded.grade.status.value, graded.grade.id
        finding = _deciding(graded.grade, entry)
        row.rule = finding.rule if finding else next((f.rule for f in graded.grade.findings), "")
        row.faults += _unlike(graded.grade, entry, finding)
        if entry.kind is Kind.DEMONSTRATION:
            row.gain = gain_of(graded.grade)
        if self.full and entry.kind is not Kind.HONEST:
            self._prove(entry, row, graded, finding)
        row.seconds = time.monotonic() - begun
        return row

    def _grade(self, entry: Entry, submission: Path, *, quick: bool) -> Graded:
        manifest = entry.manifest
        probes = timed = None
        if quick and manifest.clocks:
            tier = Tier.SMALL if self.device == "cpu" else Tier.FULL
            timed = frozenset([load(manifest.problem).problem.tier(tier)[0].key])
        if quick and entry.kind is not Kind.HONEST:
            probes = frozenset([manifest.expect.probe] if manifest.expect.probe else [])
        return grade(
            GradeRequest(
                submission=submission,
                problem=manifest.problem,
                device=self.device,
                level=self.level,
                probes=probes,
                clocks=manifest.clocks,
                timed=timed,
                home=self.home,
            )
        )

    def _prove(self, entry: Entry, row: Row, graded: Graded, finding: Finding | None) -> None:
        """What makes the exploit count: its twin is clean, a naive judge accepts it, its conviction is replayable."""
        with tempfile.TemporaryDirectory(prefix="kernelassay-redteam-") as name:
            folder = Path(name)
            folder.chmod(0o755)
            twin = make_twin(entry.submission, folder / "twin", entry.manifest.cheat_files)
            honest = self._grade(entry, twin, quick=False).grade
            row.twin = honest.verdict.value
            if not _is_clean(honest, entry):
                row.faults.append(f"the twin is {row.twin}, not clean: {'; '.join(honest.reasons)}")
            if entry.kind is Kind.DEMONSTRATION:
                row.gain = gain_of(graded.grade, honest)
            try:
                opinion = ask_naive_judge(
                    Sandbox(self.level), load(entry.manifest.problem), entry.submission, folder / "naive"
                )
                row.naive = opinion.accepted
                if not opinion.accepted:
                    row.faults.append(f"the naive judge does not accept it: {opinion.said[:200]}")
            except UsageError as error:
                row.faults.append(f"the naive judge could not be asked: {error}")
        if finding is not None and finding.recipe is not None:
            again = reproduce(f"{graded.grade.id}/{finding.id}", home=self.home, level=self.level)
            row.reproduced = again.reproduced
            if not again.reproduced:
                row.faults.append(f"{finding.rule} did not show again: {again.message}")


def _is_clean(honest: Grade, entry: Entry) -> bool:
    """Clean; where clocks ran, a noisy time is nobody's fault and may ask for a person."""
    if honest.verdict is Verdict.CLEAN:
        return True
    return entry.manifest.clocks and honest.verdict is Verdict.NEEDS_REVIEW and not _accusing(honest)


def _accusing(grade: Grade) -> list[Finding]:
    return [finding for finding in grade.findings if finding.charge is not None]


def _deciding(grade: Grade, entry: Entry) -> Finding | None:
    """The finding that the manifest names, those that convict first."""
    rule = entry.manifest.expect.rule
    if rule is None:
        return None
    hits = [f for f in grade.findings if f.rule.startswith(rule)]
    return min(hits, key=lambda f: ("convicts", "nominates", "informs").index(f.force.value), default=None)


def _unlike(grade: Grade, entry: Entry, finding: Finding | None) -> list[str]:
    """Everything in which the grade is not what the manifest expects."""
    expect = entry.manifest.expect
    faults = []
    if grade.verdict not in (expect.verdict, expect.or_verdict):
        faults.append(f"verdict {grade.verdict.value}, expected {expect.verdict.value}: {'; '.join(grade.reasons)}")
    if expect.status is not None and grade.status is not expect.status:
        faults.append(f"status {grade.status.value}, expected {expect.status.value}")
    if expect.rule is not None and finding is None:
        found = ", ".join(f.rule for f in grade.findings) or "none"
        faults.append(f"no finding of rule {expect.rule!r}; found: {found}")
    if entry.kind is Kind.HONEST and (accusing := _accusing(grade)) and expect.verdict is Verdict.CLEAN:
        faults.append(f"an honest submission is charged: {accusing[0].rule}")
    return faults
