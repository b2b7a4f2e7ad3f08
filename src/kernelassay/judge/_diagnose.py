"""Diagnosis of a wrong answer: where, whether it repeats, whether it depends on recycled memory, whose error it is.

Informs only. A submission that is wrong stays wrong; its author should not have to guess why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernelassay.decks import Likeness, LoadedProblem, attribute
from kernelassay.records import Measurement
from kernelassay.sandbox import Sandbox
from kernelassay.session import Checked, Job, Rig, Session, Trouble, check_case, same_bytes

PERTURB = "165"
"""`MALLOC_PERTURB_`: glibc fills fresh memory with the complement of this byte and freed memory with it."""


@dataclass(frozen=True)
class Diagnosis:
    """What is known about the first wrong case."""

    where: str
    repeats: bool | None
    """The same call again gives the same bytes; None when it could not be tried."""
    poison_matters: bool | None
    """With poisoned fresh memory the answer is another one; None when it could not be tried."""
    like: Likeness | None
    """The mutant of the problem whose error this is."""

    def measurements(self) -> tuple[Measurement, ...]:
        """The same as named values."""
        known = {
            "where": self.where or None,
            "same_input_same_bytes": self.repeats,
            "depends_on_uninitialised_memory": self.poison_matters,
            "same_error_as_mutant": None if self.like is None else self.like.mutant,
        }
        return tuple(Measurement(name=k, value=v) for k, v in known.items() if v is not None)


def diagnose(loaded: LoadedProblem, sandbox: Sandbox, job: Job, rig: Rig, wrong: Checked) -> Diagnosis:
    """Repeat a wrong case on the live worker, end it, and try a fresh one whose memory is poisoned."""
    repeats = _repeats(loaded, rig, wrong)
    tensors = wrong.tensors
    like = attribute(loaded, tensors, wrong.expected, wrong.actual) if tensors and wrong.expected else None
    poisoned = replace(job, env={**job.env, "MALLOC_PERTURB_": PERTURB})
    matters = None
    if repeats and rig.device == "cpu":  # the allocator's perturbation does not reach a GPU's memory
        rig.session.close()  # one submission process at a time
        try:
            with Session(sandbox, poisoned) as session:
                session.load()
                again = check_case(loaded, Rig(session, rig.shape), wrong.result.case)
                matters = not _same(wrong, again)
        except Trouble:
            matters = True
    return Diagnosis(wrong.where, repeats, matters, like)


def _repeats(loaded: LoadedProblem, rig: Rig, wrong: Checked) -> bool | None:
    try:
        return _same(wrong, check_case(loaded, rig, wrong.result.case))
    except Trouble:
        return None


def _same(a: Checked, b: Checked) -> bool:
    return all(same_bytes(a.actual[name], b.actual[name]) for name in a.actual)
