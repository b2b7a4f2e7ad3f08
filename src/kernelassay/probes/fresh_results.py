"""Results stay what they were: after many later calls each earlier result still answers its own input."""

from __future__ import annotations

from kernelassay.probes._subject import PASSED, Evidence, Outcome, Subject, first_difference, same_answer
from kernelassay.records import Force, Location, Verdict
from kernelassay.session import Batch

PROVES = "results of earlier calls stay intact after later calls"
CALLS = 16
"""In a row, before the first result is read: a ring of fewer buffers shows. [estimated]"""


def run(subject: Subject) -> Outcome:
    """Many calls in a row, all results read after the last."""
    drawn = [subject.draw(f"fresh_results/{number}") for number in range(CALLS)]
    subject.rig.set_weights(drawn[0][1].weights)
    made = Batch(subject.rig, CALLS).round([tensors.inputs for _, tensors in drawn])
    checked = [subject.check(case, tensors, call) for (case, tensors), call in zip(drawn, made.calls, strict=True)]
    for number, one in enumerate(checked):
        if not one.faults:
            continue
        later = next((j for j in range(number + 1, CALLS) if same_answer(one.actual, checked[j].actual)), None)
        if later is None:
            return Outcome("unresolved", f"call {number + 1} of {CALLS} in a row is at fault: {one.result.message}")
        name, index, expected, actual = first_difference(one)
        evidence = Evidence(
            "contract.results_not_fresh",
            Force.CONVICTS,
            Verdict.INCORRECT,
            f"the result of call {number + 1} was overwritten: after call {later + 1} it holds that call's answer",
            expected,
            actual,
            one.result.case,
            Location(output=name, index=index),
        )
        return Outcome("failed", evidence.title, (evidence,))
    return PASSED
