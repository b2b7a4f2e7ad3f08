"""Every problem has a plain torch submission, and the judge finds it right: checks and probes, whole, on tier small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelassay.decks import problem_names

from .native import ROOT

SHORT = {"w4a16_gemm": "w4a16", "mingru_rollout": "mingru"}
"""Problem → name of its examples, where that is another one."""


def example(problem: str) -> Path:
    name = problem.rpartition("/")[2]
    return ROOT / "examples" / f"{SHORT.get(name, name)}_torch"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("problem", problem_names())
def test_plain_torch_is_correct(problem: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "kernelassay", "grade", str(example(problem)), "--problem", problem),
            *("--no-time", "--json", "--quiet", "--home", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.stdout, done.stderr
    grade = json.loads(done.stdout)
    assert (grade["status"], grade["findings"]) == ("correct", []), grade["reasons"]
    assert done.returncode == 0
    assert len(grade["cases"]) == grade["cases_planned"] > 0
