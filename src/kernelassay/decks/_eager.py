"""One call of a plain torch model in this process: the eager reference, or code that is trusted like it."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from kernelassay.decks._error import DeckError
from kernelassay.decks._place import made_on
from kernelassay.decks._problem import CaseTensors, LoadedProblem
from kernelassay.records import Entry, Role

METHODS = {Entry.FORWARD: "forward", Entry.STEP: "step", Entry.ROLLOUT: "run"}
"""Entry → method of the model."""


def run_model(
    loaded: LoadedProblem, tensors: CaseTensors, answer: dict[str, Tensor], model: type[nn.Module] | None = None
) -> dict[str, Tensor]:
    """Outputs of a model on a case, and the state that it leaves where the oracle judges it.

    Parameters of the entry that are no tensor and bear a shape key's name (the horizon of a rollout) get its value.

    Args:
        loaded: The problem.
        tensors: The case; a copy of it is used up.
        answer: The oracle's, for which state it judges.
        model: Class with the constructor and state_dict of the reference's; None: the reference itself.

    Raises:
        DeckError: the model does not run.
    """
    problem = loaded.problem
    own = tensors.clone()
    try:
        with made_on(own.device):
            built = (model or loaded.reference.model)(**tensors.shape.values)
        built.load_state_dict(own.weights, strict=True)
        entry = getattr(built, METHODS[problem.entry])
        keys = [key for key in inspect.signature(entry).parameters if key not in own.inputs]
        extra = {key: tensors.shape.values[key] for key in keys if key in tensors.shape.values}
        with torch.no_grad():
            result = entry(*own.inputs.values(), **extra)
    except (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError):
        raise  # the machine's limit is not the deck's fault
    except Exception as error:
        raise DeckError(
            f"{loaded.folder / 'reference.py'}: Model at {tensors.shape.key!r} raised {type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else ''}; correct it, then run: assay deck lint {problem.name}"
        ) from error
    results = result if isinstance(result, tuple | list) else (result,)
    names = [spec.name for spec in problem.role(Role.OUTPUT)]
    state = {spec.name: own.inputs[spec.name] for spec in problem.role(Role.STATE) if spec.name in answer}
    return {**dict(zip(names, results, strict=False)), **state}
