"""Comparator `selection`: the k largest of each row, exactly, with ties free.

The rules, for input x (rows, n), values (rows, k) and indices (rows, k):

- `selection.values`: values equal the sorted reference as floats (−0 equals +0; denormals count);
- `selection.indices_range`: every index lies in [0, n);
- `selection.indices_gather`: x[row, index] equals the value bitwise;
- `selection.indices_distinct`: no index occurs twice in a row.

Nothing else is asked: any index set and any order among equal values is right. Numbers are compared by their bits, so
the floating-point mode of the process (flush to zero) cannot blur a denormal.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernelassay.decks._error import DeckError
from kernelassay.decks._problem import CaseTensors, LoadedProblem
from kernelassay.decks.comparators._common import (
    Comparison,
    Likeness,
    Mismatch,
    located,
    precheck,
    refused,
    where_in,
)
from kernelassay.records import Role

_INTEGER = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


def compare(
    loaded: LoadedProblem, tensors: CaseTensors, expected: dict[str, Tensor], actual: dict[str, Tensor]
) -> Comparison:
    """Judge one case; usage is 0 or infinite.

    Raises:
        DeckError: the problem is no selection (one input; outputs values and int64 indices).
    """
    x, values_name, indices_name = _roles(loaded, tensors)
    found = precheck(loaded, tensors, expected, actual)
    if found:
        return refused(found)
    values, indices = actual[values_name], actual[indices_name]
    reference = expected[values_name]
    n = x.shape[-1]

    wrong_value = _canonical(values) != _canonical(reference)
    outside = (indices < 0) | (indices >= n)
    there = x.gather(-1, indices.clamp(0, n - 1))
    elsewhere = ~outside & (_bits(there) != _bits(values))
    again = _repeated(indices)

    masks = {values_name: wrong_value, indices_name: outside | elsewhere | again}
    if wrong_value.any():
        text = _count(wrong_value, "values differ from the sorted reference")
        found.append(located("selection.values", values_name, text, wrong_value, reference, values))
    if outside.any():
        text = _count(outside, f"indices lie outside [0, {n})")
        bound = torch.full_like(indices, n - 1)
        mismatch = located("selection.indices_range", indices_name, text, outside, bound, indices)
        found.append(Mismatch(mismatch.rule, indices_name, text, mismatch.index, f"0 to {n - 1}", mismatch.actual))
    if elsewhere.any():
        text = _count(elsewhere, "indices point at another number than the value beside them")
        found.append(located("selection.indices_gather", indices_name, text, elsewhere, values, there))
    if again.any():
        text = _count(again, "indices occurred before in their row")
        mismatch = located("selection.indices_distinct", indices_name, text, again, indices, indices)
        found.append(
            Mismatch(mismatch.rule, indices_name, text, mismatch.index, "an index not yet used", mismatch.actual)
        )
    return refused(found, where_in(masks)) if found else Comparison(usage=0.0)


def attribute(
    loaded: LoadedProblem, tensors: CaseTensors, expected: dict[str, Tensor], actual: dict[str, Tensor]
) -> Likeness | None:
    """The mutants that give the submission's answer on every row where it is wrong, joined by ` or `; None if none."""
    x, values_name, indices_name = _roles(loaded, tensors)
    result = compare(loaded, tensors, expected, actual)
    if result.passed or any(m.rule not in _ATTRIBUTABLE for m in result.mismatches):
        return None
    form = {name: (tensor.shape, tensor.dtype) for name, tensor in actual.items()}
    answers = {
        name: mutant(tensors.weights, tensors.inputs, tensors.shape)
        for name, mutant in loaded.reference.mutants.items()
    }
    alike = {
        name: answer
        for name, answer in answers.items()
        if {output: (tensor.shape, tensor.dtype) for output, tensor in answer.items()} == form
    }
    if not alike:
        return None
    rows = _wrong_rows(x, expected[values_name], actual[values_name], actual[indices_name])
    same = [name for name, answer in alike.items() if _same_answer(x, answer, actual, values_name, indices_name, rows)]
    return Likeness(" or ".join(same)) if same else None


_ATTRIBUTABLE = (
    "selection.values",
    "selection.indices_range",
    "selection.indices_gather",
    "selection.indices_distinct",
    "output.dtype",
)


def _same_answer(
    x: Tensor,
    answer: dict[str, Tensor],
    actual: dict[str, Tensor],
    values_name: str,
    indices_name: str,
    rows: Tensor,
) -> bool:
    """Equal values, and indices that are equal or stand for equal numbers, on `rows` (all of them if it is empty)."""
    pick = rows if bool(rows.any()) else torch.ones_like(rows)
    if not torch.equal(_bits(answer[values_name])[pick], _bits(actual[values_name])[pick]):
        return False
    left, right = answer[indices_name][pick].to(torch.int64), actual[indices_name][pick].to(torch.int64)
    n = x.shape[-1]
    inside = (left >= 0) & (left < n) & (right >= 0) & (right < n)
    at_left = _bits(x[pick].gather(-1, left.clamp(0, n - 1)))
    at_right = _bits(x[pick].gather(-1, right.clamp(0, n - 1)))
    alike = torch.where(inside, at_left == at_right, left == right)
    return bool(alike.all()) and torch.equal(_repeated(left).any(-1), _repeated(right).any(-1))


def _wrong_rows(x: Tensor, reference: Tensor, values: Tensor, indices: Tensor) -> Tensor:
    n = x.shape[-1]
    indices = indices.to(torch.int64)
    there = x.gather(-1, indices.clamp(0, n - 1))
    wrong = (_canonical(values) != _canonical(reference)) if values.dtype == reference.dtype else None
    rule = (indices < 0) | (indices >= n) | _repeated(indices)
    if wrong is not None:
        rule = rule | wrong | (_bits(there) != _bits(values))
    return rule.any(-1)


def _roles(loaded: LoadedProblem, tensors: CaseTensors) -> tuple[Tensor, str, str]:
    problem = loaded.problem
    inputs, outputs = problem.role(Role.INPUT), problem.role(Role.OUTPUT)
    if (
        len(inputs) != 1
        or len(outputs) != 2
        or outputs[0].dtype != inputs[0].dtype
        or outputs[1].dtype != "int64"
        or tensors.inputs[inputs[0].name].dtype not in _INTEGER
    ):
        raise DeckError(
            f"{loaded.folder / 'problem.yaml'}: comparator 'selection' needs one float input, then outputs values (of "
            f"its dtype) and indices (int64); correct it, then run: assay deck lint {problem.name}"
        )
    return tensors.inputs[inputs[0].name], outputs[0].name, outputs[1].name


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(_INTEGER[tensor.dtype])


def _canonical(tensor: Tensor) -> Tensor:
    """Bits with −0 read as +0."""
    bits = _bits(tensor)
    return torch.where(bits == torch.iinfo(bits.dtype).min, torch.zeros_like(bits), bits)


def _repeated(indices: Tensor) -> Tensor:
    """True at each place whose index stands at an earlier place of its row already."""
    order = indices.argsort(dim=-1, stable=True)
    ordered = indices.gather(-1, order)
    again = torch.zeros_like(ordered, dtype=torch.bool)
    again[..., 1:] = ordered[..., 1:] == ordered[..., :-1]
    return torch.zeros_like(again).scatter_(-1, order, again)


def _count(wrong: Tensor, text: str) -> str:
    return f"{int(wrong.sum())} of {wrong.numel()} {text}"
