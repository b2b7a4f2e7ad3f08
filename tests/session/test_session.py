"""A worker is started, asked and ended without touching anything of the process that the judge lives in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelassay.decks import draw, load
from kernelassay.records import Manifest, Status
from kernelassay.sandbox import Sandbox
from kernelassay.session import Job, Rig, Session, Trouble, one_line, readable
from tests.hostile.arena import HONEST, LIMITS, PROBLEM, Arena, python


def job(arena: Arena, files: dict[str, str]) -> Job:
    return Job(load(PROBLEM).problem, arena.submission(files), Manifest(), None, LIMITS, threads=1)


def test_no_descriptor_of_the_caller_is_lost(arena: Arena) -> None:
    """A caller with many open files may have the channel's usual number in use."""
    held: list[int] = []
    try:
        while not held or held[-1] < 70:
            held.append(os.open("/dev/null", os.O_RDONLY))
        before = [os.fstat(fd).st_rdev for fd in held]
        with Session(Sandbox(), job(arena, {"solution.py": HONEST})) as session:
            session.load()
        assert [os.fstat(fd).st_rdev for fd in held] == before
    finally:
        for fd in held:
            os.close(fd)


def test_nothing_is_left_open(arena: Arena) -> None:
    files = {"solution.py": HONEST}
    counts = []
    for _ in range(2):
        with Session(Sandbox(), job(arena, files)) as session:
            session.load()
            assert session.readable
            rig = Rig(session, load(PROBLEM).problem.shapes[0])
            rig.call(draw(load(PROBLEM), rig.shape, "nominal", 1, 0).inputs)
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    assert counts[0] == counts[1]
    arena.assert_nothing_left()


def test_one_trouble_does_not_end_a_worker(arena: Arena) -> None:
    """An exception is an answer: the same process goes on, and its results are read afresh."""
    loaded = load(PROBLEM)
    files = python("if x[0, 0] == 7:\n    raise KeyError('seven')\nreturn honest(x)")
    with Session(Sandbox(), job(arena, files)) as session:
        session.load()
        rig = Rig(session, loaded.problem.shapes[0])
        tensors = draw(loaded, rig.shape, "nominal", 1, 0)
        first = rig.call(tensors.inputs).outputs["values"]
        tensors.inputs["x"][0, 0] = 7
        with pytest.raises(Trouble, match="KeyError in go: 'seven'") as caught:
            rig.call(tensors.inputs)
        assert caught.value.status is Status.CRASHED
        tensors.inputs["x"][0, 0] = 8
        second = rig.call(tensors.inputs).outputs["values"]
        assert second[0, 0] == max(8.0, float(first[0, 0]))
        quiet = session.quiet()
        assert quiet.children == 0
        pid = session.pid
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()
    assert session.close() == session.close()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünï 中", "plain ünï 中"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\ud800\u202e", "\\ud800\\u202e"),
        ("", ""),
    ],
)
def test_one_printable_line(text: str, shown: str) -> None:
    assert one_line(text) == shown
    assert one_line(text).isprintable()


def test_readable_keeps_lines() -> None:
    assert readable("a\n\tb\x07\n\ud800") == "a\n    b\\x07\n\\ud800"
