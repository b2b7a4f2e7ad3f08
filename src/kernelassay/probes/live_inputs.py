"""Inputs are read on each call: the same tensor objects, at the same address and version, hold other numbers."""

from __future__ import annotations

from kernelassay.probes._subject import PASSED, Outcome, Subject

PROVES = "inputs are read again on each call, whatever object, address or version they come in"


def run(subject: Subject) -> Outcome:
    """A, then B written over A from outside, then A again, on one set of tensor objects."""
    first, second = subject.draw("live_inputs/a"), subject.draw("live_inputs/b")
    subject.rig.set_weights(first[1].weights)
    earlier = []
    for number, (case, tensors) in enumerate((first, second, first)):
        checked = subject.check(case, tensors, subject.rig.call(tensors.inputs, same_objects=True))
        if not checked.faults:
            earlier.append((f"call {number + 1}", checked.actual))
            continue
        return subject.explain("probe.live_inputs", "inputs overwritten in place", checked, earlier)
    return PASSED
