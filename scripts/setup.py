#!/usr/bin/env python3
"""Set up what this machine lacks: a compiler, the environment in .venv, torch, the package.

The rule: every run leaves either a complete environment with a stamp, or no stamp and the next command to
type. The stamp names what it was built from, so a second run costs milliseconds, a changed lock file is
noticed, and a run that was killed at any moment is repaired by the next one. Runs at the same time queue on
one lock. Only the standard library, and syntax that an older python3 can read, so that the message about its
age reaches the reader.

All progress goes to standard error: `./assay … --json` owns standard output.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import hashlib
import json
import os
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".assay-ready"
VAR = ROOT / "var"
LOG = VAR / "setup.log"
INPUTS = (ROOT / "requirements.lock", ROOT / "pyproject.toml")

OLDEST_PYTHON = (3, 11)
TESTED_PYTHONS = ((3, 11), (3, 12))
TORCH = "2.13.0"
OLDEST_TORCH = (2, 11)  # the lower bound in pyproject.toml
OLDEST_FOREIGN_PIP = (22, 3)  # the first pip that knows `--python`
HEARTBEAT_S = 10.0  # without a terminal: a line this often while something long runs
COMPILERS = ("c++", "g++", "clang++")

_PROBE = """
import importlib.util, json, os, sys
print(json.dumps({
    "path": sys.executable if sys.prefix == sys.base_prefix else sys._base_executable,
    "version": list(sys.version_info[:3]), "stdlib": os.__file__,
    "ensurepip": importlib.util.find_spec("ensurepip") is not None}))
