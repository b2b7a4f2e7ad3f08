"""What the texts say is so: links resolve, commands exist, tables equal the code, examples are graded clean."""

import json
import re
import subprocess
import sys
from enum import Enum
from pathlib import Path

import pytest

from kernelassay.records import EntryKind, ExitCode, Force, Limits, Status, TimingState, Verdict

ROOT = Path(__file__).resolve().parents[2]
ASSAY = Path(sys.executable).with_name("assay")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
UNITS = {"s": 1, "GiB": 1 << 30, "MiB": 1 << 20, "": 1}
FENCE = re.compile(r"^```(\w+) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page(name: str) -> str:
    return (ROOT / name).read_text()


def ids(path: object) -> str:
    return path.relative_to(ROOT).as_posix() if isinstance(path, Path) else str(path)


@pytest.mark.parametrize("path", PAGES, ids=ids)
def test_links_resolve(path: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", prose):
        if not target.startswith(("https://", "#")):
            assert (path.parent / target.split("#")[0]).exists(), f"{path.name} links to {target}"


def help_of(*words: str) -> str:
    return subprocess.run([str(ASSAY), *words, "--help"], capture_output=True, text=True, check=True).stdout


def commands() -> set[str]:
    """Commands of the texts: the words in small letters after `assay`."""
    found: set[str] = set()
    for path in PAGES:
        for code in re.findall(r"`(?:\./)?assay [^`]+`", path.read_text()):
            first, *rest = re.match(r"`(?:\./)?assay((?: [a-z]+)*)", code).group(1).split() or [""]  # type: ignore[union-attr]
            found.add(f"deck {rest[0]}" if first == "deck" and rest else first)
    return found - {""}


def test_commands_exist() -> None:
    top, deck = help_of(), help_of("deck")
    assert commands() >= {"grade", "reproduce", "doctor", "deck lint", "schema"}
    for command in commands():
        word = command.split()[-1]
        assert re.search(rf"^\W*{word}\b", deck if command.startswith("deck ") else top, re.MULTILINE), command


@pytest.mark.parametrize("option", ["--json", "--quiet", "--home", "--level", "--device", "--tier", "--problem"])
def test_options_exist(option: str) -> None:
    assert option in page("docs/cli.md")
    assert option in help_of("grade")


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", page("Makefile"), re.MULTILINE))
    for path in PAGES:
        text = path.read_text()
        assert set(re.findall(r"(?:`|\$ )make ([a-z-]+)", text)) <= targets, path


def rows(text: str, name: str) -> dict[str, str]:
    """First column → second of the table whose head starts with `name`."""
    table = re.search(rf"^\| {re.escape(name)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None, f"no table {name!r}"
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.group(1).splitlines()]
    return {row[0].strip("` "): row[1].strip() for row in cells}


@pytest.mark.parametrize(
    ("name", "table", "words"),
    [
        ("docs/records.md", "status", Status),
        ("docs/records.md", "verdict", Verdict),
        ("docs/records.md", "timing", TimingState),
        ("docs/cli.md", "code", ExitCode),
        ("README.md", "exit code", ExitCode),
        ("README.md", "entry", EntryKind),
    ],
)
def test_tables_of_words_are_whole(name: str, table: str, words: type[Enum]) -> None:
    shown = list(rows(page(name), table))
    assert shown == [str(word.value) for word in words] or set(shown) == {str(word.value) for word in words}


def test_readme_names_every_word_of_a_grade() -> None:
    text = page("README.md")
    for word in (*Status, *TimingState, *Verdict):
        assert f"`{word.value}`" in text
    assert all(f"`{force.value}`" in page("docs/records.md") for force in Force)


def test_limits_are_the_real_ones() -> None:
    shown = {}
    for name, value in rows(page("docs/submissions.md"), "limit").items():
        number, _, unit = value.partition(" ")
        shown[name] = float(number) * UNITS[unit]
    assert shown == {name: float(value) for name, value in Limits().model_dump().items()}


def examples() -> dict[str, dict[str, str]]:
    """Entry → file → text, as docs/submissions.md shows them; the kernel belongs to all."""
    head, *sections = re.split(r"^### Entry ", page("docs/submissions.md"), flags=re.MULTILINE)
    common = {file: text for _, file, text in FENCE.findall(head)}
    return {
        section.split("`")[1]: common | {file: text for _, file, text in FENCE.findall(section)} for section in sections
    }


def test_every_entry_has_an_example() -> None:
    assert set(examples()) == {kind.value for kind in EntryKind}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("entry", [kind.value for kind in EntryKind])
def test_examples_are_graded_correct(entry: str, tmp_path: Path) -> None:
    """The status, not the verdict: on a machine that is busy with something else no time may be valid."""
    folder = tmp_path / entry
    folder.mkdir()
    for name, text in examples()[entry].items():
        (folder / name).write_text(text)
    command = [str(ASSAY), "grade", str(folder), "--problem", "ops/topk", "--json", "--home", str(tmp_path / "home")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    grade = json.loads(ended.stdout)
    assert (grade["status"], grade["submission"]["entry"]) == ("correct", entry), grade["reasons"]
