"""Every kind of finding is seen again from its record alone, and a record that was changed is not replayed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelassay.judge import UsageError, reproduce
from kernelassay.records import Grade
from tests.hostile.arena import WRONG, Arena, native, python

COUNTER = "calls = 0"
COUNTS = "global calls\ncalls += 1\nv, i = honest(x)\nreturn (v + (calls > 1), i)"
"""Right on its first call only: the call that settles it, or the one case that is replayed alone."""

KINDS = {
    "a wrong case": ({"solution.py": WRONG}, "check.selection.values"),
    "a mutated input": (python("r = honest(x)\nx += 1\nreturn r"), "contract.inputs_mutated"),
    "a crash in the call": (python("ctypes.string_at(0)"), "worker.ended"),
    "an import that fails": ({"solution.py": "import nonsense\n"}, "build.load"),
    "a build that fails": (native('extern "C" int topk() { return nonsense; }'), "build.compile"),
    "a hang": (python("while True: pass"), "limit.time"),
    "a count of calls": (python(COUNTS, COUNTER), "check.selection.values"),
}
FAST = ("a count of calls", "a crash in the call")


def judged(arena: Arena, name: str) -> tuple[Grade, str]:
    files, rule = KINDS[name]
    grade = arena.grade(files, call_s=3.0)
    finding = next(f for f in grade.findings if f.rule == rule)
    return grade, f"{grade.id}/{finding.id}"


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in KINDS])
def test_is_seen_again(arena: Arena, name: str) -> None:
    grade, reference = judged(arena, name)
    told = reproduce(reference, home=arena.home)
    arena.assert_nothing_left()
    assert told.reproduced, told
    assert told.finding in grade.findings
    assert told.reference == reference
    assert told.finding.reproduce == f"assay reproduce {reference}"


@pytest.fixture(scope="module")
def wrong(arena: Arena) -> tuple[Grade, str]:
    return judged(arena, "a wrong case")


def test_what_no_longer_happens_is_said_so(arena: Arena, wrong: tuple[Grade, str], tmp_path: Path) -> None:
    """The same seeds, but a finding of a rule that nothing breaks."""
    grade, reference = wrong
    folder = tmp_path / "other"
    (folder / "submission").mkdir(parents=True)
    source = arena.home / "grades" / grade.id
    for file in (source / "submission").iterdir():
        (folder / "submission" / file.name).write_bytes(file.read_bytes())
    text = (source / "grade.json").read_text().replace("check.selection.values", "check.selection.nothing")
    (folder / "grade.json").write_text(text)
    told = reproduce(f"{folder}/{reference.rpartition('/')[2]}", home=tmp_path)
    assert not told.reproduced
    assert "not seen" in told.message


def copy(arena: Arena, grade: Grade, to: Path) -> Path:
    source = arena.home / "grades" / grade.id
    (to / "submission").mkdir(parents=True)
    (to / "grade.json").write_bytes((source / "grade.json").read_bytes())
    for file in (source / "submission").iterdir():
        (to / "submission" / file.name).write_bytes(file.read_bytes())
    return to


def edited(folder: Path, **changes: object) -> None:
    path = folder / "grade.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_changed_submission_is_refused(arena: Arena, wrong: tuple[Grade, str], tmp_path: Path) -> None:
    folder = copy(arena, wrong[0], tmp_path / "g")
    (folder / "submission" / "solution.py").write_text("x = 1\n")
    with pytest.raises(UsageError, match="is not the one that was graded"):
        reproduce(f"{folder}/f1", home=tmp_path)


def test_an_added_file_is_refused(arena: Arena, wrong: tuple[Grade, str], tmp_path: Path) -> None:
    folder = copy(arena, wrong[0], tmp_path / "g")
    (folder / "submission" / "helper.py").write_text("")
    with pytest.raises(UsageError, match="is not the one that was graded"):
        reproduce(f"{folder}/f1", home=tmp_path)


def test_a_changed_deck_is_refused(
    arena: Arena, wrong: tuple[Grade, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    decks = tmp_path / "decks"
    shutil.copytree(arena.home.parent / "decks", decks)
    with (decks / "ops" / "topk" / "reference.py").open("a") as file:
        file.write("# changed\n")
    monkeypatch.setenv("KERNELASSAY_DECKS", str(decks))
    with pytest.raises(UsageError, match="is not the problem that this grade was made with"):
        reproduce(wrong[1], home=arena.home)


@pytest.mark.parametrize("change", [{"secret": "00" * 32}, {"secret": "no"}, {"secret_commitment": "00"}], ids=str)
def test_another_secret_is_refused(
    arena: Arena, wrong: tuple[Grade, str], tmp_path: Path, change: dict[str, object]
) -> None:
    folder = copy(arena, wrong[0], tmp_path / "g")
    edited(folder, **change)
    with pytest.raises(UsageError, match="was changed"):
        reproduce(f"{folder}/f1", home=tmp_path)


def test_another_seed_is_refused(arena: Arena, wrong: tuple[Grade, str], tmp_path: Path) -> None:
    folder = copy(arena, wrong[0], tmp_path / "g")
    path = folder / "grade.json"
    record = json.loads(path.read_text())
    record["findings"][0]["recipe"]["seed"] += 1
    path.write_text(json.dumps(record))
    with pytest.raises(UsageError, match="was changed"):
        reproduce(f"{folder}/f1", home=tmp_path)


@pytest.mark.parametrize("finding", ["f99", "", "x"])
def test_a_finding_that_is_not_there(arena: Arena, wrong: tuple[Grade, str], finding: str) -> None:
    with pytest.raises(UsageError, match="it has: f1"):
        reproduce(f"{wrong[0].id}/{finding}", home=arena.home)
