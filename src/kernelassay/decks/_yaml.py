"""`problem.yaml` read as YAML 1.2, strictly, with the line of whatever is wrong in it.

Duplicate keys and tags are refused; the result holds only what JSON has a form for.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from kernelassay.decks._error import DeckError
from kernelassay.records import Problem


def read_problem(source: bytes, path: Path, next_step: str) -> Problem:
    """Parse and validate the bytes of a `problem.yaml`.

    Raises:
        DeckError: no UTF-8, no YAML, a key twice, or no valid problem; with the line where it is known.
    """
    try:
        text = source.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DeckError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8, then run: {next_step}") from error
    data, root = _parse(text, path, next_step)
    if not isinstance(data, dict):
        raise DeckError(f"{path}, line 1: holds no mapping; write one key per line, then run: {next_step}")
    try:
        return Problem.from_plain(data)
    except ValidationError as error:
        first = error.errors()[0]
        location = tuple(part for part in first["loc"])
        where = ".".join(str(part) for part in location)
        line = _line(root, location)
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        message = first["msg"].removeprefix("Value error, ")
        what = f"{where}: {message}" if where else message
        at = f", line {line}" if location else ""
        raise DeckError(f"{path}{at}: {what}{more}; correct it, then run: {next_step}") from error
    except (TypeError, ValueError) as error:  # a date, .inf, .nan: no JSON
        raise DeckError(f"{path}: {error}; write plain JSON-like values, then run: {next_step}") from error


def _parse(text: str, path: Path, next_step: str) -> tuple[Any, Node | None]:
    try:
        root = YAML(typ="safe", pure=True).compose(io.StringIO(text))
        return YAML(typ="safe", pure=True).load(text), root
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f", line {mark.line + 1}" if mark is not None else ""
        what = str(error.problem or error.context).split("\n")[0]
        kind = "key named twice" if isinstance(error, DuplicateKeyError) else "not YAML"
        raise DeckError(f"{path}{at}: {kind}: {what}; correct it, then run: {next_step}") from error
    except YAMLError as error:
        what = " ".join(str(error).split())
        raise DeckError(f"{path}: not YAML: {what}; correct it, then run: {next_step}") from error


def _line(root: Node | None, location: tuple[int | str, ...]) -> int:
    """Line (from 1) of the deepest node on the way to `location`."""
    node = root
    line = 1
    for part in location:
        child: Node | None = None
        if isinstance(node, MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    line = key.start_mark.line + 1
                    child = value
        elif isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.value):
            child = node.value[part]
            line = child.start_mark.line + 1
        if child is None:
            break
        node = child
    return line
