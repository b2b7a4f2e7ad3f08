"""Find problems on disk and load them; the same bytes are hashed, parsed and run.

The rule: a problem is what its files say and nothing else. `$KERNELASSAY_DECKS` (folders separated by `os.pathsep`)
replaces the decks of the repository or of the installed package; where two roots hold one name, the first root wins,
as on a search path.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from pathlib import Path

from kernelassay.decks._error import DeckError
from kernelassay.decks._freeze import edition, read_frozen
from kernelassay.decks._problem import LoadedProblem
from kernelassay.decks._reference import load_reference
from kernelassay.decks._yaml import read_problem

DECKS_VARIABLE = "KERNELASSAY_DECKS"
IGNORED = "__pycache__"
FILES = ("problem.yaml", "reference.py", "prompt.md")
LIST_COMMAND = "assay deck list"
NAME = re.compile(r"[a-z0-9_]+/[a-z0-9_]+")
"""As in the record; it keeps a name from being a path."""


def roots() -> tuple[Path, ...]:
    """The folders of decks, as searched.

    Raises:
        DeckError: there is none.
    """
    listed = os.environ.get(DECKS_VARIABLE, "")
    if listed:
        roots = tuple(Path(part).expanduser() for part in listed.split(os.pathsep) if part)
        for root in roots:
            if not root.is_dir():
                raise DeckError(f"{DECKS_VARIABLE}: no such folder: {root}; correct it, then run: {LIST_COMMAND}")
        return roots
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "_decks", package.parents[1] / "decks"):
        if candidate.is_dir():
            return (candidate,)
    raise DeckError(f"no decks beside {package}; point {DECKS_VARIABLE} at a folder of decks, then run: {LIST_COMMAND}")


def problem_names() -> tuple[str, ...]:
    """Names of all problems, `deck/problem`, sorted.

    Raises:
        DeckError: there is no folder of decks.
    """
    return tuple(sorted({_name(file) for root in roots() for file in root.glob("*/*/problem.yaml")}))


def _name(file: Path) -> str:
    return f"{file.parent.parent.name}/{file.parent.name}"


def _folder(name: str) -> Path:
    if NAME.fullmatch(name):
        for root in roots():
            if (root / name).is_dir():
                return (root / name).resolve()
    known = problem_names()
    if name in known:
        raise DeckError(f"{name!r}: folders of a deck are named in a-z, 0-9 and _; rename it, then run: {LIST_COMMAND}")
    by_last = [other for other in known if other.rpartition("/")[2] == name.rpartition("/")[2]]
    near = by_last or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise DeckError(f"unknown problem {name!r}; {hint}see what there is with: {LIST_COMMAND}")


def _read(folder: Path, next_step: str) -> dict[str, bytes]:
    """Every file of a problem by its path inside the folder, sorted."""
    files: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*"), key=lambda p: p.relative_to(folder).as_posix()):
        inner = path.relative_to(folder)
        if IGNORED in inner.parts:
            continue
        if path.is_symlink():
            raise DeckError(f"{path}: is a symbolic link; a deck holds plain files, copy it in, then run: {next_step}")
        if path.is_file():
            files[inner.as_posix()] = path.read_bytes()
    missing = [name for name in FILES if name not in files]
    if missing:
        raise DeckError(f"{folder}: holds no {', '.join(missing)}; add it, then run: {next_step}")
    return files


def hash_files(files: dict[str, bytes]) -> str:
    """SHA-256 over the sorted (path, content) pairs, each prefixed with its length; hexadecimal."""
    digest = hashlib.sha256()
    for path in sorted(files):
        for part in (path.encode("utf-8"), files[path]):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.hexdigest()


def load(name: str) -> LoadedProblem:
    """Load the problem called `name` (`deck/problem`).

    Raises:
        DeckError: there is none, a file is missing or malformed, or its files disagree.
    """
    folder = _folder(name)
    next_step = f"assay deck lint {name}"
    files = _read(folder, next_step)
    problem = read_problem(files["problem.yaml"], folder / "problem.yaml", next_step)
    if problem.name != name:
        raise DeckError(
            f"{folder / 'problem.yaml'}: calls itself {problem.name!r} but lies in {name!r}; "
            f"rename one, then run: {next_step}"
        )
    try:
        prompt = files["prompt.md"].decode("utf-8")
    except UnicodeDecodeError as error:
        raise DeckError(f"{folder / 'prompt.md'}: not UTF-8; save it as UTF-8, then run: {next_step}") from error
    if not prompt.strip():
        raise DeckError(f"{folder / 'prompt.md'}: is empty; write what an agent is told, then run: {next_step}")
    content_hash = hash_files(files)
    reference = load_reference(files["reference.py"], folder / "reference.py", problem, content_hash, next_step)
    return LoadedProblem(
        problem=problem,
        folder=folder,
        content_hash=content_hash,
        edition=edition(read_frozen(folder.parents[1]), name, problem.version, content_hash),
        prompt=prompt,
        reference=reference,
    )
