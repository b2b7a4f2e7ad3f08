"""Build an example that is a `Model` with native code beside it, and call it as the judge does."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kernelassay.decks import CaseTensors, LoadedProblem
from kernelassay.records import Role, Shape

from .native import ALWAYS, JUDGE_FLAGS, ROOT

METHODS = {"forward": "__call__", "rollout": "run"}
Tensors = dict[str, Tensor]


def import_example(example: str, folder: Path) -> type[nn.Module]:
    """Copy `examples/<example>` to `folder`, compile its kernel if it has one, import it and return its `Model`."""
    place = folder / example
    shutil.copytree(ROOT / "examples" / example, place)
    if (place / "kernel.cpp").exists():
        command = ["g++", *ALWAYS, *JUDGE_FLAGS, str(place / "kernel.cpp"), "-o", str(place / "libkernel.so")]
        subprocess.run(command, check=True, timeout=100)
    spec = importlib.util.spec_from_file_location(f"{example}_solution", place / "solution.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    model = module.Model
    assert isinstance(model, type) and issubclass(model, nn.Module)
    return model


class Live:
    """One model at one shape; weights go in by the documented route."""

    def __init__(self, cls: type[nn.Module], loaded: LoadedProblem, shape: Shape) -> None:
        self.model: Any = cls(**shape.values)
        self.problem = loaded.problem
        self.scalars = [shape.values[name] for name in loaded.problem.scalars]

    def set_weights(self, weights: Tensors) -> Live:
        slots = self.model.state_dict(keep_vars=True)
        assert set(slots) == {spec.name for spec in self.problem.role(Role.WEIGHT)}
        with torch.no_grad():
            for name, value in weights.items():
                assert slots[name].dtype == value.dtype and slots[name].shape == value.shape
                slots[name].copy_(value)
        if hasattr(self.model, "prepare"):
            self.model.prepare()
        return self

    def __call__(self, inputs: Tensors) -> Tensors:
        """Outputs and final state; state tensors are changed in place, inputs must not be."""
        state = [spec.name for spec in self.problem.role(Role.STATE)]
        before = {name: tensor.clone() for name, tensor in inputs.items() if name not in state}
        call: Callable[..., Any] = getattr(self.model, METHODS[self.problem.entry.value])
        with torch.no_grad():
            result = call(*inputs.values(), *self.scalars)
        results = result if isinstance(result, tuple) else (result,)
        for name, tensor in before.items():
            assert torch.equal(inputs[name], tensor), f"{name} was written"
        outputs = dict(zip((spec.name for spec in self.problem.role(Role.OUTPUT)), results, strict=True))
        return {**outputs, **{name: inputs[name].clone() for name in state}}


def best_time(live: Live, tensors: CaseTensors, calls: int = 5) -> float:
    """Seconds of the fastest of several calls, each on its own copy of the inputs."""
    times = []
    for _ in range(calls):
        inputs = tensors.clone().inputs
        started = time.perf_counter()
        live(inputs)
        times.append(time.perf_counter() - started)
    return min(times)
