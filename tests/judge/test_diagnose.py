"""A wrong answer is named after the mutant whose error it has, and only then; this informs, it never convicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelassay.judge import GradeRequest, grade
from kernelassay.records import Force, Grade, Status, Verdict

TORCH = Path(__file__).resolve().parents[2] / "examples" / "w4a16_torch" / "solution.py"
ZEROS = "self.zeros.float()[:, None]"
WRONG = {
    "zero_point_8": ("8.0", "zero_point_8"),
    "an error of its own": ("self.zeros.float()[:, None].flip(2)", None),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_an_error_that_is_a_mutant_s(name: str, tmp_path: Path) -> None:
    instead, mutant = WRONG[name]
    (tmp_path / "solution.py").write_text(TORCH.read_text().replace(ZEROS, instead))
    made = _grade(tmp_path)
    assert (made.status, made.verdict) == (Status.WRONG, Verdict.INCORRECT)
    found = [finding for finding in made.findings if finding.rule == "residual.mutant"]
    if mutant is None:
        assert found == []
        return
    (finding,) = found
    assert finding.force is Force.INFORMS and mutant in finding.title
    (cosine,) = finding.measured
    assert cosine.name == "S" and isinstance(cosine.value, float) and 0.98 <= cosine.value <= 1.0 + 1e-9
    assert made.findings[0].id in finding.detail


def _grade(folder: Path) -> Grade:
    request = GradeRequest(folder, "ops/w4a16_gemm", clocks=False, home=folder.parent / f"{folder.name}-home")
    return grade(request).grade
