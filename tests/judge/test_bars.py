"""What a grade without probes and clocks may cost: time and memory of the judge, a cold process each."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hostile.arena import ROOT

COLD_S = 15.0
"""A cold grade of the C++ example on 2 cores, import included, with nothing else running."""
JUDGE_BYTES = 1.5e9
ONE_GRADE = """
import json, resource, sys
from pathlib import Path
from kernelassay.judge import GradeRequest, grade
request = GradeRequest(
    Path(sys.argv[1]), "ops/topk", home=Path(sys.argv[2]), probes=frozenset(), clocks=False
)
record = grade(request).grade
usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps({
    "status": record.status,
    "cases": len(record.cases),
    "rss": usage[0].ru_maxrss * 1024,
    "cpu_s": sum(u.ru_utime + u.ru_stime for u in usage),
}))
"""


@pytest.mark.slow
def test_a_cold_grade_of_the_native_example(tmp_path: Path) -> None:
    """Intake, build, load and checks, by the wall; probes and clocks are not part of it."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", ONE_GRADE, str(ROOT / "examples" / "topk_cpp"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    wall_s = time.monotonic() - start
    told = json.loads(done.stdout)
    assert (told["status"], told["cases"]) == ("correct", 70)
    assert told["rss"] < JUDGE_BYTES
    assert wall_s <= COLD_S, f"{wall_s:.1f} s by the wall, {told['cpu_s']:.1f} s of CPU time"
