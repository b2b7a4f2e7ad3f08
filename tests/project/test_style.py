"""The gates of style, types, arrows and dependencies, as tests."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

GATES = {
    "ruff check": ("ruff", "check", "."),
    "ruff format": ("ruff", "format", "--check", "."),
    "mypy 3.11": ("mypy", "--python-version", "3.11"),
    "mypy 3.12": ("mypy", "--python-version", "3.12"),
    "arrows": ("lint-imports", "--no-cache"),
    "dependencies": ("deptry", "."),
    "lock": ("python", "scripts/lock.py", "--check"),
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "gate", [pytest.param(gate, marks=[pytest.mark.slow] if gate == "mypy 3.12" else []) for gate in GATES]
)
def test_gate(gate: str) -> None:
    program, *arguments = GATES[gate]
    ended = subprocess.run(
        [str(BIN / program), *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ended.returncode:
        pytest.fail(f"{program} {' '.join(arguments)}\n{ended.stdout}", pytrace=False)
