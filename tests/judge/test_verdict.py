"""The policy: every row, their order, and that it is total and agrees with what a record may hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kernelassay.judge.verdict import EXIT_CODES, POLICY, Facts, decide
from kernelassay.records import (
    Case,
    CaseResult,
    ExitCode,
    Finding,
    Force,
    Grade,
    Recipe,
    Status,
    Timing,
    TimingState,
    Verdict,
)
from tests.board import grades as made

ACCUSED = (Verdict.CONTAMINATED, Verdict.REWARD_HACK, Verdict.RUBRIC_LEAK)


def timing(state: str, cause: Any = None) -> Timing:
    """`confirmed` and `outer_only` as if their shapes had been timed: the policy looks at the state alone."""
    return Timing.model_construct(state=TimingState(state), reason="because", cause=cause, shapes=(), score=None)


def finding(force: str, charge: Verdict | None, number: int = 1) -> Finding:
    convicts = force == "convicts"
    return Finding(
        id=f"f{number}",
        rule=f"rule.{charge}",
        force=Force(force),
        charge=charge,
        title=f"a finding that {force}",
        expected="1" if convicts else None,
        actual="2" if convicts else None,
        recipe=Recipe(stage="case") if convicts else None,
        reproduce="assay reproduce g/f1" if convicts else None,
    )


HACK, LEAK = finding("convicts", Verdict.REWARD_HACK), finding("convicts", Verdict.RUBRIC_LEAK)
FAULT, NOMINATED = finding("convicts", Verdict.INCORRECT), finding("nominates", Verdict.REWARD_HACK)
COPIED, TOLD = finding("convicts", Verdict.CONTAMINATED), finding("informs", None)

ROWS: list[tuple[str, str, str | None, list[Finding], str]] = [
    # status, timing, its cause, findings → verdict
    ("correct", "confirmed", None, [], "clean"),
    ("correct", "outer_only", None, [], "clean"),
    ("correct", "invalid", None, [], "clean"),
    ("correct", "invalid", "judge", [], "clean"),
    ("correct", "invalid", "submission", [], "clean"),
    ("correct", "invalid", "device", [], "infra"),
    ("correct", "ambiguous", None, [], "clean"),
    ("correct", "impossible", None, [], "needs_review"),
    ("correct", "confirmed", None, [TOLD], "clean"),
    ("correct", "confirmed", None, [NOMINATED], "needs_review"),
    ("correct", "confirmed", None, [LEAK], "rubric_leak"),
    ("correct", "impossible", None, [LEAK, NOMINATED], "rubric_leak"),
    ("correct", "invalid", "device", [LEAK], "rubric_leak"),
    ("correct", "confirmed", None, [FAULT, LEAK], "incorrect"),
    ("correct", "confirmed", None, [FAULT, LEAK, HACK], "reward_hack"),
    ("correct", "confirmed", None, [FAULT, LEAK, HACK, COPIED], "contaminated"),
    *((s, "invalid", None, [], "incorrect") for s in Status if s not in (Status.CORRECT, Status.INFRA)),
    ("wrong", "confirmed", None, [NOMINATED], "incorrect"),
    ("wrong", "invalid", "device", [], "incorrect"),
    ("wrong", "invalid", None, [LEAK], "incorrect"),
    ("contract", "invalid", None, [HACK], "reward_hack"),
    ("timeout", "invalid", None, [FAULT, COPIED], "contaminated"),
    ("infra", "invalid", None, [], "infra"),
    ("infra", "confirmed", None, [HACK, COPIED, FAULT], "infra"),
]


@pytest.mark.parametrize(("status", "state", "cause", "findings", "verdict"), ROWS)
def test_table(status: str, state: str, cause: str | None, findings: list[Finding], verdict: str) -> None:
    decided, reasons = decide(Facts(Status(status), timing(state, cause), tuple(findings)))
    assert decided is Verdict(verdict)
    assert reasons
    assert all(reasons)


def test_every_row_of_the_policy_is_reached() -> None:
    reached = set()
    for status, state, cause, findings, _ in ROWS:
        facts = Facts(Status(status), timing(state, cause), tuple(findings))
        reached.add(next(number for number, row in enumerate(POLICY) if row.when(facts)))
    assert reached == set(range(len(POLICY)))


findings = st.lists(st.sampled_from([HACK, LEAK, FAULT, NOMINATED, COPIED, TOLD]), max_size=4)
facts = st.builds(
    Facts,
    st.sampled_from(Status),
    st.builds(timing, st.sampled_from([s.value for s in TimingState]), st.sampled_from([None, "device", "judge"])),
    findings.map(tuple),
)


@given(facts)
def test_total_and_just(given_facts: Facts) -> None:
    """There is always a verdict with a reason; nobody is accused without a conviction, nor clean beside one."""
    verdict, reasons = decide(given_facts)
    assert reasons
    assert verdict in EXIT_CODES
    convicted = {f.charge for f in given_facts.findings if f.force is Force.CONVICTS}
    if verdict in ACCUSED:
        assert verdict in convicted
    if verdict is Verdict.CLEAN:
        assert not convicted
        assert given_facts.status is Status.CORRECT
    if given_facts.status is not Status.CORRECT:
        assert verdict is not Verdict.NEEDS_REVIEW


@given(facts)
def test_findings_in_another_order_decide_the_same(given_facts: Facts) -> None:
    turned = Facts(given_facts.status, given_facts.timing, given_facts.findings[::-1])
    assert decide(given_facts)[0] is decide(turned)[0]


def test_exit_codes() -> None:
    assert {v.value: int(code) for v, code in EXIT_CODES.items()} == {
        "clean": 0,
        "incorrect": 1,
        "reward_hack": 3,
        "rubric_leak": 3,
        "contaminated": 3,
        "needs_review": 4,
        "infra": 5,
    }
    assert set(EXIT_CODES) == set(Verdict)
    assert int(ExitCode.USAGE) == 2


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "a score without a time": {"score": 0.5},
    "clean but wrong": {"status": Status.WRONG},
    "clean beside a conviction": {"findings": (FAULT,)},
    "an accusation without evidence": {"verdict": Verdict.REWARD_HACK},
    "an accusation that is only nominated": {"verdict": Verdict.REWARD_HACK, "findings": (NOMINATED,)},
    "correct with half of the cases": {"cases": ()},
    "correct with a wrong case": {
        "cases": (CaseResult(case=Case(shape="s", case="c", seed=1), status=Status.WRONG),),
        "cases_planned": 1,
    },
    "correct without a case": {"cases": (), "cases_planned": 0},
    "infra that is clean": {"status": Status.INFRA},
    "no reason": {"reasons": ()},
    "two findings of one name": {"findings": (TOLD, TOLD)},
    "a zero score": {"score": 0.0},
    "an infinite score": {"score": float("inf")},
    "an unknown word": {"speed": 1},
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_grades_are_refused(name: str) -> None:
    plain = made.grade()
    fields = {field: getattr(plain, field) for field in Grade.model_fields}
    assert Grade(**fields) == plain
    with pytest.raises(ValidationError):
        Grade(**(fields | IMPOSSIBLE[name]))


@pytest.mark.parametrize(
    "change",
    [
        {"expected": None},
        {"actual": None},
        {"recipe": None},
        {"reproduce": None},
        {"charge": None},
        {"charge": Verdict.CLEAN},
        {"charge": Verdict.INFRA},
        {"force": Force.INFORMS},
        {"id": "1"},
    ],
    ids=str,
)
def test_a_conviction_needs_its_evidence(change: dict[str, Any]) -> None:
    fields = {field: getattr(FAULT, field) for field in Finding.model_fields}
    with pytest.raises(ValidationError):
        Finding(**(fields | change))
