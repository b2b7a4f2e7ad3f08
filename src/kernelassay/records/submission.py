"""A submission: a directory of sources, named by the hash of its content."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from kernelassay.records._base import Record


class EntryKind(StrEnum):
    """How the judge calls into a submission."""

    MODEL = "model"
    """`class Model` or `ModelNew(nn.Module)` in `solution.py`, as KernelBench writes it."""
    CUSTOM_KERNEL = "custom_kernel"
    """`custom_kernel(data)` in `solution.py`, `data` a tuple of the inputs, as GPU MODE writes it."""
    RUN = "run"
    """Destination-passing `run(*inputs, *outputs)` in `solution.py`, as FlashInfer-Bench writes it."""
    C_ABI = "c_abi"
    """`extern "C" int symbol(const void *const *inputs, void *const *outputs, const int64_t *shape)`."""


class Build(Record):
    """Native sources that the judge compiles before the submission is loaded."""

    sources: tuple[str, ...] = Field(min_length=1)
    """Paths inside the submission; a `.cpp` or `.cc` is compiled as C++20, a `.c` as C17."""
    flags: tuple[str, ...] = ("-O3", "-march=native")
    """Compiler flags out of a documented list; others are refused."""
    library: str = "libkernel.so"
    """File name under which the object is found beside the submission's files."""


class Manifest(Record):
    """`submission.yaml`: what a submission says of itself. Optional where `solution.py` tells enough."""

    entry: EntryKind | None = None
    """None: found from what `solution.py` defines."""
    file: str = "solution.py"
    symbol: str | None = None
    """Entry `c_abi`: name of the exported function."""
    build: Build | None = None
    description: str = ""


class FileEntry(Record):
    """One file of a submission."""

    path: str
    """Relative, with forward slashes."""
    sha256: str
    size_bytes: int = Field(ge=0)


class Submission(Record):
    """What was graded."""

    name: str
    """The folder's name, for people; never used as a path."""
    content_hash: str
    """SHA-256 over the sorted (path, sha256) pairs."""
    files: tuple[FileEntry, ...]
    entry: EntryKind | None = None
    """None when intake refused it before an entry was known."""
    manifest: Manifest = Manifest()
