"""Intake: a submission becomes a read-only copy with a content hash, or it is refused in one line.

Nothing of it runs here. Opaque bytes are refused, because nobody can read them; links and special files, because
they could point at what is not the submission; sizes are checked before a byte is read.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent

from kernelassay.records import EntryKind, FileEntry, Manifest, Submission
from kernelassay.session import one_line

MAX_FILES = 1000
MAX_FILE_BYTES = 4 << 20
"""Sources of hand-written kernels stay below 1 MB; generated tables get some room."""
MAX_TOTAL_BYTES = 16 << 20
MAX_DEPTH = 16
"""Folders inside folders; a walk holds one open descriptor per level."""
MANIFEST = "submission.yaml"
MAX_MANIFEST_BYTES = 64 << 10
"""A manifest is some ten lines; a YAML parser needs a thousand times the memory of its text."""
MAX_MANIFEST_DEPTH = 8
"""A manifest is three deep."""
IGNORED_FOLDERS = frozenset(
    {"__pycache__", ".git", ".hg", ".svn", ".venv", ".mypy_cache", ".ruff_cache", ".ipynb_checkpoints"}
)
"""Left-overs of tools: neither copied nor hashed, so they cannot matter."""
SINGLE_FILE = "solution.py"
"""Name that a submission given as one file gets."""
NATIVE_SUFFIXES = {".cpp": "c++", ".cc": "c++", ".cxx": "c++", ".c": "cc"}
"""Source suffix → compiler driver."""
FLAG = re.compile(
    r"-O[0-3sg]|-Ofast|-g|-fopenmp|-pthread|-l(m|pthread|dl|rt|atomic)"
    r"|-D[A-Za-z_]\w*(=[\w.+-]*)?|-std=(c|gnu)(\+\+)?\w+|-m[a-z0-9][\w.=+-]*|-f(no-)?[a-z][\w-]*(=[\w-]+)?|-W[a-z][\w-]*(=\d+)?"
)
"""Compiler flags that a manifest may ask for; the build is jailed, so the list only keeps grades reproducible."""
_FLAG_REFUSED = re.compile(r"-fplugin.*|-fdump.*|-fprofile.*|-fsanitize.*|-W[lpa],.*")


class UsageError(Exception):
    """The caller's mistake: exit code 2."""


class Refused(Exception):
    """Intake will not take this submission; the message is the one line that says why."""


@dataclass(frozen=True)
class TakenIn:
    """A submission as it was copied."""

    submission: Submission
    folder: Path
    """The read-only copy."""
    refused: str | None
    """Why intake refused it; None when it may be graded."""


def take_in(source: Path, folder: Path) -> TakenIn:
    """Copy `source` (a folder, or one Python file) to the new folder `folder` and read its manifest.

    Raises:
        UsageError: there is no such path, or it is neither a folder nor a file, or `folder` lies inside it.
    """
    source = _found(source)
    if folder.resolve().is_relative_to(source):
        raise UsageError(
            f"grades would be kept inside the submission {str(source)!r}\nnext: assay grade … --home DIR, outside of it"
        )
    name = os.fsencode(source.name).decode(errors="replace")
    folder.mkdir(parents=True)
    folder.chmod(0o755)  # whatever the caller's umask: the jail's own uid reads it
    files: list[FileEntry] = []
    manifest = Manifest()
    refused = None
    try:
        for path, data in _contents(source):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            files.append(FileEntry(path=path, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data)))
        manifest = _manifest(folder)
        _check_manifest(manifest, {f.path for f in files})
    except Refused as reason:
        refused = str(reason)
    files.sort(key=lambda f: f.path)
    for path, folders, names in os.walk(folder):
        for entry in names:
            Path(path, entry).chmod(0o444)
        for entry in folders:
            Path(path, entry).chmod(0o755)
    submission = Submission(
        name=name, content_hash=content_hash(files), files=tuple(files), entry=manifest.entry, manifest=manifest
    )
    return TakenIn(submission, folder, refused)


def _found(source: Path) -> Path:
    """The real path of what the caller names; a link on the way to it is the caller's own business."""
    try:
        real = source.resolve(strict=True)
        kind = real.stat().st_mode
    except (OSError, ValueError, RuntimeError) as error:  # also: a NUL in the name, a loop of links
        why = getattr(error, "strerror", None) or "no such path"
        raise UsageError(
            f"no submission at {str(source)!r}: {why}\nnext: assay grade PATH, with the folder that holds solution.py"
        ) from error
    if not stat.S_ISDIR(kind) and not stat.S_ISREG(kind):
        raise UsageError(
            f"{str(source)!r} is neither a folder nor a file\nnext: assay grade PATH, with the folder of a submission"
        )
    return real


