"""The four public entry forms, each adapted onto one internal ABI.

Internal ABI: `bind(arguments, scalars)` gives a callable without arguments that returns the tuple of outputs;
`arguments` maps each input and state tensor's name to a tensor. State tensors are changed in place; outputs are
fresh tensors.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

MODULE_NAME = "assay_submission"
METHODS = {"forward": "__call__", "step": "step", "rollout": "run"}
"""Entry of the problem → method that the judge calls."""
POISON = 0xFF
"""Byte that destination-passing outputs are filled with: NaN in every float format, −1 in every signed integer."""


class EntryMissing(Exception):
    """The submission does not define what its entry needs."""


class WeightsMismatch(Exception):
    """The model's state_dict is not the one of the reference."""


Bound = Callable[[], tuple[Any, ...]]
"""One call, ready: whatever the judge adds to it was done before, so that a clock around it times the submission."""


class Adapter(Protocol):
    """One live entry at one shape."""

    def set_weights(self, weights: Mapping[str, Tensor], only: list[str] | None) -> None:
        """Change weights by the documented route; `only` names a subset, None means all."""

    def get_weights(self) -> Mapping[str, Tensor]:
        """The weights as they are now, by name."""

    def prepare(self) -> bool:
        """Call the submission's `prepare()`; False when it has none."""

    def bind(self, arguments: Mapping[str, Tensor], scalars: list[int]) -> Bound:
        """One call on these tensors, to be made once; it returns what the submission returned, as a tuple."""


def import_submission(folder: Path, file: str) -> ModuleType:
    """Import `file` by location under a private name; the folder comes last on the import path.

    Last, so that a sidecar can be imported but none can shadow a module of the standard library or torch.

    Raises:
        EntryMissing: no such file.
    """
    path = folder / file
    if not path.is_file():
        raise EntryMissing(f"no file {file!r} in the submission")
    sys.path.append(str(folder))
    spec = importlib.util.spec_from_file_location(MODULE_NAME, path)
    if spec is None or spec.loader is None:
        raise EntryMissing(f"{file!r} is no Python source")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE_NAME] = module
    spec.loader.exec_module(module)
    return module


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


class ModelAdapter:
    """`class Model` or `ModelNew(nn.Module)`."""

    def __init__(
        self, module: ModuleType, entry: str, shape: Mapping[str, int], weight_names: list[str], device: str = "cpu"
    ) -> None:
        cls = getattr(module, "ModelNew", None) or getattr(module, "Model", None)
        if cls is None:
            raise EntryMissing("the file defines neither class Model nor class ModelNew")
        self._model = _construct(cls, shape, device)
        method = getattr(self._model, METHODS[entry], None)
        if method is None:
            raise EntryMissing(f"class {cls.__name__} has no method {METHODS[entry]!r}, which entry {entry!r} calls")
        self._call: Callable[..., Any] = method
        self._weight_names = weight_names

    def _slots(self) -> dict[str, Tensor]:
        if not self._weight_names:
            return {}
        if not isinstance(self._model, nn.Module):
            raise WeightsMismatch("the problem has weights, so Model must be an nn.Module")
        slots = dict(self._model.state_dict(keep_vars=True))
        missing = sorted(set(self._weight_names) - set(slots))
        if missing:
            raise WeightsMismatch(
                f"state_dict lacks {', '.join(missing)}; it has {', '.join(sorted(slots)) or 'nothing'}"
            )
        return slots

    def set_weights(self, weights: Mapping[str, Tensor], only: list[str] | None) -> None:
        slots = self._slots()
        with torch.no_grad():
            for name in self._weight_names if only is None else only:
                slot, value = slots[name], weights[name]
                if slot.shape != value.shape or slot.dtype != value.dtype:
                    told = f"{value.dtype} {tuple(value.shape)}"
                    raise WeightsMismatch(f"{name} is {slot.dtype} {tuple(slot.shape)}, the contract says {told}")
                slot.copy_(value)

    def get_weights(self) -> Mapping[str, Tensor]:
        return self._slots()

    def prepare(self) -> bool:
        prepare = getattr(self._model, "prepare", None)
        if not callable(prepare):
            return False
        prepare()
        return True

    def bind(self, arguments: Mapping[str, Tensor], scalars: list[int]) -> Bound:
        method, values = self._call, (*arguments.values(), *scalars)
        return lambda: _as_tuple(method(*values))


def _construct(cls: Any, shape: Mapping[str, int], device: str) -> Any:
    """The model on its device: what the constructor makes without naming one is made there, the rest is moved."""
    if device == "cpu":
        return cls(**shape)
    with torch.device(device):
        model = cls(**shape)
    return model.to(device) if isinstance(model, nn.Module) else model


