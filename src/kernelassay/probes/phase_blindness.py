"""The phase does not matter: one input is answered alike alone, in a row, after a flush, as old or new objects.

Before each form another input is answered alone, so that an answer kept from there is never right by chance. And what
a check asks one call at a time, every case of the problem, is asked once more in a row, in secret order: a path that
is right for nominal inputs only must not be kept for calls that look timed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from kernelassay.decks import CaseTensors
from kernelassay.probes._subject import PASSED, Made, Outcome, Subject
from kernelassay.records import Case
from kernelassay.session import Batch, same_bytes

PROVES = "checks, probes and clocks cannot be told apart to any effect"
FLUSH_BYTES = 1 << 20
"""Enough for the worker to do what it does in a timed call; its size is not what the probe is about."""
ROW = 4
"""Calls of a row; sniffing cheats take the third call in a row, or the third live tensor, for a benchmark. [read]"""

Drawn = tuple[Case, CaseTensors]


class Form(NamedTuple):
    """How a phase of a grade makes a call."""

    name: str
    calls: int
    place: int
    """Where in the row the input stands."""
    how: dict[str, Any]


FORMS = (
    Form("alone", 1, 0, {}),
    Form("last in a row", ROW, ROW - 1, {}),
    Form("first in a row", ROW, 0, {}),
    Form("timed inside", 2, 1, {"same_objects": True, "flush_bytes": FLUSH_BYTES}),
    Form("timed outside", ROW, 0, {"frozen": lambda start, size: None}),
)


def run(subject: Subject) -> Outcome:
    """The same fresh input in every form that a phase of a grade gives to a call, then every case in a row."""
    target = subject.draw("phase_blindness")
    beside = [subject.draw(f"phase_blindness/{n}") for n in range(ROW - 1)]
    subject.rig.set_weights(target[1].weights)
    batch, earlier = Batch(subject.rig, ROW), list[Made]()
    for form in FORMS:
        before = subject.draw(f"phase_blindness/{form.name}")
        earlier += _round(batch, [before], {})
        row = beside[: form.calls - 1]
        row.insert(form.place, target)
        made = _round(batch, row, form.how)
        checked = subject.check(*made[form.place])
        if checked.faults:
            known = _right(subject, [*earlier, *made[: form.place]])
            what, later = f"an input {form.name}", made[form.place + 1 :]
            return subject.explain("probe.phase_blindness", what, checked, known, later=later)
        earlier += made[: form.place]
    return _cases(subject, target, earlier)


def _cases(subject: Subject, target: Drawn, earlier: Sequence[Made]) -> Outcome:
    """Every case that leaves the weights as they are, in one row in secret order."""
    names = [case.name for case in subject.loaded.problem.cases]
    drawn = [subject.draw(f"phase_blindness/case/{name}", case=name) for name in names]
    drawn = [(case, tensors) for case, tensors in drawn if _same_weights(tensors, target[1])]
    random.Random(subject.seeds("phase_blindness/order")).shuffle(drawn)
    made = _round(Batch(subject.rig, len(drawn)), drawn, {"frozen": lambda start, size: None}) if drawn else []
    for number, one in enumerate(made):
        checked = subject.check(*one)
        if checked.faults:
            known = _right(subject, [*earlier, *made[:number]])
            what = f"case {one[0].case} in a row of all cases"
            return subject.explain("probe.phase_blindness", what, checked, known, later=made[number + 1 :])
    return PASSED


def _round(batch: Batch, drawn: Sequence[Drawn], how: dict[str, Any]) -> list[Made]:
    made = batch.round([tensors.inputs for _, tensors in drawn], **how)
    return [(*one, call) for one, call in zip(drawn, made.calls, strict=True)]


def _right(subject: Subject, calls: Sequence[Made]) -> list[tuple[str, dict[str, torch.Tensor]]]:
    """The right ones of `calls`, compared only now that somebody asks."""
    checked = [subject.check(*one) for one in calls]
    return [("an earlier input", one.actual) for one in checked if not one.faults]


def _same_weights(a: CaseTensors, b: CaseTensors) -> bool:
    return all(same_bytes(a.weights[name], b.weights[name]) for name in b.weights)
