"""Set-up: what it notices, what it repairs, and that a second run costs nothing."""

import fcntl
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETUP = ROOT / "scripts" / "setup.py"


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with all its places moved into a folder of this test."""
    spec = importlib.util.spec_from_file_location("assay_setup", SETUP)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    (tmp_path / "var").mkdir()
    (tmp_path / "requirements.lock").write_text("a==1\n")
    (tmp_path / "pyproject.toml").write_text("")
    places = {
        "ROOT": tmp_path,
        "VENV": venv,
        "VENV_PYTHON": venv / "bin" / "python",
        "STAMP": venv / ".assay-ready",
        "VAR": tmp_path / "var",
        "LOG": tmp_path / "var" / "setup.log",
        "INPUTS": (tmp_path / "requirements.lock", tmp_path / "pyproject.toml"),
    }
    for name, place in places.items():
        monkeypatch.setattr(module, name, place)
    return module


def stamped(setup: ModuleType) -> None:
    setup.VENV_PYTHON.symlink_to(sys.executable)
    setup.STAMP.write_text(json.dumps(setup.fingerprint()))


def distribution(setup: ModuleType, name: str, record: str | None) -> Path:
    folder: Path = setup.VENV / "lib" / "python3.11" / "site-packages"
    (folder / f"{name}-1.0.dist-info").mkdir(parents=True)
    (folder / f"{name}.py").write_text("x = 1\n")
    if record is not None:
        (folder / f"{name}-1.0.dist-info" / "RECORD").write_text(record)
    return folder


def test_a_second_run_is_quick_and_says_so() -> None:
    started = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-I", "-S", str(SETUP)], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    )
    assert time.monotonic() - started < 2
    assert "nothing to do" in ended.stderr
    assert ended.stdout == ""
    assert (ROOT / ".venv" / ".assay-ready").exists()


def test_ready_needs_the_stamp_of_this_lock_in_this_place(setup: ModuleType, tmp_path: Path) -> None:
    assert not setup.ready()
    stamped(setup)
    assert setup.ready()
    setup.STAMP.write_text(json.dumps({**setup.fingerprint(), "root": "/elsewhere"}))
    assert not setup.ready(), "an environment that was moved or copied names the old place in its scripts"
    stamped_again = setup.fingerprint()
    setup.STAMP.write_text(json.dumps(stamped_again))
    (tmp_path / "requirements.lock").write_text("a==2\n")
    assert not setup.ready(), "another lock"
    setup.STAMP.write_text("half a sta")
    assert not setup.ready(), "a torn stamp"


def test_ready_needs_an_interpreter_that_is_there(setup: ModuleType, tmp_path: Path) -> None:
    setup.VENV_PYTHON.symlink_to(tmp_path / "gone")
    setup.STAMP.write_text(json.dumps(setup.fingerprint()))
    assert not setup.ready()


@pytest.mark.parametrize(
    ("record", "kept"),
    [
        ("p.py,sha256=x,6\np-1.0.dist-info/RECORD,,\n", True),
        (None, False),
        ("p.py,sha256=x,6\np/missing.py,sha256=y,3\n", False),
        ("p.py,sha256=x,600\n", False),
        ("p.py,sha256=x,6\n__pycache__/p.cpython-311.pyc,,\n", True),
    ],
    ids=["whole", "killed before its record", "a file is missing", "a file is cut", "bytecode does not count"],
)
def test_half_installed_packages_are_forgotten(setup: ModuleType, record: str | None, *, kept: bool) -> None:
    folder = distribution(setup, "p", record)
    (folder / "~umpy").mkdir()
    setup.sweep_half_installed(setup.Console())
    assert (folder / "p-1.0.dist-info").exists() is kept
    assert not (folder / "~umpy").exists()


def test_torch_is_kept_when_new_enough(setup: ModuleType) -> None:
    folder = distribution(setup, "p", None)
    (folder / "torch-2.9.1+cpu.dist-info").mkdir()
    assert setup.installed_torch() is None
    (folder / "torch-2.9.1+cpu.dist-info").rename(folder / "torch-2.12.0+cu130.dist-info")
    assert setup.installed_torch() == "2.12.0+cu130"


def test_private_folders_are_seen(setup: ModuleType, tmp_path: Path) -> None:
    private = tmp_path / "home"
    private.mkdir(mode=0o700)
    assert setup.private_folder(str(private / "bin" / "python")) is not None
    assert setup.private_folder("/usr/bin/env") is None


def test_a_public_interpreter_goes_before_a_private_one(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"version": [3, 12, 0], "stdlib": "/usr/lib/os.py", "ensurepip": True}
    known = {
        "/usr/bin/python3.11": {**facts, "path": "/usr/bin/python3.11", "private": None, "ensurepip": False},
        "/usr/bin/python3.12": {**facts, "path": "/usr/bin/python3.12", "private": "/root"},
        "/usr/bin/python3": {**facts, "path": "/usr/bin/python3.10", "private": None, "version": [3, 10, 9]},
        "/usr/local/bin/python3.12": {**facts, "path": "/usr/local/bin/python3.12", "private": None},
    }
    monkeypatch.delenv("ASSAY_PYTHON", raising=False)
    monkeypatch.setattr(setup, "probe", known.get)
    monkeypatch.setattr(setup.os, "access", lambda path, _: path in known)
    monkeypatch.setattr(setup.os.path, "realpath", lambda path: path)
    order = [found["path"] for found in setup.interpreters()]
    assert order == ["/usr/local/bin/python3.12", "/usr/bin/python3.11", "/usr/bin/python3.12"]


def test_without_any_right_to_install_the_compiler_is_reported_and_the_run_goes_on(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "compiler", lambda: None)
    monkeypatch.setenv("ASSAY_NO_APT", "1")
    console = setup.Console()
    setup.provide_compiler(setup.Machine(console, 0))
    said = capsys.readouterr().err
    assert "cannot be judged" in said
    assert "apt-get install g++" in said
    assert console.skipped


def test_no_interpreter_ends_with_the_next_command(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "interpreters", list)
    monkeypatch.setenv("ASSAY_NO_APT", "1")
    with pytest.raises(setup.SetupError, match="Next: apt-get install"):
        setup.choose_interpreter(setup.Machine(setup.Console(), 0))


def test_a_failing_command_shows_the_end_of_its_output(setup: ModuleType) -> None:
    with (setup.VAR / "setup.lock").open("w") as lock:
        machine = setup.Machine(setup.Console(), lock.fileno())
        with pytest.raises(setup.SetupError, match=r"thing failed \(exit 3\):\n    broken here"):
            machine.run("thing", "/bin/sh", "-c", "echo broken here >&2; exit 3")
    assert "broken here" in setup.LOG.read_text()


def test_the_lock_outlives_a_killed_set_up(setup: ModuleType) -> None:
    """A command that a killed set-up left running still holds the lock, so no other run works beside it."""
    fd = setup.locked(setup.Console())
    child = subprocess.Popen(["sleep", "60"], pass_fds=(fd,))
    os.close(fd)
    try:
        with (setup.VAR / "setup.lock").open("w") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        child.kill()
        child.wait()
    with (setup.VAR / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
