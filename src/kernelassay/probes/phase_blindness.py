"""The phase does not matter: one input is answered alike alone, in a row, after a flush, as old or new objects."""

from __future__ import annotations

from collections.abc import Callable

from kernelassay.probes._subject import PASSED, Outcome, Subject
from kernelassay.session import Batch, CallResult

PROVES = "checks, probes and clocks cannot be told apart to any effect"
FLUSH_BYTES = 1 << 20
"""Enough for the worker to do what it does in a timed call; its size is not what the probe is about."""


def run(subject: Subject) -> Outcome:
    """The same fresh input in every form that a phase of a grade gives to a call."""
    case, tensors = subject.draw("phase_blindness")
    decoys = [subject.draw(f"phase_blindness/{n}")[1].inputs for n in range(3)]
    subject.rig.set_weights(tensors.weights)
    batch = Batch(subject.rig, 4)
    forms: dict[str, Callable[[], CallResult]] = {
        "alone": lambda: batch.round([tensors.inputs]).calls[0],
        "last of four": lambda: batch.round([*decoys, tensors.inputs]).calls[-1],
        "first of four": lambda: batch.round([tensors.inputs, *decoys]).calls[0],
        "timed inside": lambda: batch.round(
            [decoys[0], tensors.inputs], same_objects=True, flush_bytes=FLUSH_BYTES
        ).calls[1],
        "timed outside": lambda: batch.round([tensors.inputs, *decoys], frozen=lambda: None).calls[0],
    }
    earlier = [("a decoy", call.outputs) for call in batch.round(decoys).calls]
    for form, call in forms.items():
        checked = subject.check(case, tensors, call())
        if checked.faults:
            return subject.explain("probe.phase_blindness", f"the same input {form}", checked, earlier)
    return PASSED
