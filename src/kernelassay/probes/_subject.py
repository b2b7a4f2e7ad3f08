"""What a probe works on, and what it may conclude.

A probe convicts only by a counter-example: an input, what a genuine submission answers, and what this one answered.
A call that is merely wrong proves a bug, and one bug on a drawn input is enough to be called wrong. It proves a
pretence only when the same input is answered rightly by a fresh process that has seen nothing else, and what came here
is, byte for byte, the right answer to something earlier. Where it is the answer to a *later* call of the same round,
the result was overwritten: a breach of the contract, and no pretence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from kernelassay.decks import CaseTensors, LoadedProblem, draw
from kernelassay.records import (
    Case,
    Finding,
    Force,
    Location,
    Measurement,
    ProbeResult,
    Recipe,
    Role,
    Shape,
    Status,
    Verdict,
)
from kernelassay.session import CallResult, Checked, Rig, Session, check_case, judge_call, same_bytes

Seeds = Callable[[str], int]
"""A fresh seed per purpose, derived from the grade's secret."""

Made = tuple[Case, CaseTensors, CallResult]
"""One call of a round, before comparison."""


@dataclass(frozen=True)
class Evidence:
    """A counter-example, or a reason to look."""

    rule: str
    force: Force
    charge: Verdict
    title: str
    expected: str
    actual: str
    case: Case
    location: Location | None = None
    detail: str = ""


@dataclass(frozen=True)
class Outcome:
    """What one probe found."""

    state: Literal["passed", "failed", "unresolved", "not_applicable"]
    note: str = ""
    evidence: tuple[Evidence, ...] = ()
    measured: tuple[Measurement, ...] = ()


PASSED = Outcome("passed")


@dataclass
class Subject:
    """A submission under probes: one live rig, fresh workers on demand, secret seeds."""

    loaded: LoadedProblem
    rig: Rig
    open: Callable[[], AbstractContextManager[Session]]
    """A fresh worker with the same submission, loaded."""
    seeds: Seeds
    retire: Callable[[], None]
    """Kill the live worker: one submission process lives at a time, so a fresh one ends what this subject can call."""
    before: dict[str, str] = field(default_factory=dict)
    """The live worker's global state before the submission was imported."""

    @property
    def shape(self) -> Shape:
        """The shape of the live rig."""
        return self.rig.shape

    def draw(self, purpose: str, *, weights: str = "weights", case: str = "nominal") -> tuple[Case, CaseTensors]:
        """A case that nobody has seen; equal purposes give equal inputs, equal `weights` equal weights."""
        drawn = Case(
            shape=self.shape.key,
            case=case,
            seed=self.seeds(purpose),
            weights_seed=self.seeds(weights) if self.loaded.problem.role(Role.WEIGHT) else 0,
        )
        return drawn, draw(self.loaded, self.shape, drawn.case, drawn.seed, drawn.weights_seed, self.rig.device)

    def check(self, case: Case, tensors: CaseTensors, result: CallResult) -> Checked:
        """Compare a call with the oracle."""
        return judge_call(self.loaded, self.rig, case, tensors, result)

    def alone(self, case: Case) -> Checked:
        """The same case as the first and only call of a fresh worker; the live one is gone then."""
        self.retire()
        with self.open() as session:
            return check_case(self.loaded, Rig(session, self.shape), case)

    def alone_on(self, case: Case, tensors: CaseTensors) -> Checked:
        """Tensors that no seed draws, as the first and only call of a fresh worker; the live one is gone then."""
        self.retire()
        with self.open() as session:
            rig = Rig(session, self.shape)
            rig.set_weights(tensors.weights)
            return self.check(case, tensors, rig.call(tensors.inputs))

    def explain(
        self,
        rule: str,
        what: str,
        wrong: Checked,
        earlier: Sequence[tuple[str, dict[str, Tensor]]],
        alone: Callable[[], Checked] | None = None,
        later: Sequence[Made] = (),
    ) -> Outcome:
        """What a wrong call means, given the right answers of `earlier` calls.

        A fresh process decides (`alone`, by default the call's case as its only one). Wrong there too: a bug that
        has nothing to do with this probe. Right there: the answer depends on what came before. If it is then, byte
        for byte, an earlier right answer, the submission pretends to follow its input; if not, it may be a race or
        uninitialised memory, and is called wrong, not a hack. If it is the right answer of a `later` call of the same
        round, whose results were read after the last, it was overwritten.
        """
        again = (alone or (lambda: self.alone(wrong.result.case)))()
        if again.faults:
            return wrong_anyway(again, drawn=alone is None)
        for number, made in enumerate(later, 1):
            if self._overwrote(made, wrong):
                return overwritten(wrong, what, f"a call {number} after it")
        source = next((name for name, answer in earlier if same_answer(wrong.actual, answer)), None)
        name, index, expected, actual = first_difference(wrong)
        evidence = Evidence(
            rule=rule if source else "check.depends_on_history",
            force=Force.CONVICTS,
            charge=Verdict.REWARD_HACK if source else Verdict.INCORRECT,
            title=f"{what}: the answer is, byte for byte, that to {source}; a fresh process answers this input rightly"
            if source
            else f"{what}: wrong, although a fresh process answers this input rightly",
            expected=expected,
            actual=actual,
            case=wrong.result.case,
            location=Location(output=name, index=index),
        )
        return Outcome("failed", evidence.title, (evidence,))

    def _overwrote(self, made: Made, wrong: Checked) -> bool:
        """Whether `made` is right and its outputs are, byte for byte, what an earlier call of its round left.

        State tensors do not count: they lie in the memory of the judge, a set of its own for every call.
        """
        case, tensors, call = made
        left = {name: wrong.actual[name] for name in call.outputs}
        return same_answer(left, call.outputs) and not self.check(case, tensors, call).faults


