"""The wrong example passes every case but its named one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .native import NativeTopK, why_wrong
from .topk_cases import CASES, FULL, FULL_PLUS, SMALL, Shape, draw

NAMED_CASE = "strided"


@pytest.mark.parametrize("shape", [*SMALL, *FULL_PLUS], ids=str)
def test_only_the_named_case_fails(build: Callable[..., NativeTopK], shape: Shape) -> None:
    k = shape[2]
    failed = set()
    for case in CASES:
        for seed in range(3):
            x = draw(case, shape, seed)
            if why_wrong(x, k, *build("topk_wrong")(x, k)) is not None:
                failed.add(case)
    assert failed == (set() if k == 1 else {NAMED_CASE})


@pytest.mark.parametrize("shape", [*SMALL, *FULL_PLUS, *FULL], ids=str)
def test_nominal_passes_on_many_seeds(build: Callable[..., NativeTopK], shape: Shape) -> None:
    k = shape[2]
    for seed in range(100, 103 if shape in FULL else 160):
        x = draw("nominal", shape, seed)
        assert why_wrong(x, k, *build("topk_wrong")(x, k)) is None, seed


def test_what_it_answers_in_the_named_case(build: Callable[..., NativeTopK]) -> None:
    x = draw(NAMED_CASE, (8, 1024, 8))
    assert why_wrong(x, 8, *build("topk_wrong")(x, 8)) == "values differ from the sorted row"
