"""A judge and a sandbox that answer from a table, so that the command line is tested alone and quickly."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kernelassay
from kernelassay.cli import main
from kernelassay.records import Finding, Grade, Isolation, Limits, Tier, Verdict
from tests.board import grades as made


@pytest.fixture(scope="session")
def grades() -> ModuleType:
    """The module `tests/board/grades.py`."""
    return made


class _Level(StrEnum):
    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"
    NONE = "none"


@dataclass(frozen=True)
class _LevelReport:
    level: _Level
    works: bool
    reasons: tuple[str, ...] = ()
    how_to: tuple[str, ...] = ()


class _SandboxError(Exception):
    pass


class _UsageError(Exception):
    pass


@dataclass(frozen=True)
class _Graded:
    grade: Grade
    folder: Path


@dataclass(frozen=True)
class _Request:
    submission: Path
    problem: str
    device: str = "cpu"
    tier: Tier | None = None
    level: _Level | None = None
    mode: str = "development"
    clocks: bool = True
    limits: Limits = field(default_factory=Limits)
    home: Path = Path("unset")


@dataclass(frozen=True)
class _Reproduction:
    reference: str
    reproduced: bool | None
    expected: str
    actual: str
    message: str
    finding: Finding


_CODES = {Verdict.CLEAN: 0, Verdict.INCORRECT: 1, Verdict.REWARD_HACK: 3, Verdict.NEEDS_REVIEW: 4, Verdict.INFRA: 5}


class Bench:
    """What the fake judge answers, and what it was asked."""

    def __init__(self, grades: ModuleType, home: Path) -> None:
        self.grades = grades
        self.home = home
        self.answers: dict[str, Grade] = {}
        """By name of the submission's folder."""
        self.raises: Callable[[], BaseException] | None = None
        self.outcome: bool | None = True
        self.requests: list[_Request] = []
        self.levels = [_LevelReport(level, works=True) for level in _Level]
        self.isolation = Isolation(level="namespaces", memory="cgroup", uid_dropped=True)

    def grade(self, request: Any, progress: Any = None) -> _Graded:
        self.requests.append(request)
        progress.phase("check")
        progress.advance(1, 2, "nominal on \x1b[31msmall")
        if self.raises is not None:
            raise self.raises()
        record = self.answers[request.submission.name]
        return _Graded(record, self.grades.keep(request.home, record))

    def reproduce(self, reference: str, *, home: Path, level: Any = None, progress: Any = None) -> _Reproduction:
        if self.raises is not None:
            raise self.raises()
        finding = self.grades.wrong_finding("g-20250102T030406-0123abce")
        return _Reproduction(reference, self.outcome, "1.0", "2.0\x1b[2J", f"{finding.rule}: seen again", finding)

    def load_grade(self, reference: str, home: Path) -> _Graded:
        folder = home / "grades" / reference
        if not folder.is_dir():
            raise _UsageError(f"no grade called {reference!r} in {str(home)!r}\nnext: ls {home}")
        return _Graded(Grade.model_validate_json((folder / "grade.json").read_bytes()), folder)

    def modules(self) -> dict[str, ModuleType]:
        judge = ModuleType("kernelassay.judge")
        for name, value in {
            "GradeRequest": _Request,
            "Graded": _Graded,
            "Reproduction": _Reproduction,
            "UsageError": _UsageError,
            "default_home": lambda: self.home,
            "exit_code": lambda grade: _CODES[grade.verdict],
            "grade": self.grade,
            "load_grade": self.load_grade,
            "reproduce": self.reproduce,
        }.items():
            setattr(judge, name, value)
        sandbox = ModuleType("kernelassay.sandbox")
        isolation = self.isolation
        for name, value in {
            "Level": _Level,
            "SandboxError": _SandboxError,
            "available": lambda: tuple(self.levels),
            "Sandbox": type("Sandbox", (), {"isolation": property(lambda _: isolation)}),
        }.items():
            setattr(sandbox, name, value)
        return {"judge": judge, "sandbox": sandbox}

    def error(self, package: str, name: str, message: str) -> None:
        """Make the next call raise an announced failure."""
        kind = getattr(sys.modules[f"kernelassay.{package}"], name)
        self.raises = lambda: kind(message)


@pytest.fixture
def bench(grades: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A fake judge and sandbox in the place of the real ones."""
    fake = Bench(grades, tmp_path / "home")
    fake.answers = {
        "topk_cpp": grades.grade(),
        "topk_wrong": grades.wrong_grade(),
        "topk_memo": grades.convicted_grade(),
        "linked": grades.refused_grade(),
        "evil": grades.hostile_grade(),
    }
    for name, module in fake.modules().items():
        monkeypatch.setitem(sys.modules, f"kernelassay.{name}", module)
        monkeypatch.setattr(kernelassay, name, module, raising=False)
    return fake


@dataclass(frozen=True)
class Ran:
    """How one command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def assay(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ran]]:
    """Run `assay` in this process; signal handlers are put back afterwards."""
    import signal

    monkeypatch.setenv("NO_COLOR", "1")
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def run(*arguments: str) -> Ran:
        code = main(arguments)
        captured = capfd.readouterr()
        return Ran(code, captured.out, captured.err)

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)
