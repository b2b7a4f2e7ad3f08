"""The environment block and the tool chain, each read from a machine that may lack everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kernelassay import __version__
from kernelassay.devices import _toolchain, environment, toolchain
from kernelassay.devices._environment import judge_commit


def test_environment_is_that_of_this_process() -> None:
    found = environment()
    assert found.kernelassay == __version__
    assert found.python == sys.version.split()[0]
    assert found.torch.startswith("2.") and found.numpy[0].isdigit()
    assert found.platform.startswith("Linux ")


def test_environment_does_not_import_torch() -> None:
    code = "import sys; from kernelassay.devices import environment; environment(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def _git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


def test_commit_of_a_checkout_and_its_dirt(tmp_path: Path) -> None:
    package = tmp_path / "src" / "kernelassay"
    package.mkdir(parents=True)
    assert judge_commit(package) is None
    (package / "file.py").write_text("one\n")
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", "-A")
    _git(tmp_path, "commit", "-qm", "one")
    head = _git(tmp_path, "rev-parse", "HEAD")
    assert judge_commit(package) == head
    (package / "file.py").write_text("two\n")
    assert judge_commit(package) == f"{head}-dirty"


def test_installed_package_has_no_commit(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert judge_commit(tmp_path / "lib" / "kernelassay") is None


def test_compilers_are_tried() -> None:
    found = toolchain()
    assert found.cxx.works == (found.cxx.problem == "")
    assert found.cxx.works, found.cxx.problem


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (None, "c++ is not on PATH"),
        ("echo fake 1.0; exit 0", "cannot build a shared object: fake 1.0"),
        ("echo 'x.cpp:1: fatal error: no headers' >&2; exit 1", "fatal error: no headers"),
    ],
)
def test_compiler_that_builds_nothing_does_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, problem: str
) -> None:
    if script is not None:
        driver = tmp_path / "c++"
        driver.write_text(f"#!/bin/sh\n{script}\n")
        driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    _toolchain.compiler_version.cache_clear()
    _toolchain.toolchain.cache_clear()
    try:
        found = toolchain().cxx
    finally:
        _toolchain.compiler_version.cache_clear()
        _toolchain.toolchain.cache_clear()
    assert not found.works
    assert problem in found.problem
