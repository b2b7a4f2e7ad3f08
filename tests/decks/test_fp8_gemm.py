"""ops/fp8_gemm: exact sums, the distributions, the cases, Hopper's accumulator, and what each named case rejects."""

from __future__ import annotations

import sys
from fractions import Fraction
from types import ModuleType

import pytest
import torch
from torch import Tensor

from kernelassay.decks import CaseTensors, LoadedProblem, compare, draw, expect, load
from kernelassay.records import Tier, evaluate


@pytest.fixture(scope="module")
def loaded() -> LoadedProblem:
    return load("ops/fp8_gemm")


@pytest.fixture(scope="module")
def code(loaded: LoadedProblem) -> ModuleType:
    return sys.modules[loaded.reference.model.__module__]


def drawn(loaded: LoadedProblem, case: str, key: str = "small-96x112x287", seed: int = 1) -> CaseTensors:
    return draw(loaded, loaded.problem.shape(key), case, seed, weights_seed=2)


def bits_of(t: Tensor) -> list[list[int]]:
    rows: list[list[int]] = t.view(torch.uint8).tolist()
    return rows


def in_steps(byte: int) -> int:
    """An e4m3 byte as a whole number of 2^-9, read from its bits: sign, 4 of exponent with bias 7, 3 of fraction."""
    exponent, fraction = byte >> 3 & 15, byte & 7
    size = (8 + fraction) << (exponent - 1) if exponent else fraction
    return -size if byte & 128 else size


@pytest.mark.parametrize("case", ["nominal", "tail", "subnormal", "small_w", "outlier"])
def test_the_oracle_against_whole_numbers_read_from_the_bytes(loaded: LoadedProblem, case: str) -> None:
    tensors = drawn(loaded, case)
    x, w = bits_of(tensors.inputs["x"]), bits_of(tensors.weights["weight"])
    scale = tensors.weights["weight_scale"].tolist()
    y = expect(loaded, tensors)["y"]
    for m, n in ((0, 0), (95, 111), (40, 7), (17, 64)):
        total = sum(in_steps(a) * in_steps(b) for a, b in zip(x[m], w[n], strict=True))
        exact = Fraction(total, 1 << 18) * Fraction(scale[n])
        assert float(y[m, n]) == pytest.approx(float(exact), rel=1e-14, abs=0)


def test_the_oracle_slices_channels_without_a_trace(loaded: LoadedProblem, code: ModuleType) -> None:
    """K = 2^17 leaves 64 channels to a slice, so 150 take three."""
    generator = torch.Generator().manual_seed(5)
    shape = {"M": 1, "N": 150, "K": 1 << 17}
    weights = {
        "weight": torch.randint(0, 120, (150, shape["K"]), generator=generator, dtype=torch.uint8).view(
            torch.float8_e4m3fn
        ),
        "weight_scale": torch.rand(150, generator=generator),
    }
    inputs = code.make_inputs(shape, generator)
    whole = inputs["x"].double() @ weights["weight"].double().t() * weights["weight_scale"].double()
    torch.testing.assert_close(code.oracle(weights, inputs)["y"], whole, rtol=1e-12, atol=0)


