"""ops/w4a16_gemm: the format, the distributions, the cases, and which mutant each named case rejects."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from kernelassay.decks import CaseTensors, LoadedProblem, compare, draw, expect, load
from kernelassay.records import Tier

GROUP = 128


@pytest.fixture(scope="module")
def loaded() -> LoadedProblem:
    return load("ops/w4a16_gemm")


@pytest.fixture(scope="module")
def code(loaded: LoadedProblem) -> ModuleType:
    return sys.modules[loaded.reference.model.__module__]


def drawn(loaded: LoadedProblem, case: str, key: str = "small-8x256x1024", seed: int = 1) -> CaseTensors:
    return draw(loaded, loaded.problem.shape(key), case, seed, weights_seed=2)


def test_the_format_read_element_by_element(loaded: LoadedProblem) -> None:
    tensors = drawn(loaded, "fractional_zeros", "small-40x160x384")
    w_q, scales, zeros = (tensors.weights[name] for name in ("w_q", "scales", "zeros"))
    x = tensors.inputs["x"].double()
    column = torch.zeros(len(x), dtype=torch.float64)
    for k in range(384):
        byte = int(w_q[k // 2, 17])
        q = byte >> 4 if k % 2 else byte & 15
        column += x[:, k] * (q - zeros[k // GROUP, 17].double()) * scales[k // GROUP, 17].double()
    torch.testing.assert_close(expect(loaded, tensors)["y"][:, 17], column, rtol=1e-12, atol=1e-12)


def test_weights_differ_from_neighbour_to_neighbour(loaded: LoadedProblem) -> None:
    weights = drawn(loaded, "nominal").weights
    scales, zeros = weights["scales"].float(), weights["zeros"].float()
    assert (scales > 0).all() and scales.max() > 5 * scales.min()
    ratio = scales[:, 1:] / scales[:, :-1]
    assert ratio.log().abs().mean() > 0.4  # log-uniform over a factor of 8: 0.69 on average
    assert torch.equal(zeros, zeros.round()) and zeros.min() >= 1 and zeros.max() <= 15 and zeros.std() > 1.5
    q = torch.cat((weights["w_q"] & 15, weights["w_q"] >> 4)).flatten().bincount(minlength=16)
    assert (q > 0).all()


def test_weights_depend_on_n_and_k_only(code: ModuleType) -> None:
    a, b = (code.make_weights({"M": m, "N": 64, "K": 256}, torch.Generator().manual_seed(3)) for m in (1, 40))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_cases_are_what_they_say(loaded: LoadedProblem) -> None:
    nominal = drawn(loaded, "nominal")
    x = {case: drawn(loaded, case).inputs["x"].double() for case in loaded.reference.cases}
    assert sorted(x["outlier"].mean(0).abs().topk(2).values.tolist()) == pytest.approx([10, 16], abs=2)
    assert abs(x["constant_x"].mean() - 1) < 0.001 and x["constant_x"].std() < 0.02
    assert x["onehot"].argmax(1)[:6].tolist() == [1023, 0, 1022, 1, 127, 128] and (x["onehot"].sum(1) == 1).all()
    assert not x["last_group"][:, :-GROUP].any() and (x["last_group"][:, -GROUP:].std(1) > 0.5).all()
    assert int(x["one_group"].view(8, -1, GROUP).abs().sum((0, 2)).count_nonzero()) == 1
    assert torch.equal(x["large_x"], x["nominal"] * 2**16) and x["large_x"].max() > 65504
    assert torch.equal(x["small_x"], x["nominal"] * 2**-20)
    assert int((x["zero_row"] == 0).all(1).sum()) == 1
    extreme = drawn(loaded, "extreme_nibbles").weights["w_q"]
    assert set(extreme.flatten().tolist()) == {0, 15, 240, 255}
    zeros = drawn(loaded, "fractional_zeros").weights["zeros"].float()
    assert (zeros != zeros.round()).float().mean() > 0.8 and zeros.min() >= 0 and zeros.max() <= 15
    assert (zeros - nominal.weights["zeros"].float()).abs().max() <= 0.5 + 2**-5


def test_no_oracle_vanishes_where_m_is_1(loaded: LoadedProblem) -> None:
    tensors = drawn(loaded, "zero_row", "small-1x192x512")
    assert not tensors.inputs["x"][:, :256].any() and expect(loaded, tensors)["y"].abs().mean() > 0.01


@pytest.mark.slow
def test_legal_pipelines_stay_below_two_thirds_on_several_seeds(loaded: LoadedProblem) -> None:
    worst = 0.0
    for seed in range(2):
        for shape in loaded.problem.tier(Tier.SMALL):
            for case in loaded.reference.cases:
                tensors = draw(loaded, shape, case, 50 + seed, 60 + seed)
                for pipeline in loaded.reference.legal.values():
                    result = compare(
                        loaded, tensors, expect(loaded, tensors), pipeline(tensors.weights, tensors.inputs, shape)
                    )
                    worst = max(worst, result.usage)
    assert 0.2 < worst < 0.66


@pytest.mark.parametrize("seed", [1, 2])
def test_named_cases_reject_their_mutants(loaded: LoadedProblem, seed: int) -> None:
    survivors = []
    for mutant in loaded.problem.mutants:
        assert mutant.case is not None
        pipeline = loaded.reference.mutants[mutant.name]
        usages = []
        for shape in loaded.problem.tier(Tier.SMALL):
            tensors = draw(loaded, shape, mutant.case, seed, seed)
            answer = pipeline(tensors.weights, tensors.inputs, shape)
            usages.append(compare(loaded, tensors, expect(loaded, tensors), answer).usage)
        thin = mutant.note == "thin"
        if max(usages) < (1.0 if thin else 2.0):
            survivors.append((mutant.name, max(usages)))
    assert not survivors


def test_cost_is_the_specification_s(loaded: LoadedProblem) -> None:
    """Floors in µs at 989.5 TFLOP/s and 4.8 TB/s."""
    from kernelassay.records.formula import evaluate

    cost = loaded.problem.cost
    floors = [
        max(evaluate(cost.flops, s.values) / 989.5e6, evaluate(cost.bytes, s.values) / 4.8e6)
        for s in loaded.problem.tier(Tier.FULL)
    ]
    assert [round(f, 1) for f in floors] == [5.6, 5.8, 26.0, 1.9, 6.6]
