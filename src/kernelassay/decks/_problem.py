"""A problem as loaded and a case as drawn: what the judge, the comparators and lint hand around."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from kernelassay.decks._reference import Reference
from kernelassay.records import Edition, Problem, Shape


@dataclass(frozen=True)
class LoadedProblem:
    """A problem's record together with its trusted code."""

    problem: Problem
    folder: Path
    content_hash: str
    """SHA-256 over the problem's files, hexadecimal."""
    prompt: str
    """What an agent is told, Markdown."""
    reference: Reference
    edition: Edition = Edition.UNFROZEN


@dataclass(frozen=True)
class CaseTensors:
    """What one case feeds to a call; every tensor contiguous and on one device."""

    shape: Shape
    case: str
    seed: int
    weights_seed: int
    weights: dict[str, Tensor]
    """Role `weight`, in declared order."""
    inputs: dict[str, Tensor]
    """Roles `input` and `state`, in the order of the call's arguments."""

    @property
    def device(self) -> str:
        """Kind of the device that holds them: `cpu`, `cuda`."""
        return next(iter(self.inputs.values())).device.type

    def clone(self) -> CaseTensors:
        """The same case in fresh memory."""
        return CaseTensors(
            shape=self.shape,
            case=self.case,
            seed=self.seed,
            weights_seed=self.weights_seed,
            weights={name: tensor.clone() for name, tensor in self.weights.items()},
            inputs={name: tensor.clone() for name, tensor in self.inputs.items()},
        )
