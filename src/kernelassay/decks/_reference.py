"""`reference.py` of a problem, imported as trusted code and seen through one typed view.

The rules:

- The module runs from the bytes that were hashed, under a private name; no bytecode is written into a deck or read
  from it.
- It defines `Model`, `make_weights(shape, generator)`, `make_inputs(shape, generator)`, `oracle(weights, inputs)`,
  `CASES`, `LEGAL` and `MUTANTS`, and the names in the three tables are exactly those of `problem.yaml`.
- `oracle`, the legal pipelines and the mutants may take a third parameter called `shape` (the shape's values by name),
  for what the tensors do not tell, such as the `k` of a top-k. Whether they do is looked up once, when the problem is
  loaded; every caller here passes the shape and the view drops it where it is not wanted.
- `make_weights` follows from the seed and from what sizes the weights: shapes at which they have the same sizes share
  one draw.
- They run on the device of their tensors, or of their generator: what they make without naming a device lies there.
- None of these functions may edit the tensors that it is given, save `CASES`, which edit them in place.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from kernelassay.decks._error import DeckError
from kernelassay.decks._place import beside, made_on
from kernelassay.records import Problem, Shape

Tensors = dict[str, Tensor]
Pipeline = Callable[[Tensors, Tensors, Shape], Tensors]
"""`(weights, inputs, shape) -> outputs`."""
Facts = Callable[[Tensors, Tensors, Tensors, Shape], dict[str, Any]]
"""`(weights, inputs, actual, shape) -> tables`, see `comparators/along_trace.py`."""
CaseEdit = Callable[[Tensors, Tensors, Shape, torch.Generator], None]
"""Edits weights and inputs in place."""


@dataclass(frozen=True)
class Reference:
    """Typed view of a problem's `reference.py`; every call raises `DeckError` when the deck's code raises."""

    model: type[nn.Module]
    """The eager reference: `model(**shape.values)`; its state_dict keys are the contract."""
    make_weights: Callable[[Shape, torch.Generator], Tensors]
    """A state_dict on the CPU; empty where there are no weights."""
    make_inputs: Callable[[Shape, torch.Generator], Tensors]
    """The nominal case on the CPU, keys in the order of the call's arguments."""
    oracle: Pipeline
    """The exact answer, in fp64 where rounding is free; keys: outputs, and state where it is judged."""
    cases: Mapping[str, CaseEdit]
    legal: Mapping[str, Pipeline]
    """Honest low-precision pipelines that must pass."""
    mutants: Mapping[str, Pipeline]
    """The reference with one semantic part dropped or changed; every one must fail."""
    along_trace: Facts | None = None
    """Facts for comparator `along_trace`; None where the module defines none."""


def load_reference(source: bytes, path: Path, problem: Problem, content_hash: str, next_step: str) -> Reference:
    """Run `source` as the module at `path` and check it against `problem`.

    Raises:
        DeckError: it does not run, lacks a name, or disagrees with `problem.yaml`.
    """
    module = _run(source, path, f"_kernelassay_deck_{problem.name.replace('/', '_')}_{content_hash[:16]}", next_step)
    names = ("Model", "make_weights", "make_inputs", "oracle", "CASES", "LEGAL", "MUTANTS")
    missing = [name for name in names if not hasattr(module, name)]
    if missing:
        raise DeckError(f"{path}: defines no {', '.join(missing)}; add it, then run: {next_step}")
    model = module.Model
    if not (isinstance(model, type) and issubclass(model, nn.Module)):
        raise DeckError(f"{path}: Model is no subclass of torch.nn.Module; change it, then run: {next_step}")
    for name in ("make_weights", "make_inputs", "oracle"):
        if not callable(getattr(module, name)):
            raise DeckError(f"{path}: {name} is no function; change it, then run: {next_step}")
    tables = {
        "CASES": [case.name for case in problem.cases],
        "LEGAL": list(problem.legal),
        "MUTANTS": [mutant.name for mutant in problem.mutants],
    }
    for table, declared in tables.items():
        _agree(path, table, getattr(module, table), declared, next_step)
    return Reference(
        model=model,
        make_weights=_maker(path, "make_weights", module.make_weights, next_step),
        make_inputs=_maker(path, "make_inputs", module.make_inputs, next_step),
        oracle=_pipeline(path, "oracle", module.oracle, next_step),
        cases={name: _edit(path, name, module.CASES[name], next_step) for name in tables["CASES"]},
        legal={name: _pipeline(path, f"LEGAL[{name!r}]", module.LEGAL[name], next_step) for name in tables["LEGAL"]},
        mutants={
            name: _pipeline(path, f"MUTANTS[{name!r}]", module.MUTANTS[name], next_step) for name in tables["MUTANTS"]
        },
        along_trace=_facts(path, module.along_trace, next_step) if hasattr(module, "along_trace") else None,
    )


