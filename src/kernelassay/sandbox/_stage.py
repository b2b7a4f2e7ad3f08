"""The folder that a jail stands on, and the record by which a later command knows whether its owner lives.

A stage is held by a lock on its `lock` file, shared by judge and warden and released by the kernel when both are
dead: no pid can be mistaken for another. Only stages of the caller's own uid are ever trusted.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelassay.sandbox._model import SandboxError
from kernelassay.sandbox._warden import procs
from kernelassay.sandbox._warden.cgroup import Cgroups

PREFIX = "kernelassay-jail-"
YOUNG_S = 60.0
"""A stage without a readable record is left alone this long: its judge may be about to write it."""


@dataclass(frozen=True)
class Stage:
    """A stage held by this process."""

    folder: Path
    lock: int

    @property
    def name(self) -> str:
        """Unguessable; also the name of the control groups."""
        return self.folder.name

    @property
    def scratch(self) -> Path:
        """The only writable folder of the jail."""
        return self.folder / "scratch"

    def record(self, cgroups: Cgroups, uid: int | None) -> None:
        """Write who owns it and what must be removed with it."""
        me = os.getpid()
        facts = {"pid": me, "started": procs.start_time(me), "uid": uid, "cgroups": cgroups.to_plain()}
        _write(self.folder / "owner.json", json.dumps(facts), 0o600)

    def discard(self) -> None:
        """Remove it without a jail having run."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self.lock)


def create(uid: int | None) -> Stage:
    """Make a stage: 0711, so that the jail's uid can pass through, but nobody else can list it.

    Raises:
        SandboxError: no temporary folder that `uid` can reach.
    """
    parent = _parent(uid)
    folder = parent / f"{PREFIX}{secrets.token_hex(12)}"
    folder.mkdir(mode=0o700)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    stage = Stage(folder, lock)
    for name, mode in (("scratch", 0o700), ("rooms", 0o711), ("site", 0o755), ("under", 0o711)):
        (folder / name).mkdir()
        (folder / name).chmod(mode)
    _write(folder / "passwd", "assay:x:1000:1000::/assay/scratch:/bin/sh\n", 0o644)
    if uid is not None:
        os.chown(stage.scratch, uid, uid)
    folder.chmod(0o711)
    return stage


def _write(path: Path, text: str, mode: int) -> None:
    path.write_text(text)
    path.chmod(mode)


def parents() -> tuple[Path, ...]:
    """Folders in which stages may lie, best first."""
    folders = (tempfile.gettempdir(), "/tmp", "/var/tmp")
    return tuple(dict.fromkeys(Path(folder).resolve() for folder in folders if os.path.isdir(folder)))


def _parent(uid: int | None) -> Path:
    for folder in parents():
        if os.access(folder, os.W_OK | os.X_OK) and (uid is None or passable(folder / "stage")):
            return folder
    raise SandboxError(
        f"sandbox: no temporary folder that an unprivileged uid can pass through among "
        f"{', '.join(map(str, parents()))}; set TMPDIR to one whose parents are all mode o+x, then run `assay doctor`"
    )


def reachable(path: Path) -> bool:
    """Whether any uid can pass through every folder above `path`, and read `path` itself."""
    try:
        own = os.stat(path).st_mode
        wanted = 0o005 if stat.S_ISDIR(own) else 0o004
        return own & wanted == wanted and passable(path)
    except OSError:
        return False


def passable(path: Path) -> bool:
    """Whether any uid can pass through every folder above `path` (a real path)."""
    return all(os.stat(folder).st_mode & 0o001 for folder in path.parents)


@dataclass(frozen=True)
class Dead:
    """A stage whose judge and warden are both dead; the lock is held by us now."""

    folder: Path
    lock: int
    cgroups: Cgroups
    uid: int | None


def dead() -> list[Dead]:
    """Every stage of this uid whose owners are gone."""
    found = []
    for parent in parents():
        for folder in parent.glob(f"{PREFIX}*"):
            with suppress(OSError):
                facts = os.lstat(folder)
                if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o022:
                    found += _if_dead(folder, facts)
    return found


def _if_dead(folder: Path, facts: os.stat_result) -> list[Dead]:
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        if time.time() - facts.st_mtime > YOUNG_S:  # died between two system calls: nothing ran in it
            shutil.rmtree(folder, ignore_errors=True)
        return []
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return []
    record: dict[str, Any] = {"cgroups": Cgroups().to_plain(), "uid": None}
    with suppress(OSError, ValueError):
        record = json.loads((folder / "owner.json").read_text())
    return [Dead(folder, lock, Cgroups(**record["cgroups"]), record["uid"])]
