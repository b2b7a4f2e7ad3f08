"""Every element counts: one changed element that changes the right answer changes the submission's."""

from __future__ import annotations

import random
from functools import partial

import torch
from torch import Tensor

from kernelassay.decks import CaseTensors, compare, expect
from kernelassay.probes._subject import PASSED, Outcome, Subject, wrong_anyway
from kernelassay.records import Role

PROVES = "a change of one element of an input is seen"
FLIPS = 6
"""Places per grade. A cheat that looks at a share s of the input escapes them all with probability s⁶. [computed]"""
TRIES = 20
"""Candidates per flip until one changes the right answer beyond tolerance. The first half take a value that the tensor
holds elsewhere, its largest or its smallest: some inputs are bounded, as a log-decay is by 0."""


def run(subject: Subject) -> Outcome:
    """Call on A, change one element in place at a secret index, call again."""
    case, tensors = subject.draw("one_element")
    subject.rig.set_weights(tensors.weights)
    before = subject.check(case, tensors, subject.rig.call(tensors.inputs, same_objects=True))
    if before.faults:
        return wrong_anyway(before)
    rng = random.Random(subject.seeds("one_element/indices"))
    tried = 0
    for _ in range(FLIPS):
        flipped = _flip(subject, tensors, rng)
        if flipped is None:
            continue
        tried += 1
        name, changed = flipped
        checked = subject.check(case, changed, subject.rig.call(changed.inputs, same_objects=True))
        if checked.faults:
            earlier = [("the input before the change", before.actual)]
            what = f"{name} changed in place"
            return subject.explain(
                "probe.one_element", what, checked, earlier, partial(subject.alone_on, case, changed)
            )
        subject.rig.call(tensors.inputs, same_objects=True)
    return PASSED if tried else Outcome("not_applicable", "no single element changes the answer beyond tolerance")


def _flip(subject: Subject, tensors: CaseTensors, rng: random.Random) -> tuple[str, CaseTensors] | None:
    """The case with one element changed so that the right answer is another one."""
    right = expect(subject.loaded, tensors)
    for attempt in range(TRIES):
        name = rng.choice([t.name for t in subject.loaded.problem.role(Role.INPUT)] or [""])
        if not name:
            return None
        inputs = {key: value.clone() for key, value in tensors.inputs.items()}
        flat = inputs[name].reshape(-1)
        if not flat.numel() or not flat.dtype.is_floating_point:
            return None
        index = rng.randrange(flat.numel())
        flat[index] = _other(flat, index, inside=attempt < TRIES // 2)
        changed = CaseTensors(**{**vars(tensors), "inputs": inputs})
        wanted = expect(subject.loaded, changed)
        if not compare(subject.loaded, changed, wanted, _as_returned(subject, right)).passed:
            return f"{name}[{index}]", changed
    return None


def _other(flat: Tensor, index: int, *, inside: bool) -> Tensor:
    """Another value for one element: the farther end of the tensor's own range, or one beyond it."""
    values = flat.float()
    low, high = values.min(), values.max()
    if inside:
        return (high if values[index] - low < high - values[index] else low).to(flat.dtype)
    return (values.abs().max() * 1.5 + 1.0).to(flat.dtype)


def _as_returned(subject: Subject, answer: dict[str, Tensor]) -> dict[str, Tensor]:
    """An oracle's answer in the dtypes that a submission returns."""
    dtypes = {t.name: getattr(torch, t.dtype) for t in subject.loaded.problem.role(Role.OUTPUT, Role.STATE)}
    return {name: value.to(dtypes[name]) for name, value in answer.items() if name in dtypes}
