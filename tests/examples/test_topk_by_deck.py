"""The examples as the deck and its comparator see them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernelassay.decks import LoadedProblem, compare, draw, expect, load
from kernelassay.records import Shape, Tier

from .native import NativeTopK
from .test_topk_wrong import NAMED_CASE

SEED, WEIGHTS_SEED = 20, 1
Build = Callable[..., NativeTopK]


@pytest.fixture(scope="module")
def problem() -> LoadedProblem:
    return load("ops/topk")


def failing_cases(problem: LoadedProblem, topk: NativeTopK, shape: Shape) -> set[str]:
    """Names of the deck's cases that the comparator rejects."""
    failing = set()
    for case in problem.reference.cases:
        tensors = draw(problem, shape, case, SEED, WEIGHTS_SEED)
        values, indices = topk(tensors.inputs["x"], shape.values["k"])
        actual = {"values": values.contiguous(), "indices": indices.contiguous()}
        if not compare(problem, tensors, expect(problem, tensors), actual).passed:
            failing.add(case)
    return failing


def checked_shapes(problem: LoadedProblem) -> list[Shape]:
    """The shapes that are cheap to check on a CPU."""
    return [shape for shape in problem.problem.shapes if shape.tier in (Tier.SMALL, Tier.FULL_PLUS)]


def test_the_honest_one_passes_every_case(problem: LoadedProblem, build: Build) -> None:
    shapes = checked_shapes(problem)
    assert len(shapes) == 6
    for shape in shapes:
        assert failing_cases(problem, build("topk_cpp"), shape) == set(), shape.key


def test_the_wrong_one_fails_its_named_case_alone(problem: LoadedProblem, build: Build) -> None:
    for shape in checked_shapes(problem):
        expected = set() if shape.values["k"] == 1 else {NAMED_CASE}
        assert failing_cases(problem, build("topk_wrong"), shape) == expected, shape.key
