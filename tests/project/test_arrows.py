"""The contracts name every package of the house, and the worker stays alone."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "kernelassay"
HOUSE = {
    "agents", "artefact", "audit", "board", "cli", "decks", "devices", "fleet", "interop", "judge", "ledger",
    "probes", "records", "sandbox", "source", "timing", "transcripts", "trials", "worker",
}  # fmt: skip


def contracts() -> list[dict[str, object]]:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert isinstance(found, list)
    return found


def imported(file: Path) -> Iterator[str]:
    """Absolute names that a file imports; relative imports stay inside their package and are left out."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module is not None
            yield node.module


def test_every_package_has_its_place() -> None:
    layers = next(c for c in contracts() if c["type"] == "layers")
    assert layers["exhaustive"] is True
    named = set(re.findall(r"\w+", " ".join(str(layer) for layer in layers["layers"])))  # type: ignore[attr-defined]
    assert named | {"worker"} >= HOUSE
    there = {path.name for path in SOURCE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert there <= named | {"worker"}


@pytest.mark.parametrize("file", sorted((SOURCE / "worker").glob("**/*.py")), ids=lambda file: file.name)
def test_worker_imports_only_what_is_beside_a_submission(file: Path) -> None:
    allowed = set(sys.stdlib_module_names)
    if file.name != "wire.py":
        allowed |= {"torch", "numpy"}
    assert {name.split(".")[0] for name in imported(file)} <= allowed


def test_records_know_no_tensor_library() -> None:
    for file in (SOURCE / "records").glob("**/*.py"):
        assert not {name.split(".")[0] for name in imported(file)} & {"torch", "numpy", "scipy"}, file
