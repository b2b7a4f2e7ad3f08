"""State is read on each call: the same objects, overwritten from outside under unchanged inputs."""

from __future__ import annotations

from functools import partial

from kernelassay.decks import CaseTensors
from kernelassay.probes._subject import PASSED, Outcome, Subject
from kernelassay.records import Role

PROVES = "state that was overwritten in place from outside is read again"


def run(subject: Subject) -> Outcome:
    """One input with the state of A, then of B, then of A again."""
    names = [t.name for t in subject.loaded.problem.role(Role.STATE)]
    if not names:
        return Outcome("not_applicable", "the problem has no state")
    first, second = subject.draw("live_state/a"), subject.draw("live_state/b")
    subject.rig.set_weights(first[1].weights)
    earlier = []
    for number, (case, tensors) in enumerate((first, second, first)):
        mixed = {name: (tensors if name in names else first[1]).inputs[name] for name in first[1].inputs}
        now = CaseTensors(**{**vars(tensors), "inputs": mixed})
        checked = subject.check(case, now, subject.rig.call(mixed, same_objects=True))
        if not checked.faults:
            earlier.append((f"the state of call {number + 1}", checked.actual))
            continue
        alone = partial(subject.alone_on, case, now)
        return subject.explain("probe.live_state", "state overwritten in place", checked, earlier, alone)
    return PASSED
