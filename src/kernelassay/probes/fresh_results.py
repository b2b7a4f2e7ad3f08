"""Results stay what they were: after many later calls each earlier result still answers its own input."""

from __future__ import annotations

from kernelassay.probes._subject import PASSED, Outcome, Subject
from kernelassay.session import Batch

PROVES = "results of earlier calls stay intact after later calls"
CALLS = 16
"""In a row, before the first result is read: a ring of fewer buffers shows. [estimated]"""


def run(subject: Subject) -> Outcome:
    """Many calls in a row, all results read after the last."""
    drawn = [subject.draw(f"fresh_results/{number}") for number in range(CALLS)]
    subject.rig.set_weights(drawn[0][1].weights)
    made = Batch(subject.rig, CALLS).round([tensors.inputs for _, tensors in drawn])
    calls = [(*one, call) for one, call in zip(drawn, made.calls, strict=True)]
    earlier = []
    for number, one in enumerate(calls, 1):
        checked = subject.check(*one)
        if not checked.faults:
            earlier.append((f"call {number}", checked.actual))
            continue
        what = f"call {number} of {CALLS} whose results were read after the last"
        return subject.explain("probe.fresh_results", what, checked, earlier, later=calls[number:])
    return PASSED
