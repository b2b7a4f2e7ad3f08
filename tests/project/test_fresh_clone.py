"""A newcomer's machine: a fresh clone, in a private folder whose name holds spaces, as root and as nobody special."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STRANGER = 12345  # no account, no sudo, no home but the one given here
PIP_CONFIGURATIONS = (".config/pip/pip.conf", ".pip/pip.conf")


@pytest.fixture
def private() -> Iterator[Path]:
    """A folder that only its owner may enter, below one that everybody may."""
    top = Path(tempfile.mkdtemp(prefix="assay fresh "))
    try:
        yield top
    finally:
        shutil.rmtree(top)


def clone(private: Path) -> Path:
    checkout = private / "a new clone"
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(checkout)], check=True)
    for name in PIP_CONFIGURATIONS:  # the same package index for everybody
        if (Path.home() / name).exists():
            (private / name).parent.mkdir(parents=True)
            shutil.copy(Path.home() / name, private / name)
    return checkout


@dataclass(frozen=True)
class Newcomer:
    """Somebody at a fresh checkout: nothing of this environment but the way to the package index."""

    checkout: Path
    prefix: tuple[str, ...]

    def popen(self, *command: str) -> "subprocess.Popen[str]":
        """Start a command in a session of its own."""
        return subprocess.Popen(
            [*self.prefix, *command],
            cwd=self.checkout,
            env={
                **{key: value for key, value in os.environ.items() if key.startswith(("PIP_", "LANG", "LC_"))},
                "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
                "HOME": str(self.checkout.parent),
                "NO_COLOR": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        child = self.popen(*command)
        out, error = child.communicate()
        return subprocess.CompletedProcess(command, child.returncode, out, error)


@pytest.fixture(params=["caller", "stranger"])
def newcomer(request: pytest.FixtureRequest, private: Path) -> Newcomer:
    checkout = clone(private)
    if request.param == "caller" or os.geteuid() != 0:
        return Newcomer(checkout, ())
    for path in (private, *private.rglob("*")):
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    return Newcomer(
        checkout, ("setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", "--no-new-privs")
    )


def kill_while_it_installs_torch(newcomer: Newcomer) -> None:
    """Start the set-up and end everything of it by SIGKILL while torch is half installed."""
    child = newcomer.popen("make", "setup")
    site = newcomer.checkout / ".venv" / "lib"
    while child.poll() is None and not list(site.glob("python3.*/site-packages/torch/*/*.py")):
        time.sleep(0.1)
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert not (newcomer.checkout / ".venv" / ".assay-ready").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_fresh_clone_sets_itself_up_and_judges(newcomer: Newcomer) -> None:
    kill_while_it_installs_torch(newcomer)
    ended = newcomer.run("./assay", "doctor", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["cpu"] is True
    assert "Set up in" in ended.stderr
    again = newcomer.run("make", "setup")
    assert again.returncode == 0, again.stderr
    assert "nothing to do" in again.stderr
    demo = newcomer.run("make", "demo")
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "CLEAN" in demo.stdout
    assert "INCORRECT" in demo.stdout
