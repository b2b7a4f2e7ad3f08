"""A broken deck or a mistaken name is one clear line: what, where, what to do next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kernelassay.decks import DeckError, hash_files, load, problem_names

Toy = Callable[..., Path]


def refusal(name: str = "toy/scale") -> str:
    with pytest.raises(DeckError) as caught:
        load(name)
    text = str(caught.value)
    assert "\n" not in text
    assert ": assay deck " in text
    return text


def test_repository_decks_are_found_without_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELASSAY_DECKS", raising=False)
    names = problem_names()
    assert "ops/topk" in names
    assert list(names) == sorted(names)


def test_variable_replaces_the_decks(toy: Toy) -> None:
    toy()
    assert problem_names() == ("toy/scale",)
    assert "toy/scale" in refusal("toy/scal")


def test_first_root_wins(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = toy()
    other = tmp_path / "other" / "toy" / "scale"
    other.mkdir(parents=True)
    for file in folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes().replace(b"Scaled product", b"Other"))
    monkeypatch.setenv("KERNELASSAY_DECKS", f"{tmp_path / 'other'}:{tmp_path / 'decks'}")
    assert load("toy/scale").problem.title == "Other"
    assert problem_names() == ("toy/scale",)


def test_folder_with_a_forbidden_name_is_listed_and_refused(toy: Toy) -> None:
    folder = toy()
    folder.rename(folder.parent / "scale-old")
    assert problem_names() == ("toy/scale-old",)
    assert "rename it" in refusal("toy/scale-old")


def test_missing_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELASSAY_DECKS", str(tmp_path / "nowhere"))
    with pytest.raises(DeckError, match="nowhere"):
        problem_names()


@pytest.mark.parametrize(
    ("name", "hint"),
    [("toy/scala", "'toy/scale'"), ("ops/scale", "'toy/scale'"), ("scale", "'toy/scale'"), ("toy", "")],
)
def test_unknown_problem(toy: Toy, name: str, hint: str) -> None:
    toy()
    text = refusal(name)
    assert f"unknown problem {name!r}" in text
    assert hint in text


@pytest.mark.parametrize("name", ["../decks/toy/scale", "/etc/passwd", "toy/../toy", "", "/", "toy/scale/", "a\nb/c"])
def test_names_are_no_paths(toy: Toy, name: str) -> None:
    toy()
    assert "unknown problem" in refusal(name)


@pytest.mark.parametrize(
    ("edit", "line", "what"),
    [
        (("version: 1", "version: 1\nversion: 2"), 3, "version"),
        (("version: 1", "version: [1"), 3, "not YAML"),
        (("version: 1", "version: one"), 2, "version"),
        (("entry: forward", "entry: backward"), 5, "entry"),
        (("dims: [m, n], rows: 1", "dims: [m, n], rows: x"), 9, "rows"),
        (("dims: [m, n], rows: 1", "dims: [m, 'q()'], rows: 1"), 9, "dims"),
        (("{name: onehot}", "{name: onehot, color: red}"), 18, "color"),
        (("title: Scaled product", "title: 2026-01-01"), None, "JSON"),
        (("version: 1", "version: .nan"), None, "JSON"),
        (("version: 1", "version: !!python/object:os.system 1"), 2, "not YAML"),
        (("case: onehot", "case: unknown"), None, "unknown case"),
    ],
)
def test_broken_yaml_names_its_line(toy: Toy, edit: tuple[str, str], line: int | None, what: str) -> None:
    folder = toy(yaml=[edit])
    text = refusal()
    assert str(folder / "problem.yaml") in text
    assert what in text
    if line is not None:
        assert f"line {line}:" in text


@pytest.mark.parametrize("content", [b"", b"- 1\n", b"just text", b"\xff\xfe\x00", b"a: b: c"])
def test_yaml_that_is_no_problem(toy: Toy, content: bytes) -> None:
    folder = toy()
    (folder / "problem.yaml").write_bytes(content)
    assert "problem.yaml" in refusal()


@pytest.mark.parametrize("name", ["problem.yaml", "reference.py", "prompt.md"])
def test_missing_file(toy: Toy, name: str) -> None:
    folder = toy()
    (folder / name).unlink()
    text = refusal()
    assert str(folder) in text
    assert name in text


def test_problem_that_lies_elsewhere(toy: Toy) -> None:
    toy(yaml=[("name: toy/scale", "name: toy/other")])
    assert "toy/other" in refusal()


def test_empty_prompt(toy: Toy) -> None:
    toy(prompt="  \n")
    assert "prompt.md" in refusal()


def test_symbolic_link(toy: Toy) -> None:
    folder = toy()
    (folder / "extra").symlink_to("/etc/hostname")
    assert "symbolic link" in refusal()


@pytest.mark.parametrize(
    ("edits", "what"),
    [
        ([("def oracle(", "def oracles(")], "oracle"),
        ([("class Model(nn.Module)", "class Other(nn.Module)")], "Model"),
        ([("class Model(nn.Module)", "class Model")], "Model"),
        ([('"onehot": onehot, ', "")], "CASES lacks onehot"),
        ([('{"fp32": fp32}', '{"fp32": fp32, "fp8": fp32}')], "does not declare fp8 of LEGAL"),
        ([('"gain": gain', '"gian": gain')], "MUTANTS lacks gain, which problem.yaml declares; problem.yaml"),
        ([('"gain": gain', '"gain": 1')], "MUTANTS"),
        ([("def gain(", "def gain(:")], "line 40: "),
        ([("import torch\n", "import torch\n1 / 0\n")], "line 2: does not import: ZeroDivisionError"),
        ([("import torch\n", "import torch_nowhere\n")], "line 1: does not import: ModuleNotFoundError"),
    ],
)
def test_reference_and_yaml_must_agree(toy: Toy, edits: list[tuple[str, str]], what: str) -> None:
    folder = toy(reference=edits)
    text = refusal()
    assert what in text
    assert str(folder / "reference.py") in text


def test_hash_follows_every_byte_and_ignores_bytecode(toy: Toy) -> None:
    folder = toy()
    first = load("toy/scale").content_hash
    assert first == load("toy/scale").content_hash
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "reference.cpython-311.pyc").write_bytes(b"stale")
    assert load("toy/scale").content_hash == first
    (folder / "table.txt").write_text("1", encoding="utf-8")
    second = load("toy/scale").content_hash
    assert second != first
    (folder / "table.txt").rename(folder / "tables.txt")
    assert load("toy/scale").content_hash not in (first, second)


def test_hash_cannot_be_fooled_by_moving_a_boundary() -> None:
    assert hash_files({"a": b"bc"}) != hash_files({"ab": b"c"})
    assert hash_files({"a": b"", "b": b""}) != hash_files({"a": b"b"})
    assert hash_files({"a": b"1", "b": b"2"}) == hash_files({"b": b"2", "a": b"1"})


def test_loading_leaves_the_deck_as_it_was(toy: Toy) -> None:
    folder = toy()
    before = sorted(folder.rglob("*"))
    load("toy/scale")
    assert sorted(folder.rglob("*")) == before


def test_an_edit_is_seen_by_the_next_load(toy: Toy) -> None:
    toy()
    first = load("toy/scale")
    toy(prompt="Do it well.", reference=[("1.02", "1.03")])
    second = load("toy/scale")
    assert (first.prompt, second.prompt) == ("Do it.", "Do it well.")
    assert first.reference.model is not second.reference.model
