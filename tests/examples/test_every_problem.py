"""Every problem has a plain torch submission, and the judge finds it right on every case of tier small."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelassay.decks import problem_names
from kernelassay.judge import GradeRequest, grade
from kernelassay.records import Status, Verdict

from .native import ROOT

SHORT = {"w4a16_gemm": "w4a16", "mingru_rollout": "mingru"}
"""Problem → name of its examples, where that is another one."""


def example(problem: str) -> Path:
    name = problem.rpartition("/")[2]
    return ROOT / "examples" / f"{SHORT.get(name, name)}_torch"


PROBED = ("ops/fp8_gemm", "ops/paged_attention", "ops/sonic_moe", "ops/topk")
"""Problems that are graded with probes here; those of the others take minutes on two cores."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("problem", problem_names())
def test_plain_torch_is_correct(problem: str, tmp_path: Path) -> None:
    probes = None if problem in PROBED else frozenset[str]()
    request = GradeRequest(example(problem), problem, probes=probes, clocks=False, home=tmp_path)
    graded = grade(request).grade
    assert (graded.status, graded.verdict, graded.findings) == (Status.CORRECT, Verdict.CLEAN, ()), graded.reasons
    assert len(graded.cases) == graded.cases_planned > 0
