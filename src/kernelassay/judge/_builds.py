"""Libraries that the judge built before, kept under what they were built from.

The rule: a kept library is used only for the same bytes of every file of the submission, the same recipe, compiler and
machine, and only in a development grade; careful grades, regrades and replays build anew. Whatever is damaged or
incomplete counts as not kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from kernelassay.devices import compiler_version, machine_facts
from kernelassay.judge._build import FIXED_FLAGS, STANDARD, TOOL_PATH, Built
from kernelassay.judge._intake import NATIVE_SUFFIXES
from kernelassay.records import Submission
from kernelassay.sandbox import Level

FOLDER = "builds"
MOST_KEPT = 200
"""Builds; the longest unused go first. A library has some 100 KB and 64 MB at most. [estimated]"""
_LIBRARY, _FACTS = "library.so", "build.json"


def build_key(submission: Submission, level: Level) -> str | None:
    """SHA-256 over what decides what a build gives; None where nothing is built.

    `-march=native` makes the machine a part of it, the system's headers the C library's version, and what a compiler
    may read the jail's level.
    """
    plan = submission.manifest.build
    if plan is None:
        return None
    driver = NATIVE_SUFFIXES[Path(plan.sources[0]).suffix]
    compiler = shutil.which(driver, path=TOOL_PATH)
    facts = {
        "submission": submission.content_hash,
        "plan": plan.model_dump(mode="json"),
        "flags": [STANDARD[driver], *FIXED_FLAGS],
        "compiler": [compiler, compiler_version(compiler or driver)],
        "level": level.value,
        "libc": os.confstr("CS_GNU_LIBC_VERSION"),
        "machine": machine_facts().fingerprint,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def kept_build(home: Path, key: str, target: Path) -> Built | None:
    """Copy a kept library to `target`; None where there is none, or not the one that was kept."""
    folder = home / FOLDER / key
    try:
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        data = (folder / _LIBRARY).read_bytes()
        sha256, log = str(facts["sha256"]), str(facts["log"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if hashlib.sha256(data).hexdigest() != sha256:
        return None
    target.write_bytes(data)
    target.chmod(0o555)
    with suppress(OSError):
        os.utime(folder)
    return Built(target, sha256, log, None, kept=True)


def keep_build(home: Path, key: str, built: Built) -> None:
    """Keep a library that was just built. A folder that cannot be written costs the next grade a build, no more."""
    if built.library is None:
        return
    root = home / FOLDER
    with suppress(OSError):
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = Path(tempfile.mkdtemp(prefix=".", dir=root))
        try:
            shutil.copyfile(built.library, fresh / _LIBRARY)
            (fresh / _FACTS).write_text(json.dumps({"sha256": built.sha256, "log": built.log}), encoding="utf-8")
            shutil.rmtree(root / key, ignore_errors=True)
            fresh.rename(root / key)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        _forget_oldest(root)


def _forget_oldest(root: Path) -> None:
    folders = sorted(root.iterdir(), key=lambda folder: folder.stat().st_mtime)
    for folder in folders[:-MOST_KEPT]:
        shutil.rmtree(folder, ignore_errors=True)
