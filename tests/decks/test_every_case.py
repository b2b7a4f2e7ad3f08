"""Every case of every problem is a function of its two seeds, on this kind of device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernelassay.decks import _draw as module
from kernelassay.decks import draw, load, problem_names
from kernelassay.records import Tier


def flat(tensors: dict[str, Tensor]) -> Tensor:
    parts = [tensor.flatten().view(torch.uint8) for tensor in tensors.values()]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)


@pytest.mark.slow
@pytest.mark.parametrize("name", problem_names())
def test_one_seed_one_case(name: str) -> None:
    loaded = load(name)
    for shape in loaded.problem.tier(Tier.SMALL):
        for case in loaded.problem.cases:
            first = draw(loaded, shape, case.name, 71, 72)
            module._last_weights.clear()  # so that weights are drawn anew
            again = draw(loaded, shape, case.name, 71, 72)
            assert torch.equal(flat(first.inputs), flat(again.inputs)), (shape.key, case.name)
            assert torch.equal(flat(first.weights), flat(again.weights)), (shape.key, case.name)