def _run(source: bytes, path: Path, name: str, next_step: str) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses and typing look their module up by name
    whole = False
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
        whole = True
    except SyntaxError as error:
        raise DeckError(f"{path}, line {error.lineno}: {error.msg}; correct it, then run: {next_step}") from error
    except Exception as error:
        raise DeckError(
            f"{_place(path, error)}: does not import: {_brief(error)}; correct it, then run: {next_step}"
        ) from error
    finally:
        if not whole:
            del sys.modules[name]
    return module


def _agree(path: Path, table: str, found: object, declared: Iterable[str], next_step: str) -> None:
    if not isinstance(found, Mapping) or not all(callable(value) for value in found.values()):
        raise DeckError(f"{path}: {table} is no dict of functions; change it, then run: {next_step}")
    names = set(declared)
    lacking = sorted(names - set(found))
    extra = sorted(str(name) for name in set(found) - names)
    parts = [f"{table} lacks {', '.join(lacking)}, which problem.yaml declares"] if lacking else []
    if extra:
        parts.append(f"problem.yaml does not declare {', '.join(extra)} of {table}")
    if parts:
        raise DeckError(f"{path}: {'; '.join(parts)}; make the two agree, then run: {next_step}")


def _brief(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(path: Path, error: BaseException) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def _guard(path: Path, name: str, next_step: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError, DeckError):
        raise  # the machine's limit is not the deck's fault
    except Exception as error:
        raise DeckError(
            f"{_place(path, error)}: {name} raised {_brief(error)}; correct it, then run: {next_step}"
        ) from error


def _tensors(path: Path, name: str, result: object, next_step: str) -> Tensors:
    if not isinstance(result, dict) or not all(isinstance(value, Tensor) for value in result.values()):
        raise DeckError(f"{path}: {name} returns no dict of tensors; change it, then run: {next_step}")
    return result


def _maker(
    path: Path, name: str, function: Callable[..., Any], next_step: str
) -> Callable[[Shape, torch.Generator], Tensors]:
    def make(shape: Shape, generator: torch.Generator) -> Tensors:
        with made_on(generator.device):
            result = _guard(path, name, next_step, lambda: function(dict(shape.values), generator))
        return _tensors(path, name, result, next_step)

    return make


def _edit(path: Path, name: str, function: Callable[..., Any], next_step: str) -> CaseEdit:
    def edit(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
        values = dict(shape.values)
        with made_on(generator.device):
            _guard(path, f"CASES[{name!r}]", next_step, lambda: function(weights, inputs, values, generator))

    return edit


def _facts(path: Path, function: Callable[..., Any], next_step: str) -> Facts:
    def gather(weights: Tensors, inputs: Tensors, actual: Tensors, shape: Shape) -> dict[str, Any]:
        values = dict(shape.values)
        with beside(inputs.values()):
            result = _guard(path, "along_trace", next_step, lambda: function(weights, inputs, actual, shape=values))
        if not isinstance(result, dict):
            raise DeckError(f"{path}: along_trace returns no dict; change it, then run: {next_step}")
        return result

    return gather


def _pipeline(path: Path, name: str, function: Callable[..., Any], next_step: str) -> Pipeline:
    try:
        wants_shape = "shape" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a C function without a signature
        wants_shape = False

    def run(weights: Tensors, inputs: Tensors, shape: Shape) -> Tensors:
        extra = {"shape": dict(shape.values)} if wants_shape else {}
        with beside(inputs.values()):
            result = _guard(path, name, next_step, lambda: function(weights, inputs, **extra))
        return _tensors(path, name, result, next_step)

    return run
