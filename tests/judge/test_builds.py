"""A library is built once for the same files, recipe and machine, and a kept one that was changed is never taken."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from kernelassay.judge import GradeRequest, grade
from kernelassay.judge._build import Built
from kernelassay.judge._builds import FOLDER, MOST_KEPT, build_key, keep_build, kept_build
from kernelassay.judge._intake import take_in
from kernelassay.records import Grade, Status
from kernelassay.sandbox import Level

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "topk_cpp"


def key_of(folder: Path, into: Path, level: Level = Level.NAMESPACES) -> str:
    key = build_key(take_in(folder, into).submission, level)
    assert key is not None
    return key


def built(folder: Path, text: bytes = b"library") -> Built:
    folder.mkdir()
    (folder / "x.so").write_bytes(text)
    return Built(folder / "x.so", hashlib.sha256(text).hexdigest(), "the log", None)


def test_every_file_and_the_recipe_decide(tmp_path: Path) -> None:
    first = key_of(EXAMPLE, tmp_path / "a")
    assert first == key_of(EXAMPLE, tmp_path / "b")
    assert key_of(EXAMPLE, tmp_path / "e", Level.NONE) != first  # there a compiler could read more
    other = tmp_path / "other"
    shutil.copytree(EXAMPLE, other)
    (other / "unused.h").write_text("// a header that nobody includes\n")
    assert key_of(other, tmp_path / "c") != first
    shutil.rmtree(other)
    shutil.copytree(EXAMPLE, other)
    manifest = (other / "submission.yaml").read_text()
    (other / "submission.yaml").write_text(manifest + "\n# the same recipe in other bytes\n")
    assert key_of(other, tmp_path / "d") != first


def test_what_was_kept_comes_back_and_what_was_changed_does_not(tmp_path: Path) -> None:
    keep_build(tmp_path, "k", built(tmp_path / "made"))
    again = kept_build(tmp_path, "k", tmp_path / "out.so")
    assert again is not None and again.kept and again.log == "the log"
    assert (tmp_path / "out.so").read_bytes() == b"library"
    assert kept_build(tmp_path, "another", tmp_path / "no.so") is None
    (tmp_path / FOLDER / "k" / "library.so").write_bytes(b"planted")
    assert kept_build(tmp_path, "k", tmp_path / "no.so") is None
    for damage in ("", "{", json.dumps({"log": ""}), json.dumps([1])):
        (tmp_path / FOLDER / "k" / "build.json").write_text(damage)
        assert kept_build(tmp_path, "k", tmp_path / "no.so") is None
    assert not (tmp_path / "no.so").exists()


def test_the_longest_unused_go_first_and_a_full_disk_is_no_fault(tmp_path: Path) -> None:
    made = built(tmp_path / "made")
    for number in range(MOST_KEPT + 3):
        keep_build(tmp_path, f"k{number:04}", made)
    assert len(list((tmp_path / FOLDER).iterdir())) == MOST_KEPT
    assert kept_build(tmp_path, f"k{MOST_KEPT + 2:04}", tmp_path / "out.so") is not None
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    keep_build(blocked, "k", made)
    assert kept_build(blocked, "k", tmp_path / "no.so") is None


@pytest.mark.slow
def test_a_second_grade_builds_nothing_and_a_careful_one_does(tmp_path: Path) -> None:
    def judged(**more: object) -> tuple[Grade, float]:
        request = GradeRequest(EXAMPLE, "ops/topk", probes=frozenset(), clocks=False, home=tmp_path, **more)  # type: ignore[arg-type]
        made = grade(request).grade
        assert made.status is Status.CORRECT
        return made, next(phase.seconds for phase in made.phases if phase.name == "build")

    first, cold = judged()
    second, warm = judged()
    careful, anew = judged(mode="careful")
    assert first.artefacts[0].sha256 == second.artefacts[0].sha256
    assert "for this grade" in first.artefacts[0].what and "for this grade" in careful.artefacts[0].what
    assert "for an earlier grade" in second.artefacts[0].what
    assert warm < min(cold, anew) / 4, (cold, warm, anew)
