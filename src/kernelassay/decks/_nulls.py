"""Null submissions: answers that cost nothing and compute nothing, one function each.

The rule: each must fail the nominal case of every small shape, for that is the case whose calls are timed. One that has
no meaning for a problem returns None and is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelassay.decks._problem import CaseTensors, LoadedProblem
from kernelassay.records import Role, TensorSpec

TAIL_SHARE = 8
"""`truncated_tail` loses the last eighth of the last axis, at least one element."""


@dataclass(frozen=True)
class NullContext:
    """What a null may look at."""

    loaded: LoadedProblem
    tensors: CaseTensors
    right: dict[str, Tensor]
    """The oracle's answer in the declared dtypes."""
    stale: dict[str, Tensor]
    """The right answer of another draw of the same case."""


Null = Callable[[NullContext], dict[str, Tensor] | None]


def as_declared(loaded: LoadedProblem, answer: dict[str, Tensor]) -> dict[str, Tensor]:
    """The oracle's answer rounded to the declared dtypes."""
    dtypes = {spec.name: torch_dtype(spec) for spec in loaded.problem.tensors}
    return {name: tensor.to(dtypes[name]) for name, tensor in answer.items()}


def torch_dtype(spec: TensorSpec) -> torch.dtype:
    """Torch's dtype of a declared name."""
    dtype = getattr(torch, spec.dtype)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{spec.dtype} is no dtype of torch")
    return dtype


def _outputs(context: NullContext) -> tuple[TensorSpec, ...]:
    return context.loaded.problem.role(Role.OUTPUT)


def _with_idle_state(context: NullContext, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """State as it was before the call, where the oracle judges it: a null advances nothing."""
    idle = {name: context.tensors.inputs[name].clone() for name in context.right if name not in outputs}
    return {**outputs, **idle}


def zeros(context: NullContext) -> dict[str, Tensor] | None:
    return _with_idle_state(
        context, {spec.name: torch.zeros_like(context.right[spec.name]) for spec in _outputs(context)}
    )


def constant(context: NullContext) -> dict[str, Tensor] | None:
    return _with_idle_state(
        context, {spec.name: torch.ones_like(context.right[spec.name]) for spec in _outputs(context)}
    )


def copy_of_input(context: NullContext) -> dict[str, Tensor] | None:
    """The beginning of an input in place of each output; positions 0, 1, 2, … where an integer is due and none came."""
    inputs = list(context.tensors.inputs.values())
    outputs = {}
    for spec in _outputs(context):
        right = context.right[spec.name]
        kind = [tensor for tensor in inputs if tensor.is_floating_point() == right.is_floating_point()]
        if kind:
            outputs[spec.name] = _beginning(kind[0], right)
        elif not right.is_floating_point() and right.ndim:
            outputs[spec.name] = torch.arange(right.shape[-1]).to(right.dtype).expand(right.shape).contiguous()
        else:
            return None
    return _with_idle_state(context, outputs)


def _beginning(source: Tensor, like: Tensor) -> Tensor:
    if source.ndim == like.ndim and all(a >= b for a, b in zip(source.shape, like.shape, strict=True)):
        part = source[tuple(slice(size) for size in like.shape)]
        return part.to(like.dtype).contiguous()
    flat = source.flatten()
    return flat.repeat(-(-like.numel() // max(1, flat.numel())))[: like.numel()].to(like.dtype).reshape(like.shape)


def identity(context: NullContext) -> dict[str, Tensor] | None:
    """Applies where every output has the size of some input."""
    outputs = {}
    for spec in _outputs(context):
        right = context.right[spec.name]
        same = [tensor for tensor in context.tensors.inputs.values() if tensor.shape == right.shape]
        if not same:
            return None
        outputs[spec.name] = same[0].to(right.dtype, copy=True)
    return _with_idle_state(context, outputs)


def stale_first_answer(context: NullContext) -> dict[str, Tensor] | None:
    return dict(context.stale)


def wrong_dtype(context: NullContext) -> dict[str, Tensor] | None:
    """The right answer in another dtype."""
    another = {spec.name: _another(context.right[spec.name].dtype) for spec in _outputs(context)}
    return {name: tensor.to(another.get(name, tensor.dtype)) for name, tensor in context.right.items()}


def _another(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_floating_point:
        return torch.float32 if dtype is not torch.float32 else torch.float64
    return torch.int32 if dtype is not torch.int32 else torch.int64


def truncated_tail(context: NullContext) -> dict[str, Tensor] | None:
    """The right answer with the end of every output's last axis left at zero."""
    outputs = dict(context.right)
    for spec in _outputs(context):
        right = context.right[spec.name]
        if not right.ndim or not right.shape[-1]:
            return None
        cut = right.clone()
        cut[..., -max(1, right.shape[-1] // TAIL_SHARE) :] = 0
        outputs[spec.name] = cut
    return outputs


NULLS: dict[str, Null] = {
    "zeros": zeros,
    "constant": constant,
    "copy_of_input": copy_of_input,
    "identity": identity,
    "stale_first_answer": stale_first_answer,
    "wrong_dtype": wrong_dtype,
    "truncated_tail": truncated_tail,
}
