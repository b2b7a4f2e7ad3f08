"""Standard output carries the answer, standard error everything else.

Text goes to the terminal as text: nothing in it is read as markup, and what a submission wrote has its control
characters escaped before it comes here. Nothing of rich or pydantic is imported before it is needed, so that
`assay --help` answers at once.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

_PLAIN_WIDTH = 110
"""Columns where no terminal says otherwise: a log or a pipe, read on a wide screen."""


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    colourless = bool(os.environ.get("NO_COLOR"))
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _PLAIN_WIDTH
    if colourless:
        return Console(file=stream, width=width, highlight=False, markup=False, emoji=False, color_system=None)
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def out() -> Console:
    """The console on standard output."""
    return _console(sys.stdout)


@functools.cache
def _err_for(stream: TextIO) -> Console:
    return _console(stream)


def err() -> Console:
    """The console on standard error, one per stream so that live progress and notes do not cross."""
    return _err_for(sys.stderr)


def styled(text: str, style: str = "") -> Text:
    """Text that is shown as it is; rich reads no markup in it."""
    from rich.text import Text

    return Text(text, style=style)


def show(*parts: RenderableType) -> None:
    """Print to standard output; long lines of text wrap only where the terminal wraps them."""
    from rich.text import Text

    console = out()
    try:
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, (str, Text)))
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()


def note(text: str) -> None:
    """One line on standard error, also readable beside a JSON answer."""
    err().print(styled(text), soft_wrap=True)


def emit(document: Any) -> None:
    """Print the one JSON document of a command; pure ASCII, so no terminal can be steered by a name in it."""
    text = json.dumps(document, ensure_ascii=True, allow_nan=False, indent=2).replace("\x7f", "\\u007f")
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()


def _silence_stdout() -> None:
    """The reader has gone (`assay … | head`): the command still ends with its own exit code."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
