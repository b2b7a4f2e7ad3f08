"""The page of a grade: complete, self-contained, and deaf to whatever a submission writes."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

from kernelassay import board
from kernelassay.records import (
    Case,
    CaseResult,
    Environment,
    Grade,
    Interval,
    ShapeTiming,
    Status,
    Submission,
    Timing,
    TimingState,
)

_VOID = {"meta", "rect", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Elements, ids, links and text of a page; fails on a tag that is not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend((tag, name, value or "") for name, value in attrs)
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self._open and self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def values(self, name: str) -> list[str]:
        return [value for _, attribute, value in self.attributes if attribute == name]


def render(grades: ModuleType, folder: Path, record: Grade) -> str:
    place: Path = grades.keep(folder, record)
    return board.write_report(record, place).read_text(encoding="utf-8")


ALL = ["grade", "wrong_grade", "refused_grade", "hostile_grade"]


@pytest.mark.parametrize("kind", ALL)
def test_page_is_well_formed_and_self_contained(grades: ModuleType, tmp_path: Path, kind: str) -> None:
    text = render(grades, tmp_path, getattr(grades, kind)())
    page = Page(text)
    assert not {"script", "iframe", "link", "img", "object", "form", "base"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on") or name in {"style", "src"}]
    assert not re.search(r"https?:|url\(|@import", text)
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    for target in page.values("href"):
        assert target.startswith("#") or target in {"grade.json", "log.txt"}
        assert not target.startswith("#") or target[1:] in ids, target


def test_policy_allows_the_style_and_nothing_else(grades: ModuleType, tmp_path: Path) -> None:
    text = render(grades, tmp_path, grades.grade())
    policy = next(value for value in Page(text).values("content") if "default-src" in value)
    style = re.search(r"<style>(.*?)</style>", text, flags=re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style.group(1).encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_page_tells_everything(grades: ModuleType, tmp_path: Path) -> None:
    record = grades.wrong_grade()
    text = Page(render(grades, tmp_path, record)).text
    for part in (
        "✗ incorrect",
        "wrong: 8 of 45 cases disagree with the oracle",
        "ops/topk, version 1, tier small",
        record.problem.content_hash,
        record.submission.content_hash,
        *(entry.sha256 for entry in record.submission.files),
        "expected 1.0000153779983521",
        "actual 1.0000152587890625",
        "values[0, 60]",
        "drop_low_2_bits",
        f"assay reproduce {record.id}/f1",
        "8 failing cases",
        "37 passing cases",
        "No score.",
        "invalid (no clock yet)",
        "namespaces, memory limit by cgroup, a user id of its own",
        "limit: memory 8 GiB",
        "A Processor <9000>",
        "✓ the secret hashes to the commitment",
        "assay grade submission --problem ops/topk --device cpu --tier small",
        "c++ -O3 -march=native kernel.cpp",
        "build 2.10 s, check 3.40 s",
    ):
        assert part in text, part


def test_failing_cells_lead_to_their_rows(grades: ModuleType, tmp_path: Path) -> None:
    page = Page(render(grades, tmp_path, grades.wrong_grade()))
    cells = [value for value in page.values("href") if value.startswith("#case-")]
    assert len(cells) == 8
    assert page.text.count("✗ wrong") == 8 + 8 + 1, "one per cell, row and the status: never told by colour alone"


def test_grid_has_the_order_of_the_problem_and_shows_what_did_not_run(grades: ModuleType, tmp_path: Path) -> None:
    shuffled = grades.results()[::-1][:18]
    record = grades.wrong_grade(
        status=Status.CRASHED,
        cases=(*shuffled, CaseResult(case=Case(shape=grades.SHAPES[0], case="nominal", seed=1), status=Status.CRASHED)),
    )
    text = render(grades, tmp_path, record)
    grid = text[text.index('<table class="grid">') :].partition("</table>")[0]
    assert re.findall(r'<th scope="col">([^<]+)</th>', grid) == ["case", *grades.SHAPES]
    rows = re.findall(r'<th scope="row">([^<]+)</th>', grid)
    assert rows == ["nominal", *sorted(set(rows) - {"nominal"})]
    assert grid.count("not run") > 0
    assert "26 not run" in text


def test_usage_is_drawn_only_where_some_was_used(grades: ModuleType, tmp_path: Path) -> None:
    exact = render(grades, tmp_path / "a", grades.grade())
    partly = render(grades, tmp_path / "b", grades.grade(cases=grades.results(usage=0.37)))
    assert 'class="bar-fill"' not in exact
    assert partly.count('class="bar-fill" width="37.0"') == 45


def test_hostile_texts_stay_text(grades: ModuleType, tmp_path: Path) -> None:
    text = render(grades, tmp_path, grades.hostile_grade())
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    shown = Page(text).text
    assert r"'evil\x1b[2J\nname<script>alert(1)</script>\u202e'" in shown
    assert r"'\u202eyp.exe<img src=x>.py'" in shown
    assert r"\x1b[31mPASS\x1b[0m" in shown
    assert "</pre><script>alert(2)</script>" in shown


def test_source_is_shown_line_by_line_and_long_ones_are_folded(grades: ModuleType, tmp_path: Path) -> None:
    text = render(grades, tmp_path, grades.grade())
    assert '<details id="source-0">' in text and '<details id="source-1" open>' in text
    assert text.count('id="source-0-') == len(grades.SOURCE.splitlines())
    assert "// step 7: compare &amp; swap &lt;if&gt; needed" in text


def test_changed_source_is_called_that(grades: ModuleType, tmp_path: Path) -> None:
    record = grades.grade()
    place = grades.keep(tmp_path, record)
    (place / "submission" / "kernel.cpp").write_text("int other;\n")
    assert "this is not the file that was graded" in board.render_report(record, place)


def test_binary_and_missing_and_outside_files_are_not_shown(grades: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("do not show")
    entries = tuple(
        grades.file_entry(name, data)
        for name, data in (("blob.py", b"\xff\x00"), ("gone.py", b""), ("link.py", b""), ("../../../secret.txt", b""))
    )
    record = grades.grade(submission=Submission(name="s", content_hash="cd" * 32, files=entries))
    place = tmp_path / "grades" / record.id
    (place / "submission").mkdir(parents=True)
    (place / "submission" / "blob.py").write_bytes(b"\xff\x00")
    (place / "submission" / "link.py").symlink_to(tmp_path / "secret.txt")
    text = board.render_report(record, place)
    assert "do not show" not in text
    assert "no UTF-8 text" in text
    assert text.count("is not kept beside the grade") == 3


def test_log_is_cut_at_the_front(grades: ModuleType, tmp_path: Path) -> None:
    record = grades.grade()
    place = grades.keep(tmp_path, record)
    (place / "log.txt").write_text("first\n" + "x" * 100_000 + "\nlast error\n")
    text = board.render_report(record, place)
    assert "last error" in text and "first\n" not in text and len(text) < 100_000
    (place / "log.txt").unlink()
    assert 'id="log"' not in board.render_report(record, place)


def test_broken_commitment_is_said(grades: ModuleType, tmp_path: Path) -> None:
    text = render(grades, tmp_path, grades.grade(secret="00" * 32))
    assert "✗ the secret does not hash to the commitment" in text


def test_page_holds_no_path_of_the_machine(grades: ModuleType, tmp_path: Path) -> None:
    assert str(tmp_path) not in render(grades, tmp_path, grades.wrong_grade())


def test_writing_replaces_and_leaves_nothing_else(grades: ModuleType, tmp_path: Path) -> None:
    record = grades.grade()
    place = grades.keep(tmp_path, record)
    before = {path.name for path in place.iterdir()}
    for _ in range(2):
        assert board.write_report(record, place) == place / "report.html"
    assert {path.name for path in place.iterdir()} == before | {"report.html"}


def test_lone_surrogates_do_not_stop_the_page(grades: ModuleType, tmp_path: Path) -> None:
    record = grades.grade(reasons=("odd \udcff byte",))
    place = tmp_path / "grades" / record.id
    place.mkdir(parents=True)
    assert r"odd \udcff byte" in board.write_report(record, place).read_text(encoding="utf-8")


def test_index_lists_grades_with_relative_links(grades: ModuleType, tmp_path: Path) -> None:
    rows = []
    for record in (grades.grade(), grades.hostile_grade()):
        place = grades.keep(tmp_path, record)
        rows.append((record, board.write_report(record, place)))
    page = Page(board.write_index(tmp_path / "demo.html", "Demo <1>", rows).read_text(encoding="utf-8"))
    links = page.values("href")
    assert links == [f"grades/{record.id}/report.html" for record, _ in rows]
    assert all((tmp_path / link).is_file() for link in links)
    assert "Demo <1>" in page.text and "✓ clean" in page.text and "✗ incorrect" in page.text


def test_environment_block_is_complete(grades: ModuleType, tmp_path: Path) -> None:
    text = Page(render(grades, tmp_path, grades.grade())).text
    for name in Environment.model_fields:
        value = getattr(grades.environment(), name)
        assert value is None or str(value) in text, name


def test_clocks_are_shown_where_there_are_any(grades: ModuleType, tmp_path: Path) -> None:
    interval = Interval(median_us=20.0, low_us=19.0, high_us=21.5)
    shapes = tuple(
        ShapeTiming(shape=shape, state=TimingState.CONFIRMED, inner=interval, outer=interval, time=interval)
        for shape in grades.SHAPES
    )
    record = grades.grade(timing=Timing(state=TimingState.CONFIRMED, shapes=shapes), score=0.25)
    text = Page(render(grades, tmp_path, record)).text
    assert "Score 0.25" in text and "No score." not in text
    assert text.count("20 µs (19 µs – 21.5 µs)") == 3 * len(grades.SHAPES)
    assert "Clocks by shape" not in render(grades, tmp_path / "none", grades.grade())
