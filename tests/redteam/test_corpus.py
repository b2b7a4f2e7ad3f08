"""A corpus is whole or refused, and a twin is the exploit without its marked lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kernelassay.records import Verdict
from kernelassay.redteam import CorpusError, Kind, corpus_folder, is_marked, load_corpus, make_twin
from tests.redteam.conftest import EXPLOIT, EXPLOIT_MANIFEST, HONEST, HONEST_MANIFEST, write_entry

MIN_EXPLOITS, MIN_MECHANISMS, MIN_HONEST = 30, 20, 20


def test_entries_are_loaded_exploits_first(corpus: Path) -> None:
    memo, plain = load_corpus(corpus)
    assert (memo.name, memo.kind, memo.manifest.expect.probe) == ("memo", Kind.EXPLOIT, "live_inputs")
    assert (plain.name, plain.kind, plain.manifest.expect.verdict) == ("plain", Kind.HONEST, Verdict.CLEAN)


BROKEN = {
    "no manifest": ("exploits", None, EXPLOIT, "cannot be read"),
    "no YAML": ("exploits", "title: [", EXPLOIT, "no YAML"),
    "a key that nobody knows": ("exploits", EXPLOIT_MANIFEST + "more: 1\n", EXPLOIT, "more"),
    "a mechanism that is no slug": ("exploits", EXPLOIT_MANIFEST.replace("memo-by", "Memo by"), EXPLOIT, "mechanism"),
    "an unknown verdict": ("exploits", EXPLOIT_MANIFEST.replace("reward_hack", "guilty"), EXPLOIT, "expect.verdict"),
    "nothing marked": ("exploits", EXPLOIT_MANIFEST, HONEST, "twin would be itself"),
    "an exploit that may be clean": (
        "exploits",
        EXPLOIT_MANIFEST.replace("reward_hack", "clean"),
        EXPLOIT,
        "counted: false",
    ),
    "an exploit without a rule": (
        "exploits",
        EXPLOIT_MANIFEST.replace("rule: probe.live_inputs, ", ""),
        EXPLOIT,
        "names the rule",
    ),
    "a second verdict for an exploit": (
        "exploits",
        EXPLOIT_MANIFEST.replace("reward_hack,", "reward_hack, or_verdict: clean,"),
        EXPLOIT,
        "or_verdict",
    ),
    "a missing cheat file": ("exploits", EXPLOIT_MANIFEST + "cheat_files: [no.py]\n", EXPLOIT, "no.py"),
    "an accused look-alike": ("honest", HONEST_MANIFEST.replace("clean", "reward_hack"), HONEST, "never accused"),
    "a cheat in a look-alike": ("honest", HONEST_MANIFEST, EXPLOIT, "mark of a cheat"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_entry_is_refused_with_its_file(corpus: Path, what: str) -> None:
    part, manifest, solution, message = BROKEN[what]
    folder = write_entry(corpus / part / "broken", manifest or "", solution)
    if manifest is None:
        (folder / "manifest.yaml").unlink()
    with pytest.raises(CorpusError, match=message) as raised:
        load_corpus(corpus)
    assert str(folder / "manifest.yaml") in str(raised.value)
    assert "\nnext: " in str(raised.value)


def test_an_entry_without_a_submission_is_refused(corpus: Path) -> None:
    (corpus / "exploits" / "empty").mkdir()
    (corpus / "exploits" / "empty" / "manifest.yaml").write_text(EXPLOIT_MANIFEST)
    with pytest.raises(CorpusError, match="no folder 'submission'"):
        load_corpus(corpus)


def test_one_name_once(corpus: Path) -> None:
    write_entry(corpus / "honest" / "memo", HONEST_MANIFEST, HONEST)
    with pytest.raises(CorpusError, match="'memo' twice"):
        load_corpus(corpus)


def test_no_corpus_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELASSAY_REDTEAM", str(tmp_path))
    with pytest.raises(CorpusError, match="no red team"):
        corpus_folder()


@pytest.mark.parametrize("line", ["x = 1  # cheat", "int x;  // cheat", "#cheat", "x = 1  # cheat  "])
def test_marks(line: str) -> None:
    assert is_marked(line)


@pytest.mark.parametrize("line", ["x = 1  # cheating", "# cheat: not the end", "cheat", "x = 1 # no cheat at all"])
def test_no_marks(line: str) -> None:
    assert not is_marked(line)


def test_a_twin_lacks_exactly_the_marked_lines_and_files(corpus: Path, tmp_path: Path) -> None:
    source = corpus / "exploits" / "memo" / "submission"
    (source / "planted.py").write_text("1\n")
    (source / "kept.py").write_text("2\n")
    twin = make_twin(source, tmp_path / "twin", ("planted.py",))
    assert sorted(p.name for p in twin.iterdir()) == ["kept.py", "solution.py"]
    assert (twin / "solution.py").read_text() == HONEST.replace(
        "    return tuple(torch.topk(data[0], 8, dim=-1))",
        "    x = data[0]\n    return tuple(torch.topk(x, 8, dim=-1))",
    ).replace("import torch\n", "\nimport torch\n\n", 1)


def test_the_repository_holds_a_whole_corpus() -> None:
    """Every manifest validates, and there are as many as the project claims."""
    entries = load_corpus()
    exploits = [e for e in entries if e.kind is Kind.EXPLOIT]
    assert len(exploits) >= MIN_EXPLOITS
    assert len({e.manifest.mechanism for e in exploits}) >= MIN_MECHANISMS
    assert sum(e.kind is Kind.HONEST for e in entries) >= MIN_HONEST


def test_every_twin_of_the_corpus_is_whole(tmp_path: Path) -> None:
    """Without the marked lines it parses, and no name is left that they defined."""
    for entry in load_corpus():
        if entry.kind is not Kind.HONEST:
            twin = make_twin(entry.submission, tmp_path / entry.name, entry.manifest.cheat_files)
            assert list(twin.rglob("*.*")), entry.name
    lint = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F821", str(tmp_path)]
    told = subprocess.run(lint, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout
