"""What every comparator shares: the result, and the checks that come before any number.

The rule: before anything is computed an output exists, has the declared dtype and size, and is finite wherever the
oracle is. A NaN matches nothing, and an infinity only itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelassay.decks._problem import CaseTensors, LoadedProblem
from kernelassay.decks.comparators._where import describe
from kernelassay.records import TensorSpec, extent


@dataclass(frozen=True)
class Mismatch:
    """One rule that an output breaks, shown at the first place where it does."""

    rule: str
    """Dotted: `output.dtype`, `selection.values`, `normalised.group`, …"""
    output: str
    message: str
    index: tuple[int, ...] | None = None
    """In the output's own axes; None where the rule speaks of the whole output."""
    expected: str | None = None
    actual: str | None = None


@dataclass(frozen=True)
class Likeness:
    """Whose error a wrong answer has."""

    mutant: str
    """The mutant's name; several that give the same answer are joined by ` or `."""
    cosine: float | None = None
    """Of the two residuals; None where integers alone were compared."""


@dataclass(frozen=True)
class Comparison:
    """What comparing one case gave."""

    usage: float
    """Largest share of the tolerance that was used; infinite where an exact rule broke."""
    mismatches: tuple[Mismatch, ...] = ()
    where: str = ""
    """For a reader: `rows 3 and 7 of 16, columns 60–63 of 64`; empty where all is well or nothing is located."""

    @property
    def passed(self) -> bool:
        """No rule is broken and the tolerance holds."""
        return not self.mismatches and self.usage <= 1.0


def refused(mismatches: list[Mismatch], where: str = "") -> Comparison:
    """A comparison that an exact rule ended."""
    return Comparison(usage=math.inf, mismatches=tuple(mismatches), where=where)


def judged_specs(loaded: LoadedProblem, expected: dict[str, Tensor]) -> list[TensorSpec]:
    """The tensors that are judged: those of `problem.yaml` which the oracle gave, in declared order."""
    return [spec for spec in loaded.problem.tensors if spec.name in expected]


def precheck(
    loaded: LoadedProblem, tensors: CaseTensors, expected: dict[str, Tensor], actual: dict[str, Tensor]
) -> list[Mismatch]:
    """Presence, dtype and size of every judged tensor."""
    found = []
    for spec in judged_specs(loaded, expected):
        result = actual.get(spec.name)
        if not isinstance(result, Tensor):
            found.append(Mismatch("output.missing", spec.name, f"{spec.name} was not returned"))
            continue
        size = extent(spec, tensors.shape)
        dtype = str(result.dtype).removeprefix("torch.")
        if tuple(result.shape) != size:
            found.append(
                Mismatch("output.shape", spec.name, f"{spec.name} has another shape", None, str(size), _size(result))
            )
        if dtype != spec.dtype:
            found.append(Mismatch("output.dtype", spec.name, f"{spec.name} has another dtype", None, spec.dtype, dtype))
    unknown = sorted(set(actual) - {spec.name for spec in loaded.problem.tensors})
    found += [Mismatch("output.unknown", name, f"{name} is no output of {loaded.problem.name}") for name in unknown]
    return found


def _size(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))


def first_index(wrong: Tensor) -> tuple[int, ...]:
    """Index of the first True in row-major order; `wrong` holds one."""
    flat = int(wrong.flatten().to(torch.uint8).argmax())
    index = []
    for size in reversed(wrong.shape):
        flat, at = divmod(flat, size)
        index.append(at)
    return tuple(reversed(index))


def show(tensor: Tensor, index: tuple[int, ...]) -> str:
    """One element for a reader: enough digits to tell neighbouring numbers apart."""
    value = tensor[index]
    if not value.dtype.is_floating_point:
        return str(value.item())
    return f"{value.item():.17g}" if value.dtype == torch.float64 else f"{value.to(torch.float32).item():.9g}"


def located(rule: str, output: str, message: str, wrong: Tensor, expected: Tensor, actual: Tensor) -> Mismatch:
    """A mismatch at the first True of `wrong`; all three tensors have the output's shape."""
    index = first_index(wrong)
    return Mismatch(rule, output, message, index, show(expected, index), show(actual, index))


def nonfinite(name: str, expected: Tensor, actual: Tensor) -> tuple[list[Mismatch], Tensor]:
    """Where a float output is not finite though the oracle is, or differs from the oracle's own infinity.

    Returns:
        The mismatches (none or one) and the mask of offending elements.
    """
    r, y = expected.to(torch.float64), actual.to(torch.float64)
    wrong = torch.where(r.isfinite(), ~y.isfinite(), y != r)
    if not bool(wrong.any()):
        return [], wrong
    text = f"{int(wrong.sum())} of {wrong.numel()} elements of {name} are not finite where the oracle is"
    return [located("output.nonfinite", name, text, wrong, expected, actual)], wrong


def where_in(masks: dict[str, Tensor]) -> str:
    """Describe the wrong elements of one or several outputs."""
    texts = {name: describe(mask) for name, mask in masks.items()}
    texts = {name: text for name, text in texts.items() if text}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{name}: {text}" for name, text in texts.items())