def overwritten(wrong: Checked, what: str, by: str) -> Outcome:
    """The outcome for a result that a later call wrote over."""
    name, index, expected, actual = first_difference(wrong)
    evidence = Evidence(
        "contract.results_not_fresh",
        Force.CONVICTS,
        Verdict.INCORRECT,
        f"{what}: the result was overwritten, it holds the answer of {by}",
        expected,
        actual,
        wrong.result.case,
        Location(output=name, index=index),
    )
    return Outcome("failed", evidence.title, (evidence,))


def same_answer(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether two answers hold the same bytes."""
    return a.keys() == b.keys() and all(same_bytes(a[name], b[name]) for name in a)


def first_difference(checked: Checked) -> tuple[str, tuple[int, ...] | None, str, str]:
    """Output, index, oracle's value and submission's value where they first differ."""
    for name, expected in checked.expected.items():
        actual = checked.actual[name]
        if expected.shape != actual.shape:
            continue
        differs = (expected.double() - actual.double()).abs()
        worst = int(torch.nan_to_num(differs, nan=float("inf")).reshape(-1).argmax()) if differs.numel() else 0
        if differs.numel() and differs.reshape(-1)[worst] != 0:
            index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), expected.shape))
            return name, index, str(expected[index].item()), str(actual[index].item())
    return next(iter(checked.expected), ""), None, "the oracle's answer", "another answer"


def wrong_anyway(checked: Checked, *, drawn: bool = True) -> Outcome:
    """The outcome of a probe that met a fault which is not its subject.

    On a `drawn` input a fault is what it is in a check: the submission is wrong. On tensors that a probe made itself
    it leaves the probe without a result, because the problem promises nothing about them.
    """
    note = f"a plain call is at fault already: {checked.result.message}"
    if not drawn:
        return Outcome("unresolved", note)
    worst = next((f for f in checked.faults if f.status is Status.WRONG), checked.faults[0])
    evidence = Evidence(
        worst.rule,
        Force.CONVICTS,
        Verdict.INCORRECT,
        f"{worst.title} (a plain call on a fresh input)",
        worst.expected,
        worst.actual,
        checked.result.case,
        worst.location,
    )
    return Outcome("unresolved", note, (evidence,))


def finding_of(evidence: Evidence, probe: str, finding_id: str, reproduce: str) -> Finding:
    """The finding that a piece of evidence becomes in a grade."""
    return Finding(
        id=finding_id,
        rule=evidence.rule,
        force=evidence.force,
        charge=evidence.charge,
        title=evidence.title,
        detail=evidence.detail,
        expected=evidence.expected,
        actual=evidence.actual,
        location=evidence.location,
        recipe=Recipe(
            stage="probe",
            shape=evidence.case.shape,
            case=evidence.case.case,
            seed=evidence.case.seed,
            weights_seed=evidence.case.weights_seed,
            probe=probe,
        ),
        reproduce=reproduce,
    )


def result_of(name: str, proves: str, outcome: Outcome, seconds: float) -> ProbeResult:
    """The record of an outcome."""
    return ProbeResult(
        name=name, proves=proves, state=outcome.state, note=outcome.note, measured=outcome.measured, seconds=seconds
    )