def test_draws_follow_their_seeds(loaded: LoadedProblem) -> None:
    first, again, other = (drawn(loaded, "outlier", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.inputs["x"].view(torch.uint8), again.inputs["x"].view(torch.uint8))
    assert not torch.equal(first.inputs["x"].view(torch.uint8), other.inputs["x"].view(torch.uint8))
    assert torch.equal(first.weights["weight"].view(torch.uint8), other.weights["weight"].view(torch.uint8))


def test_weights_depend_on_n_and_k_only(code: ModuleType) -> None:
    a, b = (code.make_weights({"M": m, "N": 64, "K": 256}, torch.Generator().manual_seed(3)) for m in (1, 40))
    assert all(torch.equal(a[name].view(torch.uint8), b[name].view(torch.uint8)) for name in a)


def test_channels_differ_from_neighbour_to_neighbour(loaded: LoadedProblem, code: ModuleType) -> None:
    weights = code.make_weights({"N": 2048, "K": 256}, torch.Generator().manual_seed(4))
    w, scale = weights["weight"].float(), weights["weight_scale"]
    assert (w.abs().amax(1) == 448).all()
    tau = (w * scale[:, None]).std(1)
    assert 0.004 < tau.min() < 0.006 and 0.07 < tau.max() < 0.1
    assert 0.65 < tau.log().std() < 0.95  # log-uniform over a factor of 16: ln 16 / √12 = 0.80
    assert (scale[1:] / scale[:-1]).log().abs().mean() > 0.7  # a third of ln 16 = 0.92
    x = drawn(loaded, "nominal").inputs["x"].float()
    assert x.abs().max() == 4 and x.mean().abs() < 0.05 and x.std() == pytest.approx(8 / 12**0.5, rel=0.02)


def test_cases_are_what_they_say(loaded: LoadedProblem) -> None:
    tensors = {case: drawn(loaded, case) for case in loaded.reference.cases}
    x = {case: t.inputs["x"].double() for case, t in tensors.items()}
    w = {case: t.weights["weight"].double() for case, t in tensors.items()}
    scale = {case: t.weights["weight_scale"] for case, t in tensors.items()}
    assert x["onehot"].abs().argmax(1)[:4].tolist() == [286, 0, 285, 143]
    assert ((x["onehot"] != 0).sum(1) == 1).all() and (x["onehot"].abs().amax(1) >= 0.5).all()
    assert torch.equal(x["tail"][:, -31:], x["nominal"][:, -31:])
    assert (x["tail"][:, :-31] - x["nominal"][:, :-31] * 2**-6).abs().max() <= 2**-10
    assert x["subnormal"].abs().max() == 2**-7 and torch.equal(x["subnormal"] * 512, (x["subnormal"] * 512).round())
    assert (w["small_w"] - w["nominal"] * 2**-13).abs().max() <= 2**-10
    assert (w["small_w"].abs() < 2**-6).double().mean() > 0.5 and torch.equal(scale["small_w"], scale["nominal"])
    assert torch.equal(x["large"], x["nominal"] * 64) and x["large"].max() == 256
    assert int((x["outlier"].abs() == 384).all(0).sum()) == 1
    assert torch.equal(scale["scale_flip"], scale["nominal"].flip(0) * 37)
    assert torch.equal(w["scale_flip"], w["nominal"])
    assert (x["positive"] >= 0).all() and torch.equal(w["positive"], w["nominal"].abs())
    assert [case.name for case in loaded.problem.cases if not case.graded] == ["positive"]
    whole = drawn(loaded, "tail", "small-64x96x256").inputs["x"].float()
    assert (
        whole[:, :128].abs().max() <= 2**-4 and whole[:, 128:].abs().max() == 4
    )  # K mod 128 is 0: the last whole tile


def test_hopper_s_accumulator_by_hand(code: ModuleType) -> None:
    """4 · 4 = 2^4 leaves steps of 2^-9: a product of 2^-9 counts, one of 2^-10 is lost, three of them as well."""
    x, w = torch.zeros(4, 64), torch.zeros(1, 64)
    w[0] = 0.5
    w[0, 0] = 4
    x[:, 0] = torch.tensor([4.0, 4.0, 0.0, -4.0])
    x[0, 3], x[1, 3:6], x[2, 3:6], x[3, 3] = 2**-8, 2**-9, 2**-9, -(2**-9)
    assert code.hopper_sum(x, w)[:, 0].tolist() == [16 + 2**-9, 16, 3 * 2**-10, -16]
    x[1] = x[1].roll(32)  # beyond the first step the running sum is one of the terms
    x[1, 0], x[1, 32] = 4, 0
    assert code.hopper_sum(x, w)[1, 0] == 16
    assert code.hopper_sum(x, w, promote=32)[1, 0] == 16 + 3 * 2**-10


@pytest.mark.parametrize(("sign", "plain", "promoted"), [(False, 0.0012, 0.00012), (True, 0.072, 0.0006)])
def test_hopper_s_error_at_k_4096(code: ModuleType, sign: bool, plain: float, promoted: float) -> None:
    generator = torch.Generator().manual_seed(1)
    w = code.make_weights({"N": 32, "K": 4096}, generator)["weight"].float()
    x = code.make_inputs({"M": 16, "K": 4096}, generator)["x"].float()
    if sign:
        x, w = x.abs(), w.abs()
    exact = x.double() @ w.double().t()

    def error(promote: int) -> float:
        difference = code.hopper_sum(x, w, promote=promote) - exact
        return float(difference.norm() / exact.norm())

    assert error(0) == pytest.approx(plain, rel=0.15)
    assert error(128) == pytest.approx(promoted, rel=0.15)


def test_only_a_promoted_accumulator_passes_the_positive_case(loaded: LoadedProblem, code: ModuleType) -> None:
    tensors = drawn(loaded, "positive", "small-8x64x4096")
    expected, scale = expect(loaded, tensors), tensors.weights["weight_scale"]
    usages = []
    for promote in (0, 128):
        total = code.hopper_sum(tensors.inputs["x"], tensors.weights["weight"], promote=promote)
        usages.append(compare(loaded, tensors, expected, {"y": (total * scale).bfloat16()}).usage)
    assert usages[0] > 5 and usages[1] < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_legal_pipelines_stay_below_two_thirds(loaded: LoadedProblem, seed: int) -> None:
    worst = 0.0
    for shape in loaded.problem.tier(Tier.SMALL):
        for case in (case.name for case in loaded.problem.cases if case.graded):
            tensors = draw(loaded, shape, case, 50 + seed, 60 + seed)
            expected = expect(loaded, tensors)
            for pipeline in loaded.reference.legal.values():
                answer = pipeline(tensors.weights, tensors.inputs, shape)
                worst = max(worst, compare(loaded, tensors, expected, answer).usage)
    assert 0.3 < worst < 0.6


@pytest.mark.parametrize("seed", [1, 2])
def test_named_cases_reject_their_mutants(loaded: LoadedProblem, seed: int) -> None:
    survivors = []
    for mutant in loaded.problem.mutants:
        assert mutant.case is not None
        usages = []
        for shape in loaded.problem.tier(Tier.SMALL):
            tensors = draw(loaded, shape, mutant.case, seed, seed)
            answer = loaded.reference.mutants[mutant.name](tensors.weights, tensors.inputs, shape)
            usages.append(compare(loaded, tensors, expect(loaded, tensors), answer).usage)
        if max(usages) < (1.2 if mutant.note == "thin" else 5.0):
            survivors.append((mutant.name, max(usages)))
    assert not survivors


def test_one_lost_column_of_one_row_is_seen(loaded: LoadedProblem) -> None:
    """What the nominal case alone cannot see: there, a column dropped from a single row hides in the rounding."""
    for case, seen in (("onehot", True), ("nominal", False)):
        tensors = drawn(loaded, case)
        x = tensors.inputs["x"].float()
        row = 0 if case == "onehot" else int(x[:, -1].abs().argmin())
        x[row, -1] = 0
        answer = loaded.reference.legal["fp32_acc"](tensors.weights, {"x": x.to(torch.float8_e4m3fn)}, tensors.shape)
        assert compare(loaded, tensors, expect(loaded, tensors), answer).passed is not seen


def test_prompt_states_the_contract_and_keeps_the_secrets(loaded: LoadedProblem) -> None:
    for text in ("4127", "14336", "float8_e4m3fn", "`_version`", "prepare()", "Addresses may rotate", "0.012"):
        assert text in loaded.prompt
    assert not [mutant.name for mutant in loaded.problem.mutants if mutant.name in loaded.prompt]
    assert "seed" not in loaded.prompt and "onehot" not in loaded.prompt


def test_cost_is_the_specification_s(loaded: LoadedProblem) -> None:
    """Floors in µs at 1979 TFLOP/s and 4.8 TB/s."""
    cost = loaded.problem.cost
    floors = [
        max(evaluate(cost.flops, s.values) / 1979e6, evaluate(cost.bytes, s.values) / 4.8e6)
        for s in loaded.problem.tier(Tier.FULL)
    ]
    assert floors == pytest.approx([69.45, 70.0, 14.15, 243.1], abs=0.05)
