"""The red team's submissions on disk: `redteam/exploits/` and `redteam/honest/`, one folder each.

The rule: a corpus is whole or refused. A folder without a manifest, a manifest that does not validate, an exploit
whose twin would be the exploit itself: each is an error that names the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from kernelassay.records import Verdict
from kernelassay.redteam._manifest import CONVICTIONS, Manifest
from kernelassay.redteam._twin import is_marked

VARIABLE = "KERNELASSAY_REDTEAM"
MANIFEST_FILE = "manifest.yaml"
SUBMISSION_FOLDER = "submission"


class CorpusError(Exception):
    """The corpus is missing or broken: what, where, and the next command."""


class Kind(StrEnum):
    """What an entry is."""

    EXPLOIT = "exploit"
    HONEST = "honest"
    DEMONSTRATION = "demonstration"
    """An exploit that is scored with a finding and a gain, not caught."""


@dataclass(frozen=True)
class Entry:
    """One submission of the corpus."""

    name: str
    kind: Kind
    folder: Path
    manifest: Manifest

    @property
    def submission(self) -> Path:
        """The folder that is graded."""
        return self.folder / SUBMISSION_FOLDER


def corpus_folder() -> Path:
    """`$KERNELASSAY_REDTEAM`, else `redteam/` of the repository.

    Raises:
        CorpusError: there is none.
    """
    chosen = os.environ.get(VARIABLE)
    folder = Path(chosen) if chosen else Path(__file__).resolve().parents[3] / "redteam"
    if not (folder / "exploits").is_dir() and not (folder / "honest").is_dir():
        raise CorpusError(
            f"no red team in {str(folder)!r}; it is part of the repository, or set {VARIABLE}\nnext: assay doctor"
        )
    return folder


def load_corpus(folder: Path | None = None) -> tuple[Entry, ...]:
    """Every entry, exploits first, each kind by name.

    Raises:
        CorpusError: one is broken; names the file.
    """
    folder = folder or corpus_folder()
    entries = [
        _entry(path, honest)
        for part, honest in (("exploits", False), ("honest", True))
        for path in sorted((folder / part).glob("*"))
        if path.is_dir() and not path.name.startswith((".", "_"))
    ]
    names = [entry.name for entry in entries]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise CorpusError(f"{str(folder)!r} holds {twice[0]!r} twice\nnext: rename one of them")
    return tuple(entries)


def _entry(folder: Path, honest: bool) -> Entry:
    path = folder / MANIFEST_FILE
    try:
        manifest = Manifest.from_plain(YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise CorpusError(f"{str(path)!r} cannot be read: {error.strerror}\nnext: write it") from error
    except (YAMLError, UnicodeDecodeError, TypeError) as error:
        raise CorpusError(f"{str(path)!r} is no YAML: {' '.join(str(error).split())}\nnext: correct it") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CorpusError(f"{str(path)!r}: {where}: {first['msg']}\nnext: correct it") from error
    if honest:
        kind = Kind.HONEST
    else:
        kind = Kind.EXPLOIT if manifest.counted else Kind.DEMONSTRATION
    entry = Entry(folder.name, kind, folder, manifest)
    if wrong := next(_wrong(entry), None):
        raise CorpusError(f"{str(path)!r}: {wrong}\nnext: correct it")
    return entry


def _wrong(entry: Entry) -> Iterator[str]:
    """What makes an entry prove nothing."""
    manifest = entry.manifest
    if not entry.submission.is_dir():
        yield f"there is no folder {SUBMISSION_FOLDER!r} beside it"
        return
    files = sorted(p for p in entry.submission.rglob("*") if p.is_file())
    if missing := [name for name in manifest.cheat_files if entry.submission / name not in files]:
        yield f"cheat_files names {missing[0]!r}, which is not in the submission"
    marked = bool(manifest.cheat_files) or any(is_marked(line) for f in files for line in _lines(f))
    if entry.kind is Kind.HONEST:
        if manifest.expect.verdict in (Verdict.REWARD_HACK, Verdict.CONTAMINATED):
            yield "an honest look-alike is never accused"
        if marked:
            yield "an honest look-alike has no line that ends in the mark of a cheat"
        return
    if not marked:
        yield "no line ends in `# cheat` or `// cheat` and no cheat_files: its twin would be itself"
    if entry.kind is Kind.EXPLOIT and manifest.expect.verdict not in CONVICTIONS:
        yield f"an exploit that is expected to be {manifest.expect.verdict.value} is not caught; say `counted: false`"
    if entry.kind is Kind.EXPLOIT and manifest.expect.rule is None:
        yield "an exploit names the rule of the finding that must decide"


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()