def content_hash(files: list[FileEntry]) -> str:
    """SHA-256 over the sorted (path, content hash) pairs."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda f: f.path):
        digest.update(f"{file.path}\0{file.sha256}\n".encode())
    return digest.hexdigest()


def _contents(source: Path) -> Iterator[tuple[str, bytes]]:
    if not source.is_dir():
        with_parent = os.open(source.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield SINGLE_FILE, _read(SINGLE_FILE, with_parent, source.name)
        finally:
            os.close(with_parent)
        return
    count = total = 0
    for base, folders, names, dir_fd in os.fwalk(source, follow_symlinks=False, onerror=_unreadable):
        folders[:] = sorted(f for f in folders if f not in IGNORED_FOLDERS)
        relative = PurePosixPath(Path(base).relative_to(source).as_posix())
        if len(relative.parts) >= MAX_DEPTH and folders:
            raise Refused(f"folders more than {MAX_DEPTH} deep")
        count += len(folders) + len(names)
        if count > MAX_FILES:
            raise Refused(f"more than {MAX_FILES} files and folders")
        for folder in folders:
            if _is_link(folder, dir_fd):
                raise Refused(
                    f"{_shown(relative / folder)} is a symbolic link; put the files themselves in the submission"
                )
        for name in sorted(names):
            path = str(relative / name)
            data = _read(path, dir_fd, name)
            total += len(data)
            if total > MAX_TOTAL_BYTES:
                raise Refused(f"more than {MAX_TOTAL_BYTES >> 20} MiB in all")
            yield path, data


def _unreadable(error: OSError) -> None:
    raise Refused(f"folder {_shown(Path(str(error.filename)).name)} cannot be read: {error.strerror}")


def _is_link(name: str, dir_fd: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)
    except OSError:
        return False  # gone since it was listed; reading it says so


def _read(path: str, dir_fd: int, name: str) -> bytes:
    """One regular text file, never through a link; `path` is its name in the submission."""
    if any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) < 0xE000 for c in path):
        raise Refused(f"file name {_shown(path)} holds control characters or bytes that are not UTF-8")
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError as error:
        if _is_link(name, dir_fd):
            raise Refused(f"{_shown(path)} is a symbolic link; put the file itself in the submission") from error
        raise Refused(f"{_shown(path)} cannot be read: {error.strerror}") from error
    with os.fdopen(fd, "rb") as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise Refused(f"{_shown(path)} is no regular file")
        if info.st_size > MAX_FILE_BYTES:
            raise Refused(f"{_shown(path)} has {info.st_size} bytes; a file may have {MAX_FILE_BYTES >> 20} MiB")
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise Refused(f"{_shown(path)} grew while it was read")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Refused(
            f"{_shown(path)} is not UTF-8 text (byte {error.start}); binaries are refused, send sources"
        ) from error
    if "\0" in text:
        raise Refused(f"{_shown(path)} holds NUL bytes; binaries are refused, send sources")
    return data


def _shown(path: object) -> str:
    return ascii(str(path))[:200]


def _manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    if not path.is_file():
        return Manifest()
    try:
        text = path.read_text(encoding="utf-8")
        if len(text) > MAX_MANIFEST_BYTES:
            raise Refused(f"{MANIFEST} has more than {MAX_MANIFEST_BYTES >> 10} KiB")
        _check_events(text)
        return Manifest.from_plain(YAML(typ="safe", pure=True).load(text))
    except YAMLError as error:
        raise Refused(f"{MANIFEST} is not YAML: {one_line(' '.join(str(error).split()))[:300]}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(p) for p in first["loc"]) or "the document"
        raise Refused(f"{MANIFEST}: {one_line(where)[:100]}: {one_line(first['msg'])[:300]}") from error
    except (TypeError, ValueError) as error:
        raise Refused(f"{MANIFEST}: {one_line(str(error))[:300]}") from error


def _check_events(text: str) -> None:
    """Refuse what costs a YAML parser more than its text: aliases, which multiply, and depth, which it recurses into.

    Raises:
        Refused: one of them.
    """
    depth = 0
    for event in YAML(typ="safe", pure=True).parse(text):
        if isinstance(event, AliasEvent):
            raise Refused(f"{MANIFEST} holds a YAML alias (*{one_line(event.anchor)[:40]}); write the value out")
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > MAX_MANIFEST_DEPTH:
            raise Refused(f"{MANIFEST} is nested more than {MAX_MANIFEST_DEPTH} deep")


def _check_manifest(manifest: Manifest, files: set[str]) -> None:
    if manifest.entry is EntryKind.C_ABI:
        if manifest.symbol is None or manifest.build is None:
            raise Refused(f"entry c_abi needs `symbol` and `build` in {MANIFEST}")
        if not re.fullmatch(r"[A-Za-z_]\w*", manifest.symbol):
            raise Refused(f"symbol {_shown(manifest.symbol)} is no C identifier")
    elif manifest.file not in files:
        raise Refused(
            f"no {_shown(manifest.file)}; a submission holds solution.py, or a {MANIFEST} that names its entry"
        )
    if manifest.build is None:
        return
    build = manifest.build
    if len({NATIVE_SUFFIXES.get(Path(s).suffix) for s in build.sources} - {None}) != 1 or any(
        Path(s).suffix not in NATIVE_SUFFIXES for s in build.sources
    ):
        raise Refused("build.sources are all C++ (.cpp, .cc, .cxx) or all C (.c)")
    if missing := sorted(set(build.sources) - files):
        raise Refused(f"build.sources names {_shown(missing[0])}, which is not in the submission")
    for flag in build.flags:
        if not FLAG.fullmatch(flag) or _FLAG_REFUSED.fullmatch(flag):
            raise Refused(f"compiler flag {_shown(flag)} is not allowed; see docs/submissions.md")
    if not re.fullmatch(r"[A-Za-z0-9_]+\.so", build.library) or build.library in files:
        raise Refused(f"build.library {_shown(build.library)} must be a new file name that ends in .so")
