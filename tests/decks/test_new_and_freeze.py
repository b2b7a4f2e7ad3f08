"""A new problem works before anything in it is changed; a frozen version stands still; the page on both is true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelassay.decks import FROZEN_FILE, DeckError, freeze, lint, load, new_problem, problem_names
from kernelassay.records import Edition

PAGE = Path(__file__).parents[2] / "docs" / "problems.md"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "my decks"
    root.mkdir()
    monkeypatch.setenv("KERNELASSAY_DECKS", str(root))
    return new_problem("ops/softmax")


def test_the_skeleton_lints_as_it_is(folder: Path) -> None:
    report = lint(load("ops/softmax"))
    assert report.ok, report
    assert (report.mutants.rejected, report.legal.passed) == (2, 1)
    assert "DECK/NAME" not in "".join(file.read_text() for file in folder.iterdir() if file.is_file())


def test_a_loop_that_ends_one_short_in_the_oracle_is_found(folder: Path) -> None:
    """The skeleton's checks have teeth in both directions: with a wrong oracle nothing honest passes."""
    file = folder / "reference.py"
    right = 'inputs["x"].double() @ weights["w"].double()'
    assert right in file.read_text()
    file.write_text(file.read_text().replace(right, 'inputs["x"][:, 1:].double() @ weights["w"][1:].double()'))
    assert not lint(load("ops/softmax")).ok


@pytest.mark.parametrize("name", ["softmax", "ops/Soft", "../x", "ops/soft max", "a/b/c", ""])
def test_a_name_is_two_words(folder: Path, name: str) -> None:
    with pytest.raises(DeckError, match=r"is no name: .*assay deck new"):
        new_problem(name)


def test_nothing_is_overwritten(folder: Path) -> None:
    with pytest.raises(DeckError, match="exists already"):
        new_problem("ops/softmax")


def test_a_frozen_version_stands_still(folder: Path) -> None:
    root = folder.parents[1]
    loaded = load("ops/softmax")
    assert loaded.edition is Edition.UNFROZEN
    assert freeze(root, loaded.problem.name, 1, loaded.content_hash)
    assert not freeze(root, loaded.problem.name, 1, loaded.content_hash)
    assert load("ops/softmax").edition is Edition.FROZEN

    (folder / "prompt.md").write_text("Another text.\n")
    edited = load("ops/softmax")
    assert edited.edition is Edition.EDITED
    with pytest.raises(DeckError, match="version 1 is frozen with another content; raise `version`"):
        freeze(root, edited.problem.name, 1, edited.content_hash)

    yaml = folder / "problem.yaml"
    yaml.write_text(yaml.read_text().replace("version: 1", "version: 2"))
    second = load("ops/softmax")
    assert second.edition is Edition.UNFROZEN
    assert freeze(root, second.problem.name, 2, second.content_hash)
    assert set(json.loads((root / FROZEN_FILE).read_text())["ops/softmax"]) == {"1", "2"}


@pytest.mark.parametrize("text", ["{", "[]", '{"ops/softmax": 1}', '{"ops/softmax": {"1": 2}}'])
def test_a_damaged_list_of_versions_is_told(folder: Path, text: str) -> None:
    (folder.parents[1] / FROZEN_FILE).write_text(text)
    with pytest.raises(DeckError, match=r"frozen\.json.*assay deck freeze --all"):
        load("ops/softmax")


def test_the_page_shows_the_skeleton_as_it_is(folder: Path) -> None:
    """Every block of yaml and Python on the page stands in the skeleton word for word."""
    blocks = [block.partition("\n") for block in PAGE.read_text().split("```")[1::2]]
    files = {"yaml": "problem.yaml", "python": "reference.py"}
    shown = [(language, text) for language, _, text in blocks if language in files]
    assert {language for language, _ in shown} == set(files)
    for language, text in shown:
        assert text.strip() in (folder / files[language]).read_text()


def test_no_problem_of_the_repository_was_edited_since_it_was_frozen() -> None:
    assert [name for name in problem_names() if load(name).edition is Edition.EDITED] == []
