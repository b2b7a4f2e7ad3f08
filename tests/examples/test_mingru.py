"""The examples of cuda/mingru_rollout: right on every case, follow weights and state, and C++ beats torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from kernelassay.decks import LoadedProblem, compare, draw, expect, load
from kernelassay.records import Shape, Tier

from .model_example import Live, best_time, import_example

EXAMPLES = ("mingru_cpp", "mingru_torch")
CHEAP = ("small-65x16", "small-7x64", "small-1x48")
ODD = ({"num_envs": 33, "horizon": 40}, {"num_envs": 16, "horizon": 1}, {"num_envs": 17, "horizon": 3})


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Many tiny operations: threads of torch only wait for each other when other tests run beside this one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def loaded() -> LoadedProblem:
    return load("cuda/mingru_rollout")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, type[nn.Module]]:
    folder = tmp_path_factory.mktemp("mingru")
    return {name: import_example(name, folder) for name in EXAMPLES}


def check(loaded: LoadedProblem, live: Live, shape: Shape, case: str, seed: int = 5) -> None:
    tensors = draw(loaded, shape, case, seed, weights_seed=6)
    actual = live.set_weights(tensors.weights)(tensors.clone().inputs)
    result = compare(loaded, tensors, expect(loaded, tensors), actual)
    assert result.passed and result.usage < 0.05, (shape.key, case, result)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_case(example: str, loaded: LoadedProblem, models: dict[str, type[nn.Module]]) -> None:
    for key in CHEAP:
        shape = loaded.problem.shape(key)
        for case in loaded.reference.cases:
            check(loaded, Live(models[example], loaded, shape), shape, case)


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("key", ["small-256x32", "small-128x64"])
def test_larger_shapes(example: str, key: str, loaded: LoadedProblem, models: dict[str, type[nn.Module]]) -> None:
    shape = loaded.problem.shape(key)
    for case in ("nominal", "saturated_gates"):
        check(loaded, Live(models[example], loaded, shape), shape, case)


@pytest.mark.parametrize("values", ODD, ids=lambda values: "x".join(map(str, values.values())))
def test_odd_shapes(values: dict[str, int], loaded: LoadedProblem, models: dict[str, type[nn.Module]]) -> None:
    """Environments that fill no block, and a single step."""
    shape = Shape(key="odd", tier=Tier.SMALL, values=values)
    for seed in range(3):
        check(loaded, Live(models["mingru_cpp"], loaded, shape), shape, "nominal", seed)


@pytest.mark.parametrize("example", EXAMPLES)
def test_one_changed_weight_is_seen(example: str, loaded: LoadedProblem, models: dict[str, type[nn.Module]]) -> None:
    shape = loaded.problem.shape("small-7x64")
    tensors, other = draw(loaded, shape, "nominal", 1, 2), draw(loaded, shape, "nominal", 1, 3)
    live = Live(models[example], loaded, shape).set_weights(tensors.weights)
    for name in tensors.weights:
        tensors.weights[name].copy_(other.weights[name])
        live.set_weights({name: other.weights[name]})
        actual = live(tensors.clone().inputs)
        assert compare(loaded, tensors, expect(loaded, tensors), actual).passed, name


@pytest.mark.parametrize("example", EXAMPLES)
def test_calls_do_not_meet(example: str, loaded: LoadedProblem, models: dict[str, type[nn.Module]]) -> None:
    """Memory starts at zero in every call, and outputs of an earlier one stay."""
    shape = loaded.problem.shape("small-65x16")
    a, b = draw(loaded, shape, "nominal", 1, 2), draw(loaded, shape, "nominal", 9, 2)
    live = Live(models[example], loaded, shape).set_weights(a.weights)
    first = live(a.clone().inputs)
    kept = {name: tensor.clone() for name, tensor in first.items()}
    live(b.clone().inputs)
    again = live(a.clone().inputs)
    for name, tensor in kept.items():
        assert torch.equal(first[name], tensor) and torch.equal(again[name], tensor), name


@pytest.mark.slow
def test_the_native_one_is_faster(loaded: LoadedProblem, models: dict[str, type[nn.Module]]) -> None:
    for shape in loaded.problem.tier(Tier.SMALL):
        tensors = draw(loaded, shape, "nominal", 1, 2)
        native, plain = (
            min(best_time(Live(models[name], loaded, shape).set_weights(tensors.weights), tensors, 2) for _ in range(2))
            for name in EXAMPLES
        )
        assert native < plain, shape.key
