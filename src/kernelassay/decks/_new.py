"""A new problem's folder: a skeleton that loads and lints before anything in it is changed."""

from __future__ import annotations

from pathlib import Path

from kernelassay.decks._error import DeckError
from kernelassay.decks._loader import FILES, NAME, roots

SKELETON = Path(__file__).with_name("skeleton")


def new_problem(name: str) -> Path:
    """Write the skeleton of the problem `name` (`deck/problem`) into the first folder of decks; returns its folder.

    Raises:
        DeckError: the name is none, it exists, or the folder cannot be written.
    """
    if not NAME.fullmatch(name):
        raise DeckError(
            f"{name!r} is no name: two words in a-z, 0-9 and _ with a slash between; next: assay deck new ops/softmax"
        )
    folder = roots()[0] / name
    if folder.exists():
        raise DeckError(f"{folder}: exists already; choose another name, or see it with: assay deck show {name}")
    try:
        folder.mkdir(parents=True)
        for file in FILES:
            text = (SKELETON / file).read_text(encoding="utf-8").replace("DECK/NAME", name)
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise DeckError(f"{folder}: {error.strerror}; make it writable, then run: assay deck new {name}") from error
    return folder
