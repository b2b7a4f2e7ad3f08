"""Versions that stand still: which content a version of a problem had when it was frozen.

The rule: a version names one content for ever. Whoever changes a file of a frozen problem makes another version; until
then each grade of it says that the deck was edited.
"""

from __future__ import annotations

import json
from pathlib import Path

from kernelassay.decks._error import DeckError
from kernelassay.records import Edition

FROZEN_FILE = "frozen.json"
"""In a folder of decks: problem → version → SHA-256 of its files."""

Frozen = dict[str, dict[str, str]]


def read_frozen(root: Path) -> Frozen:
    """What is frozen in a folder of decks; nothing where the file is missing.

    Raises:
        DeckError: the file is damaged.
    """
    path = root / FROZEN_FILE
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DeckError(f"{path}: cannot be read: {error}; restore it, then run: assay deck freeze --all") from error
    whole = isinstance(told, dict) and all(
        isinstance(versions, dict) and all(isinstance(digest, str) for digest in versions.values())
        for versions in told.values()
    )
    if not whole:
        raise DeckError(f"{path}: holds no versions; restore it, then run: assay deck freeze --all")
    return dict(told)


def edition(frozen: Frozen, name: str, version: int, content_hash: str) -> Edition:
    """How a problem as it is on disk stands to its frozen version."""
    digest = frozen.get(name, {}).get(str(version))
    if digest is None:
        return Edition.UNFROZEN
    return Edition.FROZEN if digest == content_hash else Edition.EDITED


def freeze(root: Path, name: str, version: int, content_hash: str) -> bool:
    """Freeze a version; False if it is frozen with this content already.

    Raises:
        DeckError: the version is frozen with another content, or the file cannot be written.
    """
    frozen = read_frozen(root)
    before = edition(frozen, name, version, content_hash)
    if before is Edition.EDITED:
        raise DeckError(
            f"{name}: version {version} is frozen with another content; raise `version` in problem.yaml, "
            f"then run: assay deck freeze {name}"
        )
    if before is Edition.FROZEN:
        return False
    frozen.setdefault(name, {})[str(version)] = content_hash
    path = root / FROZEN_FILE
    fresh = path.with_suffix(".tmp")
    try:
        fresh.write_text(json.dumps(frozen, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise DeckError(f"{path}: {error.strerror}; make it writable, then run: assay deck freeze {name}") from error
    return True
