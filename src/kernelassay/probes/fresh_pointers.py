"""Addresses mean nothing: a known input at a new address, and a new input at a known address."""

from __future__ import annotations

from kernelassay.probes._subject import PASSED, Outcome, Subject
from kernelassay.session import Batch

PROVES = "results follow the contents of tensors, not their addresses"
SETS = 3


def run(subject: Subject) -> Outcome:
    """Known contents in fresh memory, then the contents rotated over the same addresses."""
    drawn = [subject.draw(f"fresh_pointers/{number}") for number in range(SETS)]
    subject.rig.set_weights(drawn[0][1].weights)
    earlier = []
    for _ in range(2):
        batch = Batch(subject.rig, SETS)
        for turn in range(SETS):
            order = [drawn[(number + turn) % SETS] for number in range(SETS)]
            made = batch.round([tensors.inputs for _, tensors in order])
            calls = [(*one, call) for one, call in zip(order, made.calls, strict=True)]
            for number, one in enumerate(calls):
                checked = subject.check(*one)
                if not checked.faults:
                    earlier.append((f"the input that lay at address {number} before", checked.actual))
                    continue
                what = "contents moved between addresses"
                return subject.explain("probe.fresh_pointers", what, checked, earlier, later=calls[number + 1 :])
    return PASSED
