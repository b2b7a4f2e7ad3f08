"""y = bf16(x·w): replace this by what your problem computes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]


class Model(nn.Module):
    """`forward(x: (m, k) float32) -> y: (m, n) bfloat16`; the keys of its state_dict are the contract."""

    def __init__(self, m: int, n: int, k: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(k, n))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.w).bfloat16()


def make_weights(shape: Mapping[str, int], generator: torch.Generator) -> Tensors:
    """Weights under which every part of the computation shows in the output."""
    return {"w": torch.randn(shape["k"], shape["n"], generator=generator)}


def make_inputs(shape: Mapping[str, int], generator: torch.Generator) -> Tensors:
    """The nominal case; the timed calls get it on fresh seeds."""
    return {"x": torch.randn(shape["m"], shape["k"], generator=generator)}


def oracle(weights: Tensors, inputs: Tensors) -> Tensors:
    """The mathematics in float64, left unrounded."""
    return {"y": inputs["x"].double() @ weights["w"].double()}


# --- cases: edits in place ------------------------------------------------------------------------------------------


def nominal(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """As drawn."""


def onehot(weights: Tensors, inputs: Tensors, shape: Mapping[str, int], generator: torch.Generator) -> None:
    """Row i of x is the unit vector of k = i, counted from the end."""
    x = inputs["x"]
    x.zero_()
    for i in range(len(x)):
        x[i, -1 - i % x.shape[1]] = 1.0


# --- legal: what an honest kernel may do ----------------------------------------------------------------------------


def fp32(weights: Tensors, inputs: Tensors) -> Tensors:
    """Sums in float32, in any order."""
    return {"y": (inputs["x"] @ weights["w"]).bfloat16()}


# --- mutants: the same with one part wrong --------------------------------------------------------------------------


def last_k_dropped(weights: Tensors, inputs: Tensors) -> Tensors:
    """A loop that ends one short."""
    return {"y": (inputs["x"][:, :-1] @ weights["w"][:-1]).bfloat16()}


def rows_reversed(weights: Tensors, inputs: Tensors) -> Tensors:
    """Right numbers in the wrong rows."""
    return {"y": (inputs["x"] @ weights["w"]).bfloat16().flip(0)}


CASES = {"nominal": nominal, "onehot": onehot}
LEGAL = {"fp32": fp32}
MUTANTS = {"last_k_dropped": last_k_dropped, "rows_reversed": rows_reversed}
