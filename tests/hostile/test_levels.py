"""The decisive attacks at each level of confinement, and for a user without privileges."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelassay.records import Status, Verdict
from kernelassay.sandbox import Level
from tests.hostile.arena import HONEST, ROOT, WRONG, Arena, native, python, reduced_deck
from tests.strangers import as_user

LOOK = """
def look(what):
    try:
        what()
        print('COULD', flush=True)
    except OSError as error:
        print('refused', error.errno, flush=True)
"""
REACH = """
look(lambda: socket.create_connection(('1.1.1.1', 53), timeout=1))
look(lambda: open('/etc/kernelassay-was-here', 'w'))
look(lambda: open(__file__, 'a'))
look(lambda: os.listdir('/root'))
return honest(x)
"""
DECISIVE = {
    "honest": ({"solution.py": HONEST}, "correct"),
    "wrong": ({"solution.py": WRONG}, "wrong"),
    "hang": (python("while True: pass"), "timeout"),
    "crash": (python("os.kill(os.getpid(), 11)"), "crashed"),
    "child outlives": (python("if not os.fork():\n    os.setsid()\n    time.sleep(1e6)\nreturn honest(x)"), "correct"),
    "native exit": (native('#include <cstdlib>\nextern "C" int topk(void *, void *, void *) { exit(0); }'), "crashed"),
}


@pytest.mark.slow
@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("name", DECISIVE)
def test_at_every_level(arena: Arena, level: Level, name: str) -> None:
    files, status = DECISIVE[name]
    grade = arena.grade(files, level=level, call_s=3.0)
    assert grade.status is Status(status), grade.reasons
    assert grade.isolation is not None
    assert grade.isolation.level == level.value


@pytest.mark.slow
@pytest.mark.parametrize("level", [Level.NAMESPACES, Level.LANDLOCK])
def test_what_a_confined_submission_cannot_reach(arena: Arena, level: Level) -> None:
    grade = arena.grade(python(REACH, LOOK), level=level, call_s=10.0)
    assert (grade.status, grade.verdict) == (Status.CORRECT, Verdict.CLEAN), grade.reasons
    assert arena.log.count("refused") >= 4
    assert "COULD" not in arena.log
    assert not Path("/etc/kernelassay-was-here").exists()


ORDINARY = """
import json, os, sys, time
from pathlib import Path
from kernelassay.judge import GradeRequest, grade
from tests.strangers import as_user
from tests.hostile.arena import LIMITS
told = {}
for folder in sys.argv[1:]:
    request = GradeRequest(
        Path(folder), "ops/topk", limits=LIMITS.model_copy(update={"call_s": 3.0}), probes=frozenset(), clocks=False
    )
    record = grade(request).grade
    told[Path(folder).name] = [record.status, record.verdict, record.isolation.level, record.isolation.uid_dropped]
left = [name for name in os.listdir(os.environ["TMPDIR"]) if name.startswith("kernelassay-jail-")]
mine = []
for entry in Path("/proc").iterdir():
    try:
        if entry.name.isdigit() and entry.stat().st_uid == os.getuid() and int(entry.name) != os.getpid():
            mine.append(entry.name)
    except OSError:
        pass
print(json.dumps({"told": told, "left": left, "processes": mine}))
"""
UID = 64_321


@pytest.fixture
def ordinary_home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="kernelassay-user-", dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
def test_without_privileges(ordinary_home: Path) -> None:
    """Started by root, the same as an unprivileged uid with its own HOME; else as whoever runs the tests."""
    reduced_deck(ordinary_home / "decks")
    for name in ("honest", "wrong", "hang", "crash"):
        (ordinary_home / name).mkdir()
        (ordinary_home / name / "solution.py").write_text(DECISIVE[name][0]["solution.py"])
    (ordinary_home / "tmp").mkdir()
    prefix: list[str] = []
    if os.geteuid() == 0:
        for path in (ordinary_home, *ordinary_home.rglob("*")):
            os.chown(path, UID, UID)
        prefix = as_user(UID)
    names = [str(ordinary_home / name) for name in ("honest", "wrong", "hang", "crash")]
    done = subprocess.run(
        [*prefix, sys.executable, "-c", ORDINARY, *names],
        cwd=ROOT,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(ordinary_home),
            "TMPDIR": str(ordinary_home / "tmp"),
            "KERNELASSAY_DECKS": str(ordinary_home / "decks"),
        },
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {name: row[:2] for name, row in told["told"].items()} == {
        "honest": ["correct", "clean"],
        "wrong": ["wrong", "incorrect"],
        "hang": ["timeout", "incorrect"],
        "crash": ["crashed", "incorrect"],
    }
    assert not any(row[3] for row in told["told"].values())
    assert told["left"] == []
    if prefix:
        assert told["processes"] == []
