"""What of the host a jail may see: interpreter, libraries, torch's closure, compilers. An explicit list, nothing else.

The same list becomes bubblewrap's read-only binds and Landlock's readable files.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

SITE_ROOTS = ("torch", "numpy", "triton", "ninja")
"""Distributions that a submission may import, each with what it requires; those not installed are left out."""

_COMPILERS = ("gcc", "g++", "cc", "c++", "cpp", "clang", "clang++", "as", "ld", "ld.bfd", "ld.gold", "ld.lld", "lld")
_BINUTILS = ("ar", "nm", "ranlib", "objcopy", "objdump", "readelf", "strip", "c++filt", "gcc-ar", "gcc-nm", "ninja")
_SHELL = ("sh", "dash", "bash", "env", "cat", "cp", "mv", "rm", "mkdir", "ls", "ln", "true", "false", "echo", "uname")
_TOOL_PATH = "/usr/bin:/bin:/usr/local/bin"
_TOOL_FOLDERS = (
    "/usr/include",
    "/usr/lib/gcc",
    "/usr/libexec/gcc",
    "/usr/lib/bfd-plugins",
    "/usr/lib/clang",
    "/usr/local/include",
    "/usr/local/lib/gcc",
    "/usr/local/libexec/gcc",
)
_FOREIGN_PACKAGES = ("site-packages", "dist-packages")
"""Folders of a standard library that hold what somebody installed: hidden in a jail."""


_DRIVER = "libcuda.so.1"
_DRIVER_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib", "/run/opengl-driver/lib")
"""Where containers and distributions put the driver's libraries when not among the system's own."""
CUDA_HOME = Path("/usr/local/cuda")
GPU_FACTS = ("/sys/bus", "/sys/devices", "/sys/module")
"""What the driver reads about PCI devices, memory nodes and itself."""


@dataclass(frozen=True)
class Piece:
    """One thing of the host that the jail sees read-only."""

    host: Path
    """Where it really is, no symlink in it."""
    jail: str
    """Where the jail sees it (with Landlock, which renames nothing: `host`)."""


@dataclass(frozen=True)
class Pieces:
    """Everything of the host that one kind of jail sees, rooms apart."""

    pieces: tuple[Piece, ...]
    links: tuple[tuple[str, str], ...]
    """(path in the jail, target): usr-merge, alternatives, versioned names."""
    hidden: tuple[str, ...]
    """Folders below a piece that the jail sees empty."""


@cache
def python() -> Path:
    """The base interpreter behind this environment, real path."""
    return Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()


@cache
def site() -> tuple[tuple[str, Path], ...]:
    """(name, path) of every top-level entry of the closure of SITE_ROOTS over installed distributions."""
    entries: dict[str, Path] = {}
    seen: set[str] = set()
    queue = list(SITE_ROOTS)
    while queue:
        name = re.sub(r"[-_.]+", "-", queue.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        queue += [_name(text) for text in found.requires or () if "extra" not in text.partition(";")[2]]
        for top in _top_level(found):
            entries.setdefault(top, Path(str(found.locate_file(top))))
    real = {name: path.resolve() for name, path in entries.items()}
    return tuple(sorted((name, path) for name, path in real.items() if path.exists()))


def _top_level(found: metadata.Distribution) -> set[str]:
    """First path component of every installed file. (`Distribution.files` takes a second for torch.)"""
    record = found.read_text("RECORD") or ""
    tops = {line.split(",", 1)[0].strip('"').split("/", 1)[0] for line in record.splitlines() if line}
    return {top for top in tops if top not in ("", "..", "__pycache__") and not top.endswith(".pth")}


def _name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return match.group() if match else ""


@cache
def base() -> Pieces:
    """The C library, the interpreter and its standard library."""
    builder = _Builder()
    triplet = sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu"
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink(f"/{name}"):  # merged /usr
            builder.link(f"/{name}", os.readlink(f"/{name}"))
    folders = (f"/usr/lib/{triplet}", "/usr/lib64", f"/lib/{triplet}", "/lib64", "/usr/lib/locale/C.utf8")
    for folder in folders:
        if os.path.isdir(folder) and not os.path.islink(f"/{Path(folder).parts[1]}"):
            builder.add(folder)
    builder.add("/etc/ld.so.cache")
    builder.tool(python())
    prefix = Path(sys.base_prefix).resolve()
    stdlib = Path(os.__file__).resolve().parent  # sysconfig would name this environment's own folders too
    if prefix in (Path("/usr"), Path("/usr/local")):
        builder.add(stdlib)
        builder.add(str(sysconfig.get_config_var("DESTSHARED")))
        for library in sorted((prefix / "lib").glob("libpython3*.so*")):
            builder.tool(library)
    else:  # an interpreter with a tree of its own may keep its libraries anywhere in it
        builder.add(prefix / "lib")
    for name in _FOREIGN_PACKAGES:
        if (stdlib / name).is_dir():
            builder.hidden.append(str(stdlib / name))
    return builder.done()


@cache
def tools() -> Pieces:
    """Compilers, binutils, a small shell, headers."""
    builder = _Builder()
    for name in (*_COMPILERS, *_BINUTILS, *_SHELL):
        path = shutil.which(name, path=_TOOL_PATH)
        if path is not None:
            builder.tool(Path(path))
    for folder in (*_TOOL_FOLDERS, *map(str, sorted(Path("/usr/lib").glob("llvm-*")))):
        builder.add(folder)
    include = Path(str(sysconfig.get_config_var("INCLUDEPY")))
    if not include.is_relative_to("/usr/include"):
        builder.add(include)
    return builder.done()


@cache
def gpu() -> Pieces:
    """The driver's libraries where they lie apart, and CUDA's tool chain."""
    builder = _Builder()
    for folder in driver_folders():
        builder.add(folder)
    if CUDA_HOME.is_dir():
        builder.tool(CUDA_HOME)
    for path in GPU_FACTS:
        builder.add(path)
    return builder.done()


@cache
def driver_folders() -> tuple[str, ...]:
    """Folders with the driver's library that are not among the system's own, in the order of the search path."""
    named = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    return tuple(dict.fromkeys(folder for folder in (*named, *_DRIVER_FOLDERS) if (Path(folder) / _DRIVER).exists()))


def gpu_environment() -> dict[str, str]:
    """What a program in a jail with a GPU finds in its environment: libraries, tool chain, private caches.

    PATH has CUDA's programs first where there are any; caches lie in the scratch folder.
    """
    found = {"CUDA_CACHE_PATH": "{scratch}/cuda", "TRITON_CACHE_DIR": "{scratch}/triton"}
    if driver_folders():
        found["LD_LIBRARY_PATH"] = ":".join(driver_folders())
    if CUDA_HOME.is_dir():
        found |= {"CUDA_HOME": str(CUDA_HOME), "PATH": f"{CUDA_HOME}/bin:{_TOOL_PATH}"}
    return found


def gpu_nodes(minor: int | None, folder: Path = Path("/dev")) -> tuple[str, ...]:
    """Device nodes of NVIDIA's driver, of its GPUs only number `minor` unless that is None."""
    nodes = [node for node in sorted(folder.glob("nvidia*")) if node.is_char_device()]
    others = [node for node in nodes if re.fullmatch(r"nvidia\d+", node.name) and node.name != f"nvidia{minor}"]
    return tuple(str(node) for node in nodes if minor is None or node not in others)


class _Builder:
    def __init__(self) -> None:
        self.pieces: dict[str, Piece] = {}
        self.links: dict[str, str] = {}
        self.hidden: list[str] = []

    def add(self, path: str | Path) -> None:
        """A file or folder under its own name; missing ones are left out."""
        if os.path.exists(path) and not any(Path(path).is_relative_to(known) for known in self.pieces):
            self.pieces.setdefault(str(path), Piece(Path(path).resolve(), str(path)))

    def link(self, path: str, target: str) -> None:
        self.links.setdefault(path, target)

    def tool(self, path: Path) -> None:
        """A program under its own name, with every symlink on the way to the real file."""
        path = Path(os.path.realpath(path.parent)) / path.name
        while path.is_symlink():
            target = os.readlink(path)
            self.link(str(path), target)
            path = Path(os.path.normpath(path.parent / target))
            path = Path(os.path.realpath(path.parent)) / path.name
        self.add(path)

    def done(self) -> Pieces:
        inside = tuple(self.pieces)
        links = tuple(
            (path, target)
            for path, target in self.links.items()
            if not any(Path(path).is_relative_to(piece) for piece in inside)
        )
        return Pieces(tuple(self.pieces.values()), links, tuple(self.hidden))
