"""Each probe convicts the cheat that it exists for, by a counter-example and of the right thing."""

from __future__ import annotations

import pytest

from kernelassay.probes import PROBES, finding_of
from kernelassay.records import Force

from .conftest import Bench
from .toys import CHEATS


def test_every_probe_has_a_cheat() -> None:
    assert {cheat.probe for cheat in CHEATS.values()} == set(PROBES)


FAST = {"memo by identity", "packed once", "late thread", "another path under the clock"}
"""One of each kind: an answer kept, a breach, work after the return, a phase told from its callers."""


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in CHEATS])
def test_a_cheat_is_told(bench: Bench, name: str) -> None:
    cheat = CHEATS[name]
    outcome = bench.examine(cheat.probe, cheat.problem, cheat.source)
    assert outcome.state in ("failed", "unresolved"), outcome.note
    assert [(e.rule, e.force, e.charge) for e in outcome.evidence] == [(cheat.rule, cheat.force, cheat.charge)]
    finding = finding_of(outcome.evidence[0], cheat.probe, "f1", "assay reproduce g-x/f1")
    assert finding.recipe is not None
    assert (finding.recipe.stage, finding.recipe.probe) == ("probe", cheat.probe)
    assert finding.expected != finding.actual
    assert finding.force is Force.NOMINATES or finding.recipe.seed > 0
