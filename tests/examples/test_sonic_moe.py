"""The examples of ops/sonic_moe: right on every case, follow weights and offsets, keep nothing, and C++ beats torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from kernelassay.decks import LoadedProblem, compare, draw, expect, load
from kernelassay.records import Shape, Tier

from .model_example import Live, best_time, import_example

EXAMPLES = ("sonic_moe_cpp", "sonic_moe_torch")
ODD = (
    {"T_total": 23, "H": 7, "I": 5, "E": 4, "K": 1},
    {"T_total": 101, "H": 259, "I": 41, "E": 4, "K": 2},
    {"T_total": 31, "H": 1, "I": 33, "E": 5, "K": 1},
)
"""Extents that fill no vector, tile or block; rows that exceed a task."""


@pytest.fixture(scope="module")
def loaded() -> LoadedProblem:
    return load("ops/sonic_moe")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, type[nn.Module]]:
    folder = tmp_path_factory.mktemp("sonic_moe")
    return {name: import_example(name, folder) for name in EXAMPLES}


def odd(index: int) -> Shape:
    return Shape(key=f"odd-{index}", tier=Tier.SMALL, values=ODD[index])


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_case(example: str, loaded: LoadedProblem, models: dict[str, type[nn.Module]]) -> None:
    for shape in loaded.problem.tier(Tier.SMALL):
        live = Live(models[example], loaded, shape)
        for case in loaded.reference.cases:
            tensors = draw(loaded, shape, case, seed=5, weights_seed=6)
            actual = live.set_weights(tensors.weights)(tensors.inputs)
            result = compare(loaded, tensors, expect(loaded, tensors), actual)
            assert result.passed and result.usage < 0.8, (shape.key, case, result)


@pytest.mark.parametrize("index", range(len(ODD)))
def test_odd_shapes(index: int, loaded: LoadedProblem, models: dict[str, type[nn.Module]]) -> None:
    """Against the sum in float64 directly: few numbers give the rms of a group too little to average over."""
    shape = odd(index)
    live = Live(models["sonic_moe_cpp"], loaded, shape)
    for case in ("nominal", "ragged", "one_expert", "row_ramp", "zero_rows"):
        tensors = draw(loaded, shape, case, seed=5, weights_seed=6)
        actual = live.set_weights(tensors.weights)(tensors.inputs)["out"]
        expected = expect(loaded, tensors)["out"]
        error = (actual.double() - expected).abs()
        assert bool((error <= 2**-8 * expected.abs() + 1e-5 * tensors.inputs["hidden_states"].abs().max()).all()), case


@pytest.mark.parametrize("example", EXAMPLES)
def test_one_changed_weight_is_seen(example: str, loaded: LoadedProblem, models: dict[str, type[nn.Module]]) -> None:
    shape = loaded.problem.shape("small-96x128x64x8x2")
    tensors, other = draw(loaded, shape, "nominal", 1, 2), draw(loaded, shape, "nominal", 1, 3)
    live = Live(models[example], loaded, shape).set_weights(tensors.weights)
    for name in tensors.weights:
        tensors.weights[name].copy_(other.weights[name])
        live.set_weights({name: other.weights[name]})
        assert compare(loaded, tensors, expect(loaded, tensors), live(tensors.inputs)).passed, name


@pytest.mark.parametrize("example", EXAMPLES)
def test_results_follow_the_offsets_and_stay(
    example: str, loaded: LoadedProblem, models: dict[str, type[nn.Module]]
) -> None:
    """The same objects with other content, as the judge changes them."""
    shape = loaded.problem.shape("small-257x256x48x16x1")
    tensors, ragged = draw(loaded, shape, "nominal", 1, 2), draw(loaded, shape, "ragged", 1, 2)
    live = Live(models[example], loaded, shape).set_weights(tensors.weights)
    first = live(tensors.inputs)["out"]
    kept = first.clone()
    for name, tensor in tensors.inputs.items():
        tensor.copy_(ragged.inputs[name])
    second = live(tensors.inputs)
    assert compare(loaded, tensors, expect(loaded, tensors), second).passed
    assert torch.equal(first, kept) and not torch.equal(second["out"], kept)


def test_offsets_out_of_order_are_refused(loaded: LoadedProblem, models: dict[str, type[nn.Module]]) -> None:
    shape = odd(0)
    tensors = draw(loaded, shape, "nominal", 1, 2)
    live = Live(models["sonic_moe_cpp"], loaded, shape).set_weights(tensors.weights)

    def refused(offsets: list[int]) -> None:
        inputs: dict[str, Tensor] = {**tensors.inputs, "expert_offsets": torch.tensor(offsets, dtype=torch.int32)}
        with pytest.raises(ValueError, match="refuses"):
            live(inputs)

    for offsets in ([0, 9, 8, 9, 23], [1, 5, 6, 7, 23], [0, 5, 6, 7, 24]):
        refused(offsets)


@pytest.mark.slow
def test_threads_do_not_change_the_answer(loaded: LoadedProblem, models: dict[str, type[nn.Module]]) -> None:
    """A shape large enough for threads: each expert's rows are the same as alone."""
    large = Shape(key="large", tier=Tier.SMALL, values={"T_total": 300, "H": 512, "I": 96, "E": 3, "K": 1})
    tensors = draw(loaded, large, "nominal", 1, 2)
    out = Live(models["sonic_moe_cpp"], loaded, large).set_weights(tensors.weights)(tensors.inputs)["out"]
    assert compare(loaded, tensors, expect(loaded, tensors), {"out": out}).passed
    few = Shape(key="few", tier=Tier.SMALL, values={"T_total": 30, "H": 512, "I": 96, "E": 1, "K": 1})
    for expert in range(3):
        rows = slice(expert * 100, expert * 100 + 30)
        weights = {name: tensor[expert : expert + 1] for name, tensor in tensors.weights.items()}
        offsets = torch.tensor([0, 30], dtype=torch.int32)
        inputs = {"hidden_states": tensors.inputs["hidden_states"][rows], "expert_offsets": offsets}
        alone = Live(models["sonic_moe_cpp"], loaded, few).set_weights(weights)(inputs)["out"]
        assert torch.equal(alone, out[rows]), expert


@pytest.mark.slow
def test_the_native_one_is_faster(loaded: LoadedProblem, models: dict[str, type[nn.Module]]) -> None:
    for shape in loaded.problem.tier(Tier.SMALL):
        tensors = draw(loaded, shape, "nominal", 1, 2)
        native, plain = (
            min(best_time(Live(models[name], loaded, shape).set_weights(tensors.weights), tensors) for _ in range(3))
            for name in EXAMPLES
        )
        assert native < plain, shape.key
