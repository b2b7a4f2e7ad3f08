"""Escapes and words that the terminal and the page share."""

from __future__ import annotations

import ast
import unicodedata
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelassay.board import block, cases_words, duration, first_failure, one_line, quoted, size
from kernelassay.records import Force, Status, Verdict

TEXTS = st.text(alphabet=st.characters(codec=None))


@given(TEXTS)
def test_one_line_is_one_printable_line(text: str) -> None:
    shown = one_line(text)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1


@given(TEXTS)
def test_quoted_is_printable_and_unmistakable(name: str) -> None:
    shown = quoted(name)
    assert shown.isprintable() and shown == shown.strip() and shown
    if len(name) <= 200:
        assert shown == name or ast.literal_eval(shown) == name


@given(TEXTS)
def test_block_keeps_lines_and_nothing_else_that_steers(text: str) -> None:
    shown = block(text)
    assert all(c == "\n" or unicodedata.category(c)[0] not in "C" for c in shown)
    assert shown.count("\n") == text.count("\n")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("topk_cpp", "topk_cpp"),
        ("with space", "with space"),
        ("größe", "größe"),
        (" lead", "' lead'"),
        ("", "''"),
        ("a\nb", r"'a\nb'"),
        ("a\\nb", r"'a\\nb'"),
        ("it's", r"'it\'s'"),
        ("\x1b[31m", r"'\x1b[31m'"),
        ("x" * 201, f"{'x' * 200}… (1 characters more)"),
    ],
)
def test_quoted(name: str, shown: str) -> None:
    assert quoted(name) == shown


def test_one_line_says_how_much_it_cut() -> None:
    assert one_line("a" * 410) == "a" * 400 + "… (10 characters more)"


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (8 << 30, "8 GiB"), (3 << 40, "3.0 TiB")]
)
def test_size(count: int, shown: str) -> None:
    assert size(count) == shown


@pytest.mark.parametrize(
    ("us", "shown"),
    [(0.512, "0.512 µs"), (45.678, "45.7 µs"), (999.9, "1 ms"), (1234.0, "1.23 ms"), (2.5e6, "2.5 s")],
)
def test_duration(us: float, shown: str) -> None:
    assert duration(us) == shown


def test_cases_words_tell_what_did_not_run(grades: ModuleType) -> None:
    assert cases_words(grades.grade()) == "45 of 45 passed"
    early = grades.wrong_grade(status=Status.CRASHED, cases=grades.results()[:10])
    assert cases_words(early) == "10 of 45 passed, 35 not run"
    assert cases_words(grades.refused_grade()) == "none planned"


def test_first_failure_is_that_of_the_first_failing_case(grades: ModuleType) -> None:
    finding = grades.wrong_finding("g-20250102T030406-0123abce")
    informing = finding.model_copy(
        update={"id": "f2", "force": Force.INFORMS, "charge": None, "recipe": None, "expected": None}
    )
    assert first_failure(grades.grade(findings=(informing,))) is None
    assert first_failure(grades.wrong_grade(findings=(informing, finding))) == finding
    assert first_failure(grades.wrong_grade(findings=(informing,))) == informing
    assert first_failure(grades.refused_grade()) is None


def test_every_state_has_a_sign_and_a_word() -> None:
    from kernelassay.board import FORCES, STATUSES, VERDICTS

    assert set(VERDICTS) == set(Verdict) and set(STATUSES) == set(Status) and set(FORCES) == set(Force)
    assert all(word.sign and word.text and word.meaning for table in (VERDICTS, STATUSES) for word in table.values())
