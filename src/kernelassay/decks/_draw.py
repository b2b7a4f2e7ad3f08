"""Draw a case from its seeds, and refuse what does not match `problem.yaml`.

The rule: tensors that leave this module have exactly the declared names, dtypes and sizes, in declared order, so
nothing downstream has to ask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kernelassay.decks._error import DeckError
from kernelassay.decks._problem import CaseTensors, LoadedProblem
from kernelassay.records import Role, Shape, TensorSpec, extent

NOMINAL = "nominal"
"""The case as drawn, which every problem has."""


def draw(
    loaded: LoadedProblem, shape: Shape, case: str, seed: int, weights_seed: int, device: str = "cpu"
) -> CaseTensors:
    """Weights and inputs of one case, on `device`.

    The inputs' generator is seeded with `seed`, draws the nominal inputs and then serves the case's edit; the weights'
    generator is seeded with `weights_seed`. A case is a function of its seeds and of the kind of device: a GPU's
    generators are counter-based and give other numbers than a CPU's.

    Raises:
        DeckError: no such case, or the deck drew something other than it declares.
    """
    edit = loaded.reference.cases.get(case)
    if edit is None:
        known = ", ".join(loaded.reference.cases)
        raise DeckError(
            f"{loaded.problem.name} has no case {case!r} (it has {known}); "
            f"see it with: assay deck show {loaded.problem.name}"
        )
    generator = torch.Generator(device=device).manual_seed(seed)
    weights = _weights(loaded, shape, case, weights_seed, device)
    inputs = loaded.reference.make_inputs(shape, generator)
    edit(weights, inputs, shape, generator)
    what = f"case {case!r} at shape {shape.key!r}"
    return CaseTensors(
        shape=shape,
        case=case,
        seed=seed,
        weights_seed=weights_seed,
        weights=_checked(loaded, what, weights, loaded.problem.role(Role.WEIGHT), shape, device),
        inputs=_checked(loaded, what, inputs, loaded.problem.role(Role.INPUT, Role.STATE), shape, device),
    )


_last_weights: dict[tuple[str, tuple[tuple[int, ...], ...], int, str], dict[str, Tensor]] = {}
"""The weights drawn last: calls in a row have the same ones, and of some problems these take a hundred times as long to
draw as the inputs. Weights depend only on what sizes them, so shapes at which all have the same size share one draw."""


def _weights(loaded: LoadedProblem, shape: Shape, case: str, seed: int, device: str) -> dict[str, Tensor]:
    """The weights of a seed, for the case's edit to change: copies, save for the nominal case, which changes none."""
    sizes = tuple(extent(spec, shape) for spec in loaded.problem.role(Role.WEIGHT))
    key = (loaded.content_hash, sizes, seed, device)
    if key not in _last_weights:
        _last_weights.clear()  # before the next are drawn: both together may not fit
        _last_weights[key] = loaded.reference.make_weights(shape, torch.Generator(device=device).manual_seed(seed))
    weights = _last_weights[key]
    return dict(weights) if case == NOMINAL else {name: tensor.clone() for name, tensor in weights.items()}


def expect(loaded: LoadedProblem, tensors: CaseTensors) -> dict[str, Tensor]:
    """The oracle's answer to a case: every output, in declared order, then the state tensors that it returns.

    Raises:
        DeckError: an output is missing or has another size, or a name is neither output nor state.
    """
    answer = loaded.reference.oracle(tensors.weights, tensors.inputs, tensors.shape)
    outputs = loaded.problem.role(Role.OUTPUT)
    states = [spec for spec in loaded.problem.role(Role.STATE) if spec.name in answer]
    what = f"oracle for case {tensors.case!r} at shape {tensors.shape.key!r}"
    return _checked(loaded, what, answer, (*outputs, *states), tensors.shape, tensors.device, dtypes=False)


def _checked(
    loaded: LoadedProblem,
    what: str,
    tensors: Mapping[str, Tensor],
    specs: Sequence[TensorSpec],
    shape: Shape,
    device: str,
    dtypes: bool = True,
) -> dict[str, Tensor]:
    def broken(text: str) -> DeckError:
        return DeckError(
            f"{loaded.folder / 'reference.py'}: {what}: {text}; "
            f"correct it, then run: assay deck lint {loaded.problem.name}"
        )

    names = [spec.name for spec in specs]
    if set(tensors) != set(names):
        raise broken(f"gives {sorted(tensors)}, problem.yaml declares {sorted(names)}")
    for spec in specs:
        tensor = tensors[spec.name]
        if dtypes and str(tensor.dtype).removeprefix("torch.") != spec.dtype:
            raise broken(f"{spec.name} has dtype {tensor.dtype}, problem.yaml declares {spec.dtype}")
        if tuple(tensor.shape) != extent(spec, shape):
            raise broken(f"{spec.name} has shape {tuple(tensor.shape)}, problem.yaml declares {extent(spec, shape)}")
        if tensor.device.type != device or not tensor.is_contiguous():
            raise broken(f"{spec.name} is not a contiguous tensor on device {device}")
    return {name: tensors[name].detach() for name in names}
