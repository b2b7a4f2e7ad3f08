"""A grade appears whole or not at all, whenever the judge is killed, and the next command removes what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelassay.judge import UsageError, load_grade
from kernelassay.judge._store import commit, new_grade_id, open_partial, sweep_partials, write_atomic
from kernelassay.records import Status
from tests.board import grades as made
from tests.hostile.arena import HONEST, Arena, processes

JUDGE = """
import os, signal, sys, time
from pathlib import Path
from kernelassay.judge import GradeRequest, grade
from tests.hostile.arena import LIMITS

class Stop:
    def phase(self, name):
        print("phase", name, flush=True)
        if name == sys.argv[3]:
            if sys.argv[4] == "self":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

    def advance(self, done, total, note):
        pass

request = GradeRequest(
    Path(sys.argv[1]), "ops/topk", home=Path(sys.argv[2]), limits=LIMITS, probes=frozenset(), clocks=False
)
grade(request, Stop())
"""
HANG = "import time\nprint('HERE', flush=True)\ntime.sleep(1e6)\n"


def start(arena: Arena, submission: Path, phase: str, how: str) -> subprocess.Popen[str]:
    """A judge in a process of its own that stops at a phase."""
    return subprocess.Popen(
        [sys.executable, "-c", JUDGE, str(submission), str(arena.home), phase, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )


def until_gone(arena: Arena, seconds: float = 20.0) -> None:
    """Wait until no jail stands in the arena's folder and no process works for one."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not list(arena.stages.glob("kernelassay-jail-*")) and not jailed(arena):
            return
        time.sleep(0.1)
    raise AssertionError(f"left: {list(arena.stages.iterdir())}, {jailed(arena)}")


def jailed(arena: Arena) -> list[int]:
    """Processes whose environment or control group names a jail of this arena."""
    found = []
    for pid in processes():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if str(arena.stages).encode() in environment and b"kernelassay-jail-" in environment:
            found.append(pid)
    return found


def visible(arena: Arena) -> list[str]:
    return sorted(p.name for p in (arena.home / "grades").glob("g-*"))


@pytest.fixture(scope="module")
def finished(arena: Arena) -> Iterator[str]:
    """A finished grade that nothing may change."""
    record = arena.grade({"solution.py": HONEST})
    before = (arena.last / "grade.json").read_bytes()
    yield record.id
    assert (arena.home / "grades" / record.id / "grade.json").read_bytes() == before
    assert load_grade(record.id, arena.home).grade == record


@pytest.mark.parametrize(
    "phase", ["check", *(pytest.param(p, marks=pytest.mark.slow) for p in ("intake", "load", "record"))]
)
def test_a_judge_killed_in_a_phase_leaves_nothing_visible(arena: Arena, finished: str, phase: str) -> None:
    before = visible(arena)
    judge = start(arena, arena.submission({"solution.py": HONEST}), phase, "self")
    out, err = judge.communicate(timeout=100)
    assert judge.returncode == -signal.SIGKILL, err
    assert f"phase {phase}" in out
    assert visible(arena) == before
    until_gone(arena)
    assert len(list((arena.home / "grades").glob(".partial-*"))) == 1
    assert sweep_partials(arena.home) == 1
    arena.assert_nothing_left()
    assert finished in visible(arena)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGKILL, marks=pytest.mark.slow), signal.SIGINT])
def test_a_judge_stopped_while_a_submission_hangs(arena: Arena, finished: str, number: signal.Signals) -> None:
    """`kill -9` and Ctrl-C: the jail goes with the judge, and finished grades stay as they are."""
    before = visible(arena)
    judge = start(arena, arena.submission({"solution.py": HANG}), "none", "")
    assert judge.stdout is not None
    while "phase load" not in judge.stdout.readline():
        pass
    deadline = time.monotonic() + 60
    while not list(arena.stages.glob("kernelassay-jail-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(3.0)  # long enough for the worker to be inside of the submission on an idle machine
    judge.send_signal(number)
    judge.communicate(timeout=60)
    assert judge.returncode == (-signal.SIGKILL if number is signal.SIGKILL else 130) or judge.returncode == -number
    until_gone(arena)
    assert visible(arena) == before
    swept = sweep_partials(arena.home)
    assert swept == (1 if number is signal.SIGKILL else 0)
    arena.assert_nothing_left()
    assert finished in visible(arena)


def test_commit_makes_a_grade_visible_in_one_step(tmp_path: Path) -> None:
    record = made.grade()
    partial = open_partial(tmp_path, record.id)
    assert partial.name.startswith(f".partial-{record.id}-{os.getpid()}-")
    assert partial.stat().st_mode & 0o777 == 0o700
    graded = commit(partial, record)
    assert not partial.exists()
    assert load_grade(record.id, tmp_path).grade == record
    assert load_grade(record.id[:12], tmp_path).folder == graded.folder
    assert load_grade(str(graded.folder), tmp_path / "elsewhere").grade == record
    assert load_grade(str(graded.folder / "grade.json"), tmp_path / "elsewhere").grade == record


def test_the_sweep_spares_a_living_judge(tmp_path: Path) -> None:
    mine = open_partial(tmp_path, new_grade_id(made.grade().created_at))
    (mine.parent / ".partial-g-20200101T000000-00000000-1-77").mkdir()
    (mine.parent / ".partial-g-20200101T000000-00000000-999999999-1").mkdir()
    (mine.parent / ".partial-nonsense").mkdir()
    assert sweep_partials(tmp_path) == 3
    assert [p.name for p in mine.parent.iterdir()] == [mine.name]


def test_write_atomic_keeps_the_old_file_when_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "new\ud800")
    assert path.read_text() == "old"
    write_atomic(path, "nëw")
    assert path.read_text(encoding="utf-8") == "nëw"


@pytest.mark.parametrize("reference", ["", "g-2020", "nowhere", "../..", "g-" + "x" * 300])
def test_references_that_name_nothing(tmp_path: Path, reference: str) -> None:
    with pytest.raises(UsageError, match="no grade called"):
        load_grade(reference, tmp_path)


def test_an_ambiguous_reference(tmp_path: Path) -> None:
    record = made.grade()
    other = record.model_copy(update={"id": record.id[:-1] + ("0" if record.id[-1] != "0" else "1")})
    for each in (record, other):
        commit(open_partial(tmp_path, each.id), each)
    with pytest.raises(UsageError, match="2 grades called"):
        load_grade("g-", tmp_path)


@pytest.mark.parametrize("change", [{"score": 3.0}, {"verdict": "reward_hack"}, {"status": "wrong"}, {"extra": 1}])
def test_a_record_that_was_edited_into_the_impossible(tmp_path: Path, change: dict[str, object]) -> None:
    record = made.grade()
    assert record.status is Status.CORRECT
    path = commit(open_partial(tmp_path, record.id), record).folder / "grade.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UsageError, match="is no valid grade"):
        load_grade(record.id, tmp_path)


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--home"):
        open_partial(tmp_path / "file", "g-20200101T000000-00000000")
