"""Nothing is carried over: A, B, A in one process equals what fresh processes answer to A and to B."""

from __future__ import annotations

from torch import Tensor

from kernelassay.probes._subject import PASSED, Evidence, Outcome, Subject, first_difference
from kernelassay.records import Force, Location, Verdict

PROVES = "a process that has seen other inputs answers as a fresh one does"


def run(subject: Subject) -> Outcome:
    """The live process answers A, B, A; fresh ones answer A and B alone."""
    first, second = subject.draw("fresh_process/a"), subject.draw("fresh_process/b")
    earlier: list[tuple[str, dict[str, Tensor]]] = []
    for case, tensors in (first, second, first):
        subject.rig.set_weights(tensors.weights)
        checked = subject.check(case, tensors, subject.rig.call(tensors.inputs))
        if checked.faults:
            return subject.explain("probe.fresh_process", "A, B, A in one process", checked, earlier)
        earlier.append(("an earlier call", checked.actual))
    for case, _ in (second, first):
        alone = subject.alone(case)
        if not alone.faults:
            continue
        name, index, expected, actual = first_difference(alone)
        evidence = Evidence(
            "check.depends_on_history",
            Force.CONVICTS,
            Verdict.INCORRECT,
            "a fresh process answers wrongly what a used one answers rightly",
            expected,
            actual,
            case,
            Location(output=name, index=index),
        )
        return Outcome("failed", evidence.title, (evidence,))
    return PASSED
