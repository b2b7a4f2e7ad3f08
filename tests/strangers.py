"""Running a command of this checkout as another user, wherever the checkout lies."""

from __future__ import annotations

import os
import stat
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_PASSABLE = """
set -e
held=$(mktemp -d)
mount --bind "$1" "$held"
mount -t tmpfs -o mode=755 tmpfs "$2"
mkdir -p "$1"
mount --move "$held" "$1"
rmdir "$held"
shift 2
exec "$@"
"""
"""Argument 1 is the checkout, 2 the uppermost folder above it that is closed to others, the rest a command."""


def as_user(uid: int) -> list[str]:
    """The beginning of a command line that runs the rest as `uid`; only root may.

    A checkout below a folder that is closed to others (`mktemp -d` makes such) is shown to the command at its own path
    in a mount namespace of its own: nothing outside changes.
    """
    drop = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    closed = [folder for folder in reversed(ROOT.parents) if not folder.stat().st_mode & stat.S_IXOTH]
    if not closed:
        return drop
    show = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _PASSABLE, "sh"]
    return [*show, os.fspath(ROOT), os.fspath(closed[0]), *drop]
