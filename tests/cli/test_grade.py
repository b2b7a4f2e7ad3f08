"""`assay grade`, `reproduce` and `report` against a judge that answers from a table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelassay.records import Grade, Status, Verdict

Assay = Callable[..., Any]
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def test_clean_grade_says_everything_and_exits_0(bench: Any, assay: Assay) -> None:
    ran = assay("grade", "x/topk_cpp", "--problem", "ops/topk")
    assert ran.code == 0
    assert ran.out.startswith("✓ CLEAN  topk_cpp on ops/topk, tier small, device cpu")
    assert "every planned case agreed with the oracle" in ran.out
    assert "45 of 45 passed" in ran.out
    assert "invalid (no clock yet); no score" in ran.out
    assert "namespaces, memory limit by cgroup" in ran.out
    folder = bench.home / "grades" / "g-20250102T030405-0123abcd"
    assert f"{folder}/report.html" in ran.out and f"{folder}/grade.json" in ran.out
    assert (folder / "report.html").is_file()
    assert "failing cases" not in ran.out
    assert ran.out.rstrip().endswith("next: assay report g-20250102T030405-0123abcd")


def test_wrong_grade_shows_failures_diagnosis_and_reproduce(bench: Any, assay: Assay) -> None:
    ran = assay("grade", "topk_wrong", "--problem", "ops/topk")
    assert ran.code == 1
    assert ran.out.startswith("✗ INCORRECT")
    assert ran.out.index("failing cases") < ran.out.index("3 of 64 values are not the largest")
    assert "37 of 45 passed" in ran.out
    for text in ("values[0, 60]", "1.0000153779983521", "1.0000152587890625", "same error as mutant", "rows 0 of 1"):
        assert text in ran.out
    assert ran.out.rstrip().endswith("next: assay reproduce g-20250102T030406-0123abce/f1")


def test_more_failures_than_fit_are_counted(bench: Any, assay: Assay) -> None:
    every = bench.grades.results(frozenset(bench.grades.CASES))
    bench.answers["topk_wrong"] = bench.grades.wrong_grade(cases=every)
    ran = assay("grade", "topk_wrong", "--problem", "ops/topk")
    assert f"and {36 - 12} more failing cases" in ran.out


def test_request_carries_the_options(bench: Any, assay: Assay, tmp_path: Path) -> None:
    home = tmp_path / "elsewhere with space"
    ran = assay(
        *("grade", "topk_wrong", "--problem", "ops/topk", "--tier", "full", "--level", "none", "--home", str(home))
    )
    request = bench.requests[0]
    assert (request.problem, request.device, request.tier, request.level) == ("ops/topk", "cpu", "full", "none")
    assert request.home == home
    assert f"/f1 --home '{home}'" in ran.out, "the next command must find the grade again"
    assert (request.mode, request.clocks) == ("development", True)
    assay("grade", "topk_wrong", "--problem", "ops/topk", "--careful", "--no-time")
    assert (bench.requests[1].mode, bench.requests[1].clocks) == ("careful", False)


def test_json_is_the_record_and_nothing_else(bench: Any, assay: Assay) -> None:
    ran = assay("grade", "topk_wrong", "--problem", "ops/topk", "--json")
    document = json.loads(ran.out)
    assert Grade.from_plain(document) == bench.answers["topk_wrong"]
    assert document["status"] == "wrong"
    assert "report.html" in ran.err
    assert ran.code == 1


def test_quiet_prints_verdict_and_reasons_only(bench: Any, assay: Assay) -> None:
    ran = assay("grade", "topk_cpp", "--problem", "ops/topk", "--quiet")
    assert len(ran.out.splitlines()) == 2
    assert ran.err == ""


def test_refused_submission_is_a_grade(bench: Any, assay: Assay) -> None:
    ran = assay("grade", "linked", "--problem", "ops/topk")
    assert ran.code == 1
    assert "refused: solution.py is a symbolic link" in ran.out
    assert "nothing of the submission ran" in ran.out


@pytest.mark.parametrize("flags", [(), ("--quiet",), ("--json",)])
def test_nothing_of_a_submission_steers_the_terminal(bench: Any, assay: Assay, flags: tuple[str, ...]) -> None:
    ran = assay("grade", "evil", "--problem", "ops/topk", *flags)
    assert not _CONTROL.search(ran.out + ran.err)
    if flags != ("--json",):
        assert r"'evil\x1b[2J\nname<script>alert(1)</script>\u202e'" in ran.out
        assert "[/red]" in ran.out, "what looks like markup is text"
    else:
        assert json.loads(ran.out)["submission"]["name"] == bench.grades.EVIL_NAME
        assert ran.out.isascii()


@pytest.mark.parametrize(
    ("verdict", "status", "code"),
    [(Verdict.INFRA, Status.INFRA, 5), (Verdict.NEEDS_REVIEW, Status.CORRECT, 4)],
)
def test_exit_code_is_the_judges(bench: Any, assay: Assay, verdict: Verdict, status: Status, code: int) -> None:
    bench.answers["topk_cpp"] = bench.grades.grade(verdict=verdict, status=status, reasons=("because",))
    assert assay("grade", "topk_cpp", "--problem", "ops/topk").code == code


@pytest.mark.parametrize(("outcome", "code", "word"), [(True, 0, "✓ REPRODUCED"), (False, 1, "✗ NOT REPRODUCED")])
def test_reproduce(bench: Any, assay: Assay, outcome: bool, code: int, word: str) -> None:
    bench.outcome = outcome
    ran = assay("reproduce", "g-1/f1")
    assert ran.code == code
    assert ran.out.startswith(f"{word}  g-1/f1")
    assert r"2.0\x1b[2J" in ran.out
    as_json = assay("reproduce", "g-1/f1", "--json")
    assert json.loads(as_json.out)["reproduced"] is outcome
    assert json.loads(as_json.out)["finding"]["id"] == "f1"


def test_report_is_written_again(bench: Any, assay: Assay) -> None:
    assay("grade", "topk_cpp", "--problem", "ops/topk")
    page = bench.home / "grades" / "g-20250102T030405-0123abcd" / "report.html"
    page.unlink()
    ran = assay("report", "g-20250102T030405-0123abcd")
    assert (ran.code, ran.out.strip()) == (0, str(page))
    assert page.is_file()
    as_json = assay("report", "g-20250102T030405-0123abcd", "--json")
    assert json.loads(as_json.out)["report"] == str(page)


def test_log_of_a_submission_that_ended_early_is_shown_safely(bench: Any, assay: Assay) -> None:
    bench.answers["evil"] = bench.grades.hostile_grade(status=Status.CRASHED)
    ran = assay("grade", "evil", "--problem", "ops/topk")
    assert "end of the log (3 lines)" in ran.out
    assert r"\x1b[31mPASS\x1b[0m \x1b]0;owned\x07</pre><script>alert(2)</script>" in ran.out
    assert "[bold]verdict[/bold]" in ran.out
    assert not _CONTROL.search(ran.out)
