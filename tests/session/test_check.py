"""What a call must leave alone is compared byte by byte, whatever its dtype."""

from __future__ import annotations

import pytest
import torch

from kernelassay.decks import draw, load
from kernelassay.records import Role, Status, Tier
from kernelassay.session import CallResult
from kernelassay.session._check import _mutated


@pytest.mark.parametrize("problem", ["ops/topk", "ops/fp8_gemm", "ops/w4a16_gemm"])
def test_one_changed_byte_of_an_input_is_found(problem: str) -> None:
    loaded = load(problem)
    tensors = draw(loaded, loaded.problem.tier(Tier.SMALL)[0], "nominal", 1, 2)
    same = CallResult((), {}, {name: value.clone() for name, value in tensors.inputs.items()}, 0.0)
    assert _mutated(loaded, tensors, same) == []
    for spec in loaded.problem.role(Role.INPUT):
        arguments = {name: value.clone() for name, value in tensors.inputs.items()}
        flat = arguments[spec.name].reshape(-1).view(torch.uint8)
        flat[-1] ^= 1
        fault, *more = _mutated(loaded, tensors, CallResult((), {}, arguments, 0.0))
        assert (fault.status, fault.rule, more) == (Status.CONTRACT, "contract.inputs_mutated", [])
        assert fault.location is not None and fault.location.output == spec.name
        assert spec.name in fault.title
