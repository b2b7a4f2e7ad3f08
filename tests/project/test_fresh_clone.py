"""A newcomer's machine: a fresh clone, in a private folder whose name holds spaces, as root and as nobody special."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
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


def start(checkout: Path, *command: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, *command],
        cwd=checkout,
        env={
            **{key: value for key, value in os.environ.items() if key.startswith(("PIP_", "LANG", "LC_"))},
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(checkout.parent),
            "NO_COLOR": "1",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("who", ["root", "stranger"])
def test_a_fresh_clone_sets_itself_up_and_says_what_it_can_judge(private: Path, who: str) -> None:
    if os.geteuid() != 0 and who == "root":
        who = "the caller"
    checkout = clone(private)
    prefix: tuple[str, ...] = ()
    if who == "stranger" and os.geteuid() == 0:
        for path in (private, *private.rglob("*")):
            os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
        prefix = ("setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", "--no-new-privs")
    ended = start(checkout, "./assay", "doctor", "--json", prefix=prefix)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["cpu"] is True
    assert "Set up in" in ended.stderr
    assert (checkout / ".venv" / ".assay-ready").exists()
    again = start(checkout, "make", "setup", prefix=prefix)
    assert again.returncode == 0, again.stderr
    assert "nothing to do" in again.stderr
