"""The examples of ops/fp8_gemm: right on every case, follow their weights, keep nothing, and C++ beats torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from kernelassay.decks import LoadedProblem, compare, draw, expect, load
from kernelassay.records import Shape, Tier

from .model_example import Live, best_time, import_example

EXAMPLES = ("fp8_gemm_cpp", "fp8_gemm_torch")
ODD = ({"M": 5, "N": 3, "K": 7}, {"M": 7, "N": 81, "K": 259}, {"M": 197, "N": 17, "K": 31}, {"M": 4, "N": 4, "K": 513})
"""Extents that fill no vector, tile or block; rows that exceed a task."""


@pytest.fixture(scope="module")
def loaded() -> LoadedProblem:
    return load("ops/fp8_gemm")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, type[nn.Module]]:
    folder = tmp_path_factory.mktemp("fp8_gemm")
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


def every_number() -> Tensor:
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)


def test_every_number_is_decoded(models: dict[str, type[nn.Module]], loaded: LoadedProblem) -> None:
    """All 256 on either side, times one: e4m3 fits bfloat16, so nothing is rounded and NaN stays NaN."""
    one = torch.ones(1, 1).to(torch.float8_e4m3fn)
    expected = every_number().to(torch.bfloat16)
    for x, weight in ((every_number()[:, None], one), (one, every_number()[:, None])):
        values = {"M": len(x), "N": len(weight), "K": 1}
        live = Live(models["fp8_gemm_cpp"], loaded, Shape(key="numbers", tier=Tier.SMALL, values=values))
        live.set_weights({"weight": weight.contiguous(), "weight_scale": torch.ones(len(weight))})
        y = live.model(x.contiguous()).flatten()
        assert torch.equal(y.isnan(), expected.isnan()) and int(y.isnan().sum()) == 2
        assert torch.equal(y.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("example", EXAMPLES)
def test_one_changed_weight_is_seen(example: str, loaded: LoadedProblem, models: dict[str, type[nn.Module]]) -> None:
    shape = loaded.problem.shape("small-64x96x256")
    tensors, other = draw(loaded, shape, "nominal", 1, 2), draw(loaded, shape, "nominal", 1, 3)
    live = Live(models[example], loaded, shape).set_weights(tensors.weights)
    for name in tensors.weights:
        tensors.weights[name].copy_(other.weights[name])
        live.set_weights({name: other.weights[name]})
        assert compare(loaded, tensors, expect(loaded, tensors), live(tensors.inputs)).passed, name


@pytest.mark.parametrize("example", EXAMPLES)
def test_results_follow_the_input_and_stay(
    example: str, loaded: LoadedProblem, models: dict[str, type[nn.Module]]
) -> None:
    shape = loaded.problem.shape("small-96x112x287")
    tensors = draw(loaded, shape, "nominal", 1, 2)
    live = Live(models[example], loaded, shape).set_weights(tensors.weights)
    first = live(tensors.inputs)["y"]
    kept = first.clone()
    tensors.inputs["x"].view(torch.uint8).bitwise_xor_(0x80)  # negative
    second = live(tensors.inputs)["y"]
    assert torch.equal(first, kept) and torch.equal(second, -kept)


@pytest.mark.slow
def test_threads_do_not_change_the_answer(loaded: LoadedProblem, models: dict[str, type[nn.Module]]) -> None:
    """A shape large enough for threads: its last rows and columns are the same as alone."""
    large = Shape(key="large", tier=Tier.SMALL, values={"M": 200, "N": 400, "K": 527})
    tensors = draw(loaded, large, "nominal", 1, 2)
    y = Live(models["fp8_gemm_cpp"], loaded, large).set_weights(tensors.weights)(tensors.inputs)["y"]
    assert compare(loaded, tensors, expect(loaded, tensors), {"y": y}).passed
    few = Shape(key="few", tier=Tier.SMALL, values={"M": 3, "N": 20, "K": 527})
    weights = {name: tensor[-20:].contiguous() for name, tensor in tensors.weights.items()}
    inputs = {"x": tensors.inputs["x"][-3:].contiguous()}
    assert torch.equal(Live(models["fp8_gemm_cpp"], loaded, few).set_weights(weights)(inputs)["y"], y[-3:, -20:])


@pytest.mark.slow
def test_the_native_one_is_faster(loaded: LoadedProblem, models: dict[str, type[nn.Module]]) -> None:
    for shape in loaded.problem.tier(Tier.SMALL):
        tensors = draw(loaded, shape, "nominal", 1, 2)
        native, plain = (
            min(best_time(Live(models[name], loaded, shape).set_weights(tensors.weights), tensors) for _ in range(3))
            for name in EXAMPLES
        )
        assert native < plain, shape.key
