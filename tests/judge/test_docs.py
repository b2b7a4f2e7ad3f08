"""The page about judging says what the code does."""

from __future__ import annotations

import re

import pytest

from kernelassay.judge import _intake as intake
from kernelassay.judge.verdict import EXIT_CODES
from kernelassay.records import Limits, Status, Verdict
from tests.hostile.arena import ROOT

PAGE = (ROOT / "docs" / "judging.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """Cells of the table under a heading, without its two head lines."""
    part = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def words(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_every_status_has_a_row_with_the_right_exit_code() -> None:
    told = rows("Status")
    assert {words(row[0])[0] for row in told} == {s.value for s in Status}
    for row in told:
        assert int(row[3]) == EXIT_CODES[Verdict(words(row[2])[0])]


def test_the_limits_are_the_defaults() -> None:
    limits = Limits()
    told = [row[4] for row in rows("Status") if row[4] not in ("–", "see below")]
    assert told == [
        f"{limits.build_s:g} s",
        f"{limits.load_s:g} s",
        f"{limits.prepare_s:g} s",
        f"{limits.call_s:g} s",
        f"{limits.memory_bytes >> 30} GiB",
        f"{limits.processes}",
        f"{limits.file_bytes >> 30} GiB",
        f"{limits.output_bytes >> 20} MiB",
    ]


def test_every_verdict_has_its_exit_code() -> None:
    told = rows("Verdict")
    assert {words(row[2])[0] for row in told} == {v.value for v in Verdict}
    assert [int(row[3]) for row in told] == [EXIT_CODES[Verdict(words(row[2])[0])] for row in told]


@pytest.mark.parametrize(
    ("what", "limit"),
    [
        ("one file", f"{intake.MAX_FILE_BYTES >> 20} MiB"),
        ("all files", f"{intake.MAX_TOTAL_BYTES >> 20} MiB"),
        ("files and folders", f"{intake.MAX_FILES}"),
        ("folders inside folders", f"{intake.MAX_DEPTH}"),
    ],
)
def test_the_limits_of_intake(what: str, limit: str) -> None:
    assert [row[1] for row in rows("What intake refuses") if row[0] == what] == [limit]


def test_the_limits_of_a_manifest() -> None:
    told = next(row[1] for row in rows("What intake refuses") if row[0] == "`submission.yaml`")
    assert told.startswith(f"{intake.MAX_MANIFEST_BYTES >> 10} KiB, {intake.MAX_MANIFEST_DEPTH} deep")
