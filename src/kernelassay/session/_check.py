"""One case: draw, call, compare. The judge compares private snapshots with private copies of its inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kernelassay.decks import WITHOUT_ORACLE, CaseTensors, Comparison, LoadedProblem, compare, draw, expect
from kernelassay.records import Case, CaseResult, Location, Role, Status, TensorSpec, extent
from kernelassay.session._rig import CallResult, OutputFact, Rig
from kernelassay.session._slab import same_bytes


@dataclass(frozen=True)
class Fault:
    """One thing that a case showed."""

    status: Status
    """`wrong` or `contract`."""
    rule: str
    title: str
    expected: str
    actual: str
    location: Location | None = None


@dataclass(frozen=True)
class Checked:
    """What one case gave, with what a diagnosis needs."""

    result: CaseResult
    faults: tuple[Fault, ...]
    tensors: CaseTensors | None
    """What the case was drawn as; None once only its result is kept."""
    expected: dict[str, Tensor] = field(repr=False)
    """The oracle's answer; empty where nothing was compared with it."""
    actual: dict[str, Tensor] = field(repr=False)
    where: str = ""

    def told(self) -> Checked:
        """The same without tensors."""
        return replace(self, tensors=None, expected={}, actual={})


def check_case(loaded: LoadedProblem, rig: Rig, case: Case) -> Checked:
    """Run one case on a live worker and compare it with the oracle.

    Raises:
        kernelassay.session.Trouble: the call did not return.
    """
    tensors = draw(loaded, rig.shape, case.case, case.seed, case.weights_seed, rig.device)
    rig.set_weights(tensors.weights)
    called = rig.call(tensors.inputs)
    return judge_call(loaded, rig, case, tensors, called)


def judge_call(loaded: LoadedProblem, rig: Rig, case: Case, tensors: CaseTensors, called: CallResult) -> Checked:
    """Compare what a call left with the oracle."""
    problem = loaded.problem
    faults = [*_returned(problem.role(Role.OUTPUT), rig, called.facts), *_mutated(loaded, tensors, called)]
    actual = dict(called.outputs) | {t.name: called.arguments[t.name] for t in problem.role(Role.STATE)}
    expected: dict[str, Tensor] = {}
    usage, where = None, ""
    # Only a fault excuses from the comparison: whatever else the worker claims, its bytes are compared.
    if not any(f.status is Status.WRONG or f.rule in UNREADABLE for f in faults):
        if problem.comparator in WITHOUT_ORACLE:
            comparison = compare(loaded, tensors, actual, actual)
            expected = expect(loaded, tensors) if comparison.mismatches else {}
        else:
            expected = expect(loaded, tensors)
            comparison = _IDENTICAL if _identical(expected, actual) else compare(loaded, tensors, expected, actual)
        faults += _mismatches(comparison)
        usage, where = comparison.usage if math.isfinite(comparison.usage) else None, comparison.where
    wrong = [f for f in faults if f.status is Status.WRONG]
    worst = next(iter(wrong or faults), None)
    result = CaseResult(
        case=case,
        status=Status.CORRECT if worst is None else worst.status,
        usage=usage,
        message="" if worst is None else worst.title,
        call_us=called.inner_us,
    )
    return Checked(result, tuple(faults), tensors, expected, actual, where)


PLACES = {"cpu": "cpu", "cuda": "cuda:0"}
"""Kind of device → what a worker, which sees one device, calls it."""
UNREADABLE = frozenset({"contract.plain_tensor", "contract.lazy_view"})
"""Faults of a returned object whose memory does not hold its values."""

_IDENTICAL = Comparison(usage=0.0, mismatches=(), where="")


def _identical(expected: dict[str, Tensor], actual: dict[str, Tensor]) -> bool:
    """Whether everything holds the oracle's very bytes, which no comparator can refuse; most timed calls end here."""
    return expected.keys() == actual.keys() and all(
        value.dtype == actual[name].dtype and value.shape == actual[name].shape and same_bytes(value, actual[name])
        for name, value in expected.items()
    )


def _mismatches(comparison: Comparison) -> list[Fault]:
    return [
        Fault(
            Status.WRONG,
            f"check.{m.rule}",
            m.message,
            m.expected if m.expected is not None else "the oracle's value",
            m.actual if m.actual is not None else "another value",
            Location(output=m.output, index=m.index),
        )
        for m in comparison.mismatches
    ]


def _returned(specs: tuple[TensorSpec, ...], rig: Rig, facts: tuple[OutputFact, ...]) -> list[Fault]:
    """Faults of the returned objects themselves, by the worker's description (a lie here only spoils the bytes)."""
    if len(facts) != len(specs):
        return [
            Fault(
                Status.WRONG,
                "check.outputs.count",
                f"returned {len(facts)} results, the problem has {len(specs)}",
                ", ".join(s.name for s in specs),
                f"{len(facts)} results",
            )
        ]
    faults = []
    for spec, fact in zip(specs, facts, strict=True):
        sizes = extent(spec, rig.shape)
        where = Location(output=spec.name)

        def fault(status: Status, rule: str, what: str, expected: str, actual: str, where: Location = where) -> Fault:
            return Fault(status, rule, f"{where.output}: {what}", expected, actual, where)

        if fact.type != "torch.Tensor":
            faults.append(
                fault(Status.CONTRACT, "contract.plain_tensor", "not a plain torch.Tensor", "torch.Tensor", fact.type)
            )
        elif fact.dtype != spec.dtype:
            faults.append(fault(Status.WRONG, "check.outputs.dtype", f"dtype {fact.dtype}", spec.dtype, fact.dtype))
        elif fact.shape != sizes:
            faults.append(
                fault(Status.WRONG, "check.outputs.shape", f"shape {fact.shape}", str(sizes), str(fact.shape))
            )
        elif fact.device != (device := PLACES[rig.device]):
            faults.append(fault(Status.WRONG, "check.outputs.device", f"on device {fact.device}", device, fact.device))
        elif fact.lazy:
            faults.append(
                fault(
                    Status.CONTRACT,
                    "contract.lazy_view",
                    "a lazy conjugate or negative view",
                    "computed values",
                    "a lazy view",
                )
            )
        elif not fact.contiguous:
            faults.append(
                fault(
                    Status.WRONG,
                    "check.outputs.strides",
                    "not contiguous",
                    "row-major, contiguous",
                    f"strides {fact.strides}",
                )
            )
        elif fact.aliases_input:
            faults.append(
                fault(
                    Status.CONTRACT,
                    "contract.aliases_input",
                    "lies in the memory of an input",
                    "fresh memory",
                    "a view of an input",
                )
            )
    return faults


def _mutated(loaded: LoadedProblem, tensors: CaseTensors, called: CallResult) -> list[Fault]:
    faults = []
    for spec in loaded.problem.role(Role.INPUT):
        before, after = tensors.inputs[spec.name], called.arguments[spec.name]
        if not same_bytes(before, after):
            # By bytes: torch compares no 8-bit floats on a CPU, and a NaN differs from itself.
            changed = (before.reshape(-1).view(torch.uint8) != after.reshape(-1).view(torch.uint8)).nonzero()
            first = int(changed[0]) // before.element_size()
            faults.append(
                Fault(
                    Status.CONTRACT,
                    "contract.inputs_mutated",
                    f"the call changed its input {spec.name}",
                    str(before.reshape(-1)[first].item()),
                    str(after.reshape(-1)[first].item()),
                    Location(output=spec.name),
                )
            )
    return faults
