"""Where tensors are made: decks and comparators run on the device of what they are given, and name none."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def beside(tensors: Iterable[Tensor]) -> AbstractContextManager[object]:
    """What is made in this context without naming a device lies where the first of `tensors` does."""
    first = next(iter(tensors), None)
    return nullcontext() if first is None else made_on(first.device)


def made_on(device: torch.device | str) -> AbstractContextManager[object]:
    """What is made in this context without naming a device lies on `device`."""
    place = torch.device(device)
    return nullcontext() if place.type == "cpu" else place  # the default, and such a context costs every call