"""


class SetupError(Exception):
    """The set-up cannot go on; the message ends with the next command."""


# ── Saying what happens ──────────────────────────────────────────────────────────────────────────


class Console:
    """Progress on standard error: a moving line on a terminal, plain lines elsewhere or under NO_COLOR."""

    def __init__(self) -> None:
        self.moving = sys.stderr.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self.did: list[str] = []
        self.skipped: list[str] = []

    def line(self, text: str) -> None:
        """One permanent line."""
        sys.stderr.write(("\r\x1b[K" if self.moving else "") + text + "\n")
        sys.stderr.flush()

    def passing(self, text: str) -> None:
        """A line that the next one replaces; only on a terminal."""
        width = shutil.get_terminal_size().columns
        sys.stderr.write("\r\x1b[K" + text[: width - 1])
        sys.stderr.flush()


class Machine:
    """Runs commands, keeps their output in var/setup.log and shows that they are alive."""

    def __init__(self, console: Console, lock_fd: int) -> None:
        self.console = console
        self.package_lists_fresh = False
        self._lock_fd = lock_fd

    def run(self, what: str, *command: str | Path, guarded: bool = True) -> None:
        """Run `command`; what it prints goes to the log.

        `guarded`: the command inherits the lock, so that it is still held if this process is killed and the
        command lives on.

        Raises:
            SetupError: it failed; with the end of its output.
        """
        started = time.monotonic()
        tail: list[str] = []
        with LOG.open("ab") as log:
            log.write(f"$ {' '.join(map(str, command))}\n".encode())
            child = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(self._lock_fd,) if guarded else (),
                cwd=ROOT,
            )
            try:
                self._follow(child, what, started, log, tail)
            finally:
                if child.poll() is None:
                    child.terminate()
        if child.wait() != 0:
            end = "\n".join("    " + line for line in tail[-12:])
            raise SetupError(f"{what} failed (exit {child.returncode}):\n{end}\nThe whole output: {LOG}")

    def _follow(self, child: Any, what: str, started: float, log: Any, tail: list[str]) -> None:
        ears = selectors.DefaultSelector()
        ears.register(child.stdout, selectors.EVENT_READ)
        rest = b""
        said = started
        while True:
            if ears.select(timeout=0.5):
                chunk = os.read(child.stdout.fileno(), 65536)
                if not chunk:
                    return
                log.write(chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                tail.extend(text for text in (line.decode(errors="replace").strip() for line in lines) if text)
                del tail[:-40]
            now = time.monotonic()
            news = f"      {now - started:4.0f} s  {what}: {tail[-1][:90] if tail else 'started'}"
            if self.console.moving:
                self.console.passing(news)
            elif now - said >= HEARTBEAT_S:
                self.console.line(news)
                said = now


# ── What there is ────────────────────────────────────────────────────────────────────────────────


def fingerprint() -> dict[str, str]:
    """What a complete environment was built from."""
    digest = hashlib.sha256(TORCH.encode())
    for path in INPUTS:
        digest.update(path.read_bytes())
    return {"inputs": digest.hexdigest(), "root": str(ROOT)}


def ready() -> bool:
    """Whether the environment is complete, of this lock file, and in this place."""
    try:
        return bool(json.loads(STAMP.read_text()) == fingerprint()) and VENV_PYTHON.exists()
    except (OSError, ValueError):
        return False


def compiler() -> str | None:
    """The first C++ compiler on the path."""
    return next((found for found in map(shutil.which, COMPILERS) if found), None)


def private_folder(path: str) -> str | None:
    """The first folder above `path` that other users may not enter; None where all may."""
    for folder in reversed(Path(os.path.realpath(path)).parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            return str(folder)
    return None


def probe(python: str) -> dict[str, Any] | None:
    """Version, standard library and venv support of an interpreter; None where it does not run."""
    try:
        answer = subprocess.run(
            [python, "-I", "-c", _PROBE], capture_output=True, timeout=20, check=True, stdin=subprocess.DEVNULL
        )
        facts: dict[str, Any] = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    facts["private"] = private_folder(facts["path"]) or private_folder(facts["stdlib"])
    return facts


def interpreters() -> list[dict[str, Any]]:
    """Usable interpreters, the best first: readable by other users, able to make environments, then by place."""
    named = os.environ.get("ASSAY_PYTHON")
    if named:
        places = [named]
    else:
        names = ("python3.11", "python3.12", "python3")
        places = [f"{folder}/{name}" for folder in ("/usr/bin", "/usr/local/bin") for name in names]
        places += [found for found in map(shutil.which, names) if found]
    found: dict[str, dict[str, Any]] = {}
    for place in places:
        facts = probe(place) if os.access(place, os.X_OK) else None
        if facts and tuple(facts["version"]) >= OLDEST_PYTHON and not facts["path"].startswith(f"{VENV}/"):
            found.setdefault(os.path.realpath(facts["path"]), facts)
    return sorted(found.values(), key=lambda facts: (facts["private"] is not None, not facts["ensurepip"]))


def apt_prefix() -> list[str] | None:
    """How to call apt-get here: directly as root, by passwordless sudo; None where neither may."""
    if os.environ.get("ASSAY_NO_APT") or not shutil.which("apt-get"):
        return None
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo"):
        asked = subprocess.run(["sudo", "-n", "true"], capture_output=True, stdin=subprocess.DEVNULL, check=False)
        if asked.returncode == 0:
            return ["sudo", "-n"]
    return None


# ── The steps ────────────────────────────────────────────────────────────────────────────────────


def install_packages(machine: Machine, prefix: list[str], *packages: str) -> None:
    """Install Debian packages without recommendations or questions.

    Raises:
        SetupError: apt-get failed.
    """
    apt = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", "DPkg::Lock::Timeout=300", "-y"]
    machine.console.line(f"      apt-get install {' '.join(packages)}")
    if not machine.package_lists_fresh:
        machine.run("apt-get update", *apt, "update", guarded=False)
        machine.package_lists_fresh = True
    machine.run("apt-get install", *apt, "install", "--no-install-recommends", *packages, guarded=False)
    machine.console.did.append(f"installed {', '.join(packages)} with apt-get")


def provide_compiler(machine: Machine) -> None:
    """A C++ compiler, where it may be installed; without one, say what cannot be judged and go on."""
    console = machine.console
    found = compiler()
    if found:
        console.line(f"[1/5] Compiler: {found}")
        console.skipped.append("apt-get (compiler present)")
        return
    console.line("[1/5] Compiler: none on the path")
    prefix = apt_prefix()
    if prefix is None:
        console.skipped.append("the compiler (no right to install packages)")
        console.line("      Submissions with C or C++ sources cannot be judged here until an administrator types:")
        console.line("      apt-get install g++")
        return
    try:
        install_packages(machine, prefix, "g++")
    except SetupError as error:
        console.line(f"      {error}")
        console.line("      Going on without: submissions with C or C++ sources cannot be judged. To retry: make setup")
        console.skipped.append("the compiler (apt-get failed)")


def choose_interpreter(machine: Machine) -> dict[str, Any]:
    """The interpreter to build from, installed first where it is missing and may be.

    Raises:
        SetupError: there is none.
    """
    found = interpreters()
    prefix = apt_prefix()
    chosen = found[0] if found else None
    if chosen and chosen["private"] is None and chosen["ensurepip"]:
        return chosen
    if os.environ.get("ASSAY_PYTHON") is None and prefix is not None:
        wanted = ["python3.12-venv", "python3.11-venv", "python3-venv"]
        if chosen and chosen["private"] is None:
            wanted = ["python{}.{}-venv".format(*chosen["version"])]
        for package in wanted:
            try:
                install_packages(machine, prefix, package)
            except SetupError as error:
                machine.console.line(f"      {str(error).splitlines()[0]}")
            else:
                break
        found = interpreters()
        chosen = found[0] if found else None
    if chosen is None:
        raise SetupError(
            f"Kernel Assay needs Python {'.'.join(map(str, OLDEST_PYTHON))} or newer and found none"
            f" (this is {sys.version.split()[0]}). Next: apt-get install python3.11-venv, or name one:"
            " ASSAY_PYTHON=/path/to/python3.11 make setup"
        )
    return chosen


def provide_environment(machine: Machine) -> list[str]:
    """An environment in .venv, kept where it is sound; returns how to call pip for it."""
    console = machine.console
    kept = _sound_environment()
    if kept:
        console.line(f"[2/5] Environment: .venv kept (Python {kept})")
        console.skipped.append("the environment (present)")
        sweep_half_installed(console)
        return [str(VENV_PYTHON), "-I", "-m", "pip"]
    chosen = choose_interpreter(machine)
    version = ".".join(map(str, chosen["version"]))
    console.line(f"[2/5] Environment: .venv from {chosen['path']} (Python {version})")
    if chosen["private"]:
        console.line(f"      It lies below {chosen['private']}, which other users may not enter: started by root,")
        console.line("      the jail cannot use it and falls back a level. Better: apt-get install python3-venv")
    else:
        console.line("      chosen because every user may read it, the jail's too")
    if tuple(chosen["version"][:2]) not in TESTED_PYTHONS:
        console.line("      This version is not among the tested ones (3.11, 3.12).")
    discard(VENV)
    if chosen["ensurepip"]:
        machine.run("venv", chosen["path"], "-I", "-m", "venv", VENV)
        pip = [str(VENV_PYTHON), "-I", "-m", "pip"]
    else:
        _need_foreign_pip(chosen)
        machine.run("venv", chosen["path"], "-I", "-m", "venv", "--without-pip", VENV)
        pip = [chosen["path"], "-m", "pip", "--python", str(VENV_PYTHON)]
        machine.run("pip", *pip, "install", "--progress-bar=off", "pip")
        pip = [str(VENV_PYTHON), "-I", "-m", "pip"]
    console.did.append(f"built .venv from {chosen['path']}")
    return pip


def _sound_environment() -> str | None:
    """The version of a usable .venv; None where it must be built anew."""
    try:
        lines = (VENV / "pyvenv.cfg").read_text().splitlines()
    except OSError:
        return None
    config = dict(line.split(" = ", 1) for line in lines if " = " in line)
    if not config.get("command", "").endswith(str(VENV)):  # moved or copied: its scripts name the old place
        return None
    facts = probe(str(VENV_PYTHON))
    if facts is None or tuple(facts["version"]) < OLDEST_PYTHON:
        return None
    if facts["private"] and any(other["private"] is None for other in interpreters()):
        return None
    pips = list(site_packages().glob("pip-*.dist-info"))
    if len(pips) != 1 or not complete(pips[0]):
        return None
    return ".".join(map(str, facts["version"]))


def _need_foreign_pip(chosen: dict[str, Any]) -> None:
    asked = subprocess.run(
        [chosen["path"], "-m", "pip", "--version"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    words = asked.stdout.split()
    if len(words) > 1 and tuple(int(part) for part in words[1].split(".")[:2] if part.isdigit()) >= OLDEST_FOREIGN_PIP:
        return
    raise SetupError(
        f"{chosen['path']} can make no environment: its venv support is not installed and this user may not"
        " install it. Next, as an administrator: apt-get install python{}.{}-venv".format(*chosen["version"])
    )


def site_packages() -> Path:
    """Where the environment keeps its packages."""
    return next(iter(VENV.glob("lib/python3.*/site-packages")), VENV / "lib")


def complete(dist_info: Path) -> bool:
    """Whether an installed distribution has every file of its record; pip writes the record last."""
    try:
        with (dist_info / "RECORD").open(newline="") as rows:
            for name, _, size in csv.reader(rows):
                if not name.endswith(".pyc"):
                    there = (dist_info.parent / name).stat().st_size
                    if size and there != int(size):
                        return False
    except (OSError, ValueError):
        return False
    return True


def sweep_half_installed(console: Console) -> None:
    """Forget distributions that a killed pip left incomplete, so that the next pip installs them whole."""
    for entry in site_packages().iterdir():
        if entry.name.startswith("~"):
            discard(entry)
        elif entry.suffix == ".dist-info" and not complete(entry):
            console.line(f"      repairing {entry.name.split('-')[0]}: an earlier installation was interrupted")
            discard(entry)


def discard(path: Path) -> None:
    """Remove a file or folder; a folder vanishes from its place in one step."""
    if path.is_dir() and not path.is_symlink():
        grave = VAR / f"discarded-{os.getpid()}-{time.monotonic_ns()}"
        path.rename(grave)
        shutil.rmtree(grave)
    else:
        path.unlink(missing_ok=True)


def installed_torch() -> str | None:
    """Version of a torch in the environment that is new enough; None otherwise."""
    for found in site_packages().glob("torch-*.dist-info"):
        version = found.name.split("-", 1)[1][: -len(".dist-info")]
        if tuple(int(part) for part in version.split(".")[:2]) >= OLDEST_TORCH:
            return version
    return None


def provide_torch(machine: Machine, pip: list[str]) -> None:
    """Torch, apart from the lock file: which build a machine gets depends on where it asks."""
    console = machine.console
    version = installed_torch()
    if version:
        console.line(f"[4/5] torch: {version} kept")
        console.skipped.append("torch (present)")
        return
    free = shutil.disk_usage(ROOT).free / 1e9
    console.line(f"[4/5] torch: pip install torch=={TORCH} (about 200 MB for a CPU build, several GB with CUDA;")
    console.line(f"      which one depends on the package index; {free:.0f} GB free here)")
    machine.run("torch", *pip, "install", "--progress-bar=off", f"torch=={TORCH}")
    console.did.append(f"installed torch {installed_torch()}")


def build(machine: Machine) -> None:
    """All steps, then the stamp."""
    console = machine.console
    started = time.monotonic()
    for left in VAR.glob("discarded-*"):
        shutil.rmtree(left)
    STAMP.unlink(missing_ok=True)
    wanted = fingerprint()
    provide_compiler(machine)
    pip = provide_environment(machine)
    console.line("[3/5] Pinned packages: pip install -r requirements.lock")
    machine.run("packages", *pip, "install", "--progress-bar=off", "--no-deps", "--requirement", INPUTS[0])
    console.did.append("installed requirements.lock")
    provide_torch(machine, pip)
    console.line("[5/5] The package: pip install --editable .")
    machine.run("package", *pip, "install", "--no-deps", "--no-build-isolation", "--editable", ROOT)
    machine.run("check", VENV_PYTHON, "-I", "-c", "import kernelassay, torch")
    console.did.append("installed the package")
    draft = STAMP.with_suffix(".new")
    draft.write_text(json.dumps(wanted))
    draft.replace(STAMP)
    console.line(f"Set up in {time.monotonic() - started:.0f} s: {'; '.join(console.did)}.")
    console.line(f"Skipped: {'; '.join(console.skipped) or 'nothing'}.")


def locked(console: Console) -> int:
    """Hold the one lock of this checkout; the descriptor keeps it.

    Raises:
        SetupError: this user may not write here.
    """
    try:
        VAR.mkdir(exist_ok=True)
        fd = os.open(VAR / "setup.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise SetupError(
            f"{ROOT} is not set up and you may not write there ({error.strerror}). Next, as its owner: make setup;"
            " or work in a clone of your own"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        console.line("Another set-up of this checkout is running; waiting for it.")
        fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def main() -> int:
    """Entry point; exit code 0 when the environment is complete, 5 (infra) when it is not."""
    parser = argparse.ArgumentParser(description="Set up Kernel Assay in this checkout.")
    parser.add_argument("--quiet", action="store_true", help="say nothing when there is nothing to do")
    options = parser.parse_args()
    console = Console()
    os.umask(0o022)  # the jail's user reads the environment
    signal.signal(signal.SIGTERM, _stop)
    if ready() and (compiler() or options.quiet):
        if not options.quiet:
            console.line(f"Set up already: {VENV} matches requirements.lock; nothing to do.")
        return 0
    try:
        machine = Machine(console, locked(console))
        if not ready():
            build(machine)
        elif not compiler():
            provide_compiler(machine)
        return 0
    except SetupError as error:
        console.line(f"Set-up stopped: {error}")
        console.line("Next: make setup (it continues where this one ended)")
        return 5
    except KeyboardInterrupt:
        console.line("Set-up interrupted. Next: make setup (it continues where this one ended)")
        return 130


def _stop(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
