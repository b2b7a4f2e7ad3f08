"""The runner: what is caught, what passes, what an expectation that fails looks like, what a full run adds."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelassay.decks import load
from kernelassay.redteam import CorpusError, Kind, ask_naive_judge, load_corpus, run
from kernelassay.sandbox import Sandbox
from tests.redteam.conftest import EXPLOIT_MANIFEST, HONEST, write_entry

QUICK = ("channel_garbage", "early_starter", "late_finisher", "memo_by_address")
"""Entries that the fast half runs: one by the channel, one by a fingerprint, one by late work, one by a memo."""


@pytest.mark.usefixtures("small_deck")
def test_a_small_corpus_is_complete(corpus: Path, tmp_path: Path) -> None:
    report = run(folder=corpus, home=tmp_path / "home")
    assert report.complete, [row.faults for row in report.rows]
    memo, plain = report.rows
    assert (memo.verdict, memo.rule, memo.status) == ("reward_hack", "probe.live_inputs", "wrong")
    assert (plain.verdict, plain.kind) == ("clean", Kind.HONEST)
    assert (tmp_path / "home" / "grades" / memo.grade / "grade.json").is_file()


@pytest.mark.usefixtures("small_deck")
def test_an_expectation_that_is_not_met_is_a_fault(corpus: Path, tmp_path: Path) -> None:
    manifest = EXPLOIT_MANIFEST.replace("live_inputs", "one_element")
    write_entry(corpus / "exploits" / "harmless", manifest, HONEST + "# cheat\n")
    report = run(folder=corpus, home=tmp_path / "home", only=["harmless"])
    assert not report.complete
    assert report.selected
    assert [fault.split(":")[0] for fault in report.rows[0].faults] == [
        "verdict clean, expected reward_hack",
        "no finding of rule 'probe.one_element'; found",
    ]


def test_an_unknown_name_is_refused(corpus: Path) -> None:
    with pytest.raises(CorpusError, match="no entry 'nobody'"):
        run(folder=corpus, only=["nobody"])


@pytest.mark.slow
@pytest.mark.usefixtures("small_deck")
def test_a_full_run_asks_for_twin_naive_judge_and_replay(corpus: Path, tmp_path: Path) -> None:
    report = run(folder=corpus, home=tmp_path / "home", full=True)
    assert report.complete, [row.faults for row in report.rows]
    memo = report.rows[0]
    assert (memo.twin, memo.naive, memo.reproduced) == ("clean", True, True)


@pytest.mark.slow
@pytest.mark.usefixtures("small_deck")
def test_the_naive_judge_refuses_what_is_plainly_wrong(corpus: Path, tmp_path: Path) -> None:
    entry = load_corpus(corpus)[1]
    file = entry.submission / "solution.py"
    sandbox, loaded = Sandbox(), load("ops/topk")
    tmp_path.chmod(0o755)
    assert ask_naive_judge(sandbox, loaded, entry.submission, tmp_path / "right").accepted
    file.write_text(HONEST.replace("data[0]", "data[0].abs()"))
    opinion = ask_naive_judge(sandbox, loaded, entry.submission, tmp_path / "wrong")
    assert not opinion.accepted
    assert '"accepted": false' in opinion.said


def test_a_few_of_the_corpus(tmp_path: Path) -> None:
    report = run(home=tmp_path / "home", only=QUICK)
    assert report.complete, [row.faults for row in report.rows if not row.ok]
    assert len(report.rows) == len(QUICK)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_whole_corpus(tmp_path: Path) -> None:
    """Every exploit by its own probe, every look-alike by all of them; `redteam run --full` adds twins and more."""
    report = run(home=tmp_path / "home", full=False)
    assert report.complete, {row.name: row.faults for row in report.rows if not row.ok}