class _Stateless:
    """Shared part of the forms that get their weights as arguments: they have nothing to prepare."""

    def __init__(self) -> None:
        self._weights: dict[str, Tensor] = {}

    def set_weights(self, weights: Mapping[str, Tensor], only: list[str] | None) -> None:
        for name in weights if only is None else only:
            if name in self._weights:
                self._weights[name].copy_(weights[name])
            else:
                self._weights[name] = weights[name].clone()

    def get_weights(self) -> Mapping[str, Tensor]:
        return self._weights

    def prepare(self) -> bool:
        return False


class CustomKernelAdapter(_Stateless):
    """`custom_kernel(data)`, `data` = inputs, then weights, then scalars."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__()
        function = getattr(module, "custom_kernel", None)
        if not callable(function):
            raise EntryMissing("the file defines no function custom_kernel(data)")
        self._function: Callable[..., Any] = function

    def bind(self, arguments: Mapping[str, Tensor], scalars: list[int]) -> Bound:
        function, data = self._function, (*arguments.values(), *self._weights.values(), *scalars)
        return lambda: _as_tuple(function(data))


def poisoned(fields: list[dict[str, Any]], device: str = "cpu") -> tuple[Tensor, ...]:
    """Fresh output tensors that hold `POISON` in every byte."""
    out = []
    for field in fields:
        tensor = torch.empty(field["shape"], dtype=getattr(torch, field["dtype"]), device=device)
        if device == "cpu":
            ctypes.memset(tensor.data_ptr(), POISON, tensor.numel() * tensor.element_size())
        else:
            tensor.view(-1).view(torch.uint8).fill_(POISON)
        out.append(tensor)
    return tuple(out)


class RunAdapter(_Stateless):
    """Destination-passing `run(*inputs, *weights, *scalars, *outputs)`."""

    def __init__(self, module: ModuleType, outputs: list[dict[str, Any]], device: str = "cpu") -> None:
        super().__init__()
        self._device = device
        function = getattr(module, "run", None)
        if not callable(function):
            raise EntryMissing("the file defines no function run(*inputs, *outputs)")
        self._function: Callable[..., Any] = function
        self._outputs = outputs

    def bind(self, arguments: Mapping[str, Tensor], scalars: list[int]) -> Bound:
        outputs = poisoned(self._outputs, self._device)
        function, values = self._function, (*arguments.values(), *self._weights.values(), *scalars, *outputs)

        def call() -> tuple[Any, ...]:
            function(*values)
            return outputs

        return call


class NativeError(Exception):
    """The native function returned a non-zero code."""


class NativeAdapter(_Stateless):
    """`extern "C" int symbol(const void *const *inputs, void *const *outputs, const int64_t *shape)`."""

    def __init__(
        self, library: Path, symbol: str, outputs: list[dict[str, Any]], shape: Mapping[str, int], device: str = "cpu"
    ) -> None:
        super().__init__()
        self._device = device
        try:
            function = ctypes.CDLL(str(library))[symbol]  # an attribute could be one of Python's own
        except (OSError, AttributeError) as error:
            raise EntryMissing(f"the built library has no usable symbol {symbol!r}: {error}") from error
        function.restype = ctypes.c_int
        self._function = function
        self._symbol = symbol
        self._outputs = outputs
        self._shape = (ctypes.c_int64 * len(shape))(*shape.values())

    def bind(self, arguments: Mapping[str, Tensor], scalars: list[int]) -> Bound:
        outputs = poisoned(self._outputs, self._device)
        ins = [t.data_ptr() for t in (*arguments.values(), *self._weights.values())]
        sources = (ctypes.c_void_p * len(ins))(*ins)
        targets = (ctypes.c_void_p * len(outputs))(*(t.data_ptr() for t in outputs))
        function, shape, symbol = self._function, self._shape, self._symbol

        def call() -> tuple[Any, ...]:
            code = function(sources, targets, shape)
            if code != 0:
                raise NativeError(f"{symbol} returned {code}; 0 means done")
            return outputs

        return call


class CleanAdapter(_Stateless):
    """No submission at all: results that lie ready, so that a round costs everything but the calls."""

    def __init__(self, outputs: list[dict[str, Any]], device: str = "cpu") -> None:
        super().__init__()
        self._device = device
        self._outputs = outputs

    def bind(self, arguments: Mapping[str, Tensor], scalars: list[int]) -> Bound:
        outputs = poisoned(self._outputs, self._device)
        return lambda: outputs


def kind_of(module: ModuleType) -> str:
    """The entry kind that a module's definitions show.

    Raises:
        EntryMissing: it defines none of the known names.
    """
    if hasattr(module, "ModelNew") or hasattr(module, "Model"):
        return "model"
    for name in ("custom_kernel", "run"):
        if callable(getattr(module, name, None)):
            return name
    raise EntryMissing(
        "the file defines none of: class Model, class ModelNew, custom_kernel(data), run(*inputs, *outputs)"
    )
