"""The plain torch example is right on every case."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from .native import ROOT, why_wrong
from .topk_cases import CASES, FULL_PLUS, SMALL, Shape, draw


@pytest.fixture(scope="module")
def solution() -> ModuleType:
    spec = importlib.util.spec_from_file_location("topk_torch_solution", ROOT / "examples/topk_torch/solution.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("shape", [*SMALL, *FULL_PLUS], ids=str)
def test_every_case(solution: ModuleType, shape: Shape) -> None:
    batch, n, k = shape
    model = solution.Model(batch=batch, n=n, k=k)
    assert not model.state_dict()
    for case in CASES:
        x = draw(case, shape)
        assert why_wrong(x, k, *model(x)) is None, case
