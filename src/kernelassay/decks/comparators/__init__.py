"""Comparators: one file each, dispatched by a table.

The rule: a problem names a comparator and brings no check of its own. They run only in trusted processes, on private
copies of inputs and results.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from kernelassay.decks._error import DeckError
from kernelassay.decks._place import beside
from kernelassay.decks._problem import CaseTensors, LoadedProblem
from kernelassay.decks.comparators import along_trace, normalised, selection
from kernelassay.decks.comparators._common import Comparison, Likeness, Mismatch
from kernelassay.records import Comparator

__all__ = ["WITHOUT_ORACLE", "Comparison", "Likeness", "Mismatch", "attribute", "compare"]

_Compare = Callable[[LoadedProblem, CaseTensors, dict[str, Tensor], dict[str, Tensor]], Comparison]
_Attribute = Callable[[LoadedProblem, CaseTensors, dict[str, Tensor], dict[str, Tensor]], Likeness | None]

COMPARE: dict[Comparator, _Compare] = {
    Comparator.NORMALISED: normalised.compare,
    Comparator.SELECTION: selection.compare,
    Comparator.ALONG_TRACE: along_trace.compare,
}
WITHOUT_ORACLE = frozenset({Comparator.ALONG_TRACE})
"""Comparators that judge an answer by its own trace: the oracle's costs as much as the judgement, and is only shown."""
ATTRIBUTE: dict[Comparator, _Attribute] = {
    Comparator.NORMALISED: normalised.attribute,
    Comparator.SELECTION: selection.attribute,
    Comparator.ALONG_TRACE: along_trace.attribute,
}


def compare(
    loaded: LoadedProblem, tensors: CaseTensors, expected: dict[str, Tensor], actual: dict[str, Tensor]
) -> Comparison:
    """Judge `actual` against `expected` (the oracle's answer, see `expect`) by the problem's comparator.

    `actual` may hold anything: wrong names, dtypes, sizes, NaN, indices of any value.

    Raises:
        DeckError: the deck does not fit its comparator.
    """
    rule = COMPARE.get(loaded.problem.comparator)
    if rule is None:
        raise DeckError(
            f"{loaded.folder / 'problem.yaml'}: no comparator {loaded.problem.comparator.value!r}; "
            f"choose one, then run: assay deck lint {loaded.problem.name}"
        )
    with beside(tensors.inputs.values()):
        return rule(loaded, tensors, expected, actual)


def attribute(
    loaded: LoadedProblem, tensors: CaseTensors, expected: dict[str, Tensor], actual: dict[str, Tensor]
) -> Likeness | None:
    """The mutant whose error is the submission's; None where there is none or nothing differs."""
    rule = ATTRIBUTE.get(loaded.problem.comparator)
    with beside(tensors.inputs.values()):
        return None if rule is None else rule(loaded, tensors, expected, actual)
