"""A weight changed by the documented route is seen: one tensor at a time, then all together, `prepare()` after each."""

from __future__ import annotations

from kernelassay.decks import CaseTensors
from kernelassay.probes._subject import (
    PASSED,
    Evidence,
    Outcome,
    Subject,
    first_difference,
    same_answer,
    wrong_anyway,
)
from kernelassay.records import Case, Force, Location, Role, Verdict
from kernelassay.session import Checked

PROVES = "a weight changed by the documented route is seen, each alone and all together"


def run(subject: Subject) -> Outcome:
    """Change weights under an unchanged input and demand the answer of the new weights."""
    names = [t.name for t in subject.loaded.problem.role(Role.WEIGHT)]
    if not names:
        return Outcome("not_applicable", "the problem has no weights")
    case, tensors = subject.draw("live_weights")
    _, other = subject.draw("live_weights", weights="live_weights/other")
    subject.rig.set_weights(tensors.weights)
    before = subject.check(case, tensors, subject.rig.call(tensors.inputs, same_objects=True))
    if before.faults:
        return wrong_anyway(before)
    try:
        return _changes(subject, case, tensors, other, names, before)
    finally:
        subject.rig.set_weights(tensors.weights)


def _changes(
    subject: Subject, case: Case, tensors: CaseTensors, other: CaseTensors, names: list[str], before: Checked
) -> Outcome:
    weights = dict(tensors.weights)
    for changed in (*([name] for name in names), names):
        weights |= {name: other.weights[name] for name in changed}
        now = CaseTensors(**{**vars(tensors), "weights": dict(weights)})
        subject.rig.set_weights(weights, changed)
        checked = subject.check(case, now, subject.rig.call(tensors.inputs, same_objects=True))
        if not checked.faults:
            before = checked
            continue
        stale = same_answer(checked.actual, before.actual)
        name, index, expected, actual = first_difference(checked)
        evidence = Evidence(
            "contract.stale_weights" if stale else "check.changed_weights",
            Force.CONVICTS,
            Verdict.INCORRECT,
            f"after a change of {', '.join(changed)} by the documented route the answer "
            + ("is still that of the old weights" if stale else "is wrong"),
            expected,
            actual,
            case,
            Location(output=name, index=index),
        )
        return Outcome("failed", evidence.title, (evidence,))
    return PASSED
