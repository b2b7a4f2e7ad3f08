"""The examples of ops/w4a16_gemm: right on every case, follow their weights, keep nothing, and C++ beats torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernelassay.decks import LoadedProblem, compare, draw, expect, load
from kernelassay.records import Shape, Tier

from .model_example import Live, best_time, import_example

EXAMPLES = ("w4a16_cpp", "w4a16_torch")
ODD = ({"M": 2, "N": 5, "K": 128}, {"M": 7, "N": 33, "K": 256}, {"M": 1, "N": 1, "K": 128})
"""Columns that fill no tile."""


@pytest.fixture(scope="module")
def loaded() -> LoadedProblem:
    return load("ops/w4a16_gemm")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, type[nn.Module]]:
    folder = tmp_path_factory.mktemp("w4a16")
    return {name: import_example(name, folder) for name in EXAMPLES}


def shapes(loaded: LoadedProblem) -> list[Shape]:
    odd = [Shape(key=f"odd-{i}", tier=Tier.SMALL, values=values) for i, values in enumerate(ODD)]
    return [*loaded.problem.tier(Tier.SMALL), *odd]


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_case(example: str, loaded: LoadedProblem, models: dict[str, type[nn.Module]]) -> None:
    for shape in shapes(loaded):
        live = Live(models[example], loaded, shape)
        for case in loaded.reference.cases:
            tensors = draw(loaded, shape, case, seed=5, weights_seed=6)
            actual = live.set_weights(tensors.weights)(tensors.inputs)
            result = compare(loaded, tensors, expect(loaded, tensors), actual)
            assert result.passed and result.usage < 0.7, (shape.key, case, result)


@pytest.mark.parametrize("example", EXAMPLES)
def test_one_changed_weight_is_seen(example: str, loaded: LoadedProblem, models: dict[str, type[nn.Module]]) -> None:
    shape = loaded.problem.shape("small-8x256x1024")
    tensors = draw(loaded, shape, "nominal", 1, 2)
    other = draw(loaded, shape, "nominal", 1, 3)
    live = Live(models[example], loaded, shape).set_weights(tensors.weights)
    for name in tensors.weights:
        tensors.weights[name].copy_(other.weights[name])
        live.set_weights({name: other.weights[name]})
        assert compare(loaded, tensors, expect(loaded, tensors), live(tensors.inputs)).passed, name


@pytest.mark.parametrize("example", EXAMPLES)
def test_results_follow_the_input_and_stay(
    example: str, loaded: LoadedProblem, models: dict[str, type[nn.Module]]
) -> None:
    shape = loaded.problem.shape("small-40x160x384")
    tensors = draw(loaded, shape, "nominal", 1, 2)
    live = Live(models[example], loaded, shape).set_weights(tensors.weights)
    first = live(tensors.inputs)["y"]
    kept = first.clone()
    tensors.inputs["x"].neg_()
    second = live(tensors.inputs)["y"]
    assert torch.equal(first, kept) and torch.equal(second, -kept)


def test_threads_do_not_change_the_answer(loaded: LoadedProblem, models: dict[str, type[nn.Module]]) -> None:
    """A shape large enough for threads: columns beyond it are the same as alone."""
    wide = Shape(key="wide", tier=Tier.SMALL, values={"M": 5, "N": 2064, "K": 1024})
    tensors = draw(loaded, wide, "nominal", 1, 2)
    y = Live(models["w4a16_cpp"], loaded, wide).set_weights(tensors.weights)(tensors.inputs)["y"]
    assert compare(loaded, tensors, expect(loaded, tensors), {"y": y}).passed
    narrow = Shape(key="narrow", tier=Tier.SMALL, values={"M": 5, "N": 16, "K": 1024})
    part = {name: tensor[:, -16:].contiguous() for name, tensor in tensors.weights.items()}
    alone = Live(models["w4a16_cpp"], loaded, narrow).set_weights(part)(tensors.inputs)["y"]
    assert torch.equal(alone, y[:, -16:])


@pytest.mark.slow
def test_the_native_one_is_faster(loaded: LoadedProblem, models: dict[str, type[nn.Module]]) -> None:
    for shape in (*loaded.problem.tier(Tier.SMALL), loaded.problem.shape("full-1x4096x4096")):
        tensors = draw(loaded, shape, "nominal", 1, 2)
        native, plain = (
            min(best_time(Live(models[name], loaded, shape).set_weights(tensors.weights), tensors) for _ in range(3))
            for name in EXAMPLES
        )
        assert native < plain, shape.key
