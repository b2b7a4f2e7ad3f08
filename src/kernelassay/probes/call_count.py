"""The answer does not depend on how many calls came before: a secret number of calls, each one compared."""

from __future__ import annotations

import random
from dataclasses import replace

from kernelassay.probes._subject import PASSED, Outcome, Subject
from kernelassay.records import Measurement
from kernelassay.session import Batch

PROVES = "the number of calls made so far does not matter"
CALLS = (24, 60)
"""Least and most calls; the number is secret. Known counters trip after 3 to 20. [read]"""
BATCH = 12


def run(subject: Subject) -> Outcome:
    """Make many calls on fresh inputs and compare each."""
    calls = random.Random(subject.seeds("call_count")).randint(*CALLS)
    batch, earlier = Batch(subject.rig, BATCH), []
    _, settled = subject.draw("call_count/0")
    subject.rig.set_weights(settled.weights)
    measured = (Measurement(name="calls", value=calls),)
    for start in range(0, calls, BATCH):
        drawn = [subject.draw(f"call_count/{n}") for n in range(start, min(start + BATCH, calls))]
        made = batch.round([tensors.inputs for _, tensors in drawn], same_objects=True)
        calls_made = [(*one, call) for one, call in zip(drawn, made.calls, strict=True)]
        for number, one in enumerate(calls_made, start + 1):
            checked = subject.check(*one)
            if not checked.faults:
                earlier.append((f"call {number}", checked.actual))
                continue
            later = calls_made[number - start :]
            outcome = subject.explain("probe.call_count", f"call {number} of a row", checked, earlier, later=later)
            return replace(outcome, measured=measured)
    return replace(PASSED, measured=measured)
