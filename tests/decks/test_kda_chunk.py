"""ops/kda_chunk: the recurrence against a dense solve, the distribution, the cases, and what each case rejects."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor

from kernelassay.decks import CaseTensors, LoadedProblem, compare, draw, expect, load
from kernelassay.records import Shape, Tier, evaluate

SMALLEST, TWO_HEADS = "small-2x128x1x128x128", "small-2x192x2x32x32"
TEETH = {
    "prediction_before_decay": 5.0,
    "inverse_4_doublings": 5.0,
    "doubling_64_bf16": 2.0,
    "doubling_64_fp32": 5.0,
    "state_bf16_per_token": 4.0,
    "fp8_qk": 4.0,
}
"""Least usage in the named case; 20 for the others."""


@pytest.fixture(scope="module")
def loaded() -> LoadedProblem:
    return load("ops/kda_chunk")


@pytest.fixture(scope="module")
def code(loaded: LoadedProblem) -> ModuleType:
    return sys.modules[loaded.reference.model.__module__]


def drawn(loaded: LoadedProblem, case: str, key: str = TWO_HEADS, seed: int = 1) -> CaseTensors:
    return draw(loaded, loaded.problem.shape(key), case, seed, weights_seed=2)


def dense(inputs: dict[str, Tensor]) -> Tensor:
    """o without any state: per (b, h) one triangular system over all T tokens, every pair's decay taken on its own."""
    out = torch.empty(inputs["v"].shape, dtype=torch.float64)
    tokens = inputs["q"].shape[1]
    for b in range(inputs["q"].shape[0]):
        for h in range(inputs["q"].shape[2]):
            q, k, v, g, beta = (inputs[name][b, :, h].double() for name in ("q", "k", "v", "g", "beta"))
            total = g.cumsum(0)
            keys, queries = torch.zeros(2, tokens, tokens, dtype=torch.float64).unbind()
            for t in range(tokens):
                faded = k[: t + 1] * (total[t] - total[: t + 1]).exp()
                keys[t, : t + 1], queries[t, : t + 1] = faded @ k[t], faded @ q[t]
            system = torch.eye(tokens, dtype=torch.float64) + beta[:, None] * keys.tril(-1)
            out[b, :, h] = queries @ torch.linalg.solve(system, beta[:, None] * v) * q.shape[1] ** -0.5
    return out


@pytest.mark.parametrize(
    ("case", "key"),
    [
        ("nominal", TWO_HEADS),
        ("strong_decay", TWO_HEADS),
        ("repeated", TWO_HEADS),
        ("beta_one", SMALLEST),
        ("reset", "small-1x320x3x64x64"),
    ],
)
def test_the_oracle_against_one_dense_solve(loaded: LoadedProblem, case: str, key: str) -> None:
    tensors = drawn(loaded, case, key)
    difference = expect(loaded, tensors)["o"] - dense(tensors.inputs)
    # The sum of g over T reaches -1000, so its differences have lost four digits of sixteen.
    assert difference.abs().max() < 1e-9 * dense(tensors.inputs).abs().max()


def test_a_memory_by_hand(code: ModuleType) -> None:
    """Orthogonal keys: what was written last under a key is read, faded since by its own channel alone."""
    tokens, width = 5, 4
    k, v, g = torch.zeros(tokens, width), torch.zeros(tokens, 1), torch.zeros(tokens, width)
    k[torch.arange(4), torch.tensor([0, 1, 0, 2])] = 1
    v[:, 0] = torch.tensor([3.0, 5.0, 7.0, 11.0, 0.0])
    g[1, 0] = g[3, 1] = -1.0
    beta = torch.tensor([1.0, 1.0, 0.5, 1.0, 0.0])
    q = torch.ones(tokens, width)
    inputs = {name: t[None, :, None].double() for name, t in {"q": q, "k": k, "v": v, "g": g}.items()}
    o = code.oracle({}, {**inputs, "beta": beta[None, :, None].double()})["o"].flatten()
    e = torch.tensor(-1.0, dtype=torch.float64).exp()
    half = 3 * e + 0.5 * (7 - 3 * e)
    wanted = torch.stack((3 + 0 * e, 3 * e + 5, half + 5, half + 5 * e + 11, half + 5 * e + 11)) / 2  # 4^-1/2
    torch.testing.assert_close(o, wanted, rtol=1e-14, atol=0)


@pytest.mark.parametrize("case", ["nominal", "strong_decay", "correlated", "mixed_rows"])
def test_chunk_and_recurrence_are_one_function(loaded: LoadedProblem, code: ModuleType, case: str) -> None:
    tensors = drawn(loaded, case, "small-1x320x3x64x64")
    o = expect(loaded, tensors)["o"]
    for size in (16, 32, 64):
        difference = code.chunked(tensors.inputs, size=size) - o
        assert difference.norm() < 1e-5 * o.norm()


def test_draws_follow_their_seeds(loaded: LoadedProblem) -> None:
    first, again, other = (drawn(loaded, "reset", seed=seed).inputs for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_channels_forget_in_2_to_500_tokens(loaded: LoadedProblem) -> None:
    shape = Shape(key="wide", tier=Tier.SMALL, values={"B": 1, "T": 1024, "H": 8, "K": 128, "V": 8}, launch_bound=True)
    inputs = draw(loaded, shape, "nominal", 3, 0).inputs
    g = inputs["g"]
    # softplus of N(0, 1) has a mean of 0.806, so -mean(g) = 1.163·λ
    rate = -g.mean((0, 1)) * torch.tensor(2.0).log() / 0.806
    assert 1 / 600 < rate.min() < 1 / 480 and 0.45 < rate.max() < 0.55
    assert rate.log2().mean() == pytest.approx(-5, abs=0.3) and rate.log2().std() == pytest.approx(8 / 12**0.5, abs=0.2)
    assert (g <= 0).all() and (g >= -5).all()
    beta = inputs["beta"].float()
    assert beta.mean() == pytest.approx(0.5, abs=0.02) and beta.std() == pytest.approx(0.208, abs=0.02)
    for name in ("q", "k"):
        assert (inputs[name].float().norm(dim=-1) - 1).abs().max() < 0.004


@pytest.mark.parametrize("key", [TWO_HEADS, "small-1x512x1x128x128", "full-plus-1x64x1"])
def test_cases_keep_the_contract(loaded: LoadedProblem, key: str) -> None:
    for case in loaded.reference.cases:
        tensors = drawn(loaded, case, key)
        i = tensors.inputs
        assert (i["g"] <= 0).all() and (i["g"] >= -5).all(), case
        assert (i["beta"] >= 0).all() and (i["beta"] <= 1).all(), case
        assert i["k"].float().norm(dim=-1).max() < 1.004, case
        assert all(t.isfinite().all() for t in i.values()), case
        assert expect(loaded, tensors)["o"].abs().amax() > 0, case


def test_cases_are_what_they_say(loaded: LoadedProblem) -> None:
    i = {case: drawn(loaded, case, "small-1x512x1x128x128").inputs for case in loaded.reference.cases}
    plain = i["nominal"]
    strong = i["strong_decay"]["g"]
    assert (strong[..., ::4] == -5).all()
    rest = torch.stack([strong[..., c::4] for c in (1, 2, 3)])
    assert (rest < -2.5).float().mean() == pytest.approx(0.15, abs=0.02)
    assert not i["no_decay"]["g"].any()
    wiped = (i["reset"]["g"] == -5).all(3).all(2)[0].nonzero().flatten()
    assert wiped.diff().tolist() == [1, 1] and int(wiped[0]) % 64 >= 16 and int(wiped[-1]) % 64 < 50
    memory = i["long_memory"]
    assert memory["g"].sum(1).abs().max() < 2 and not memory["v"][:, 64:].any() and memory["v"][:, :64].any()
    assert memory["beta"][:, 64:].max() < 0.11
    assert not i["beta_zero_tail"]["beta"][:, 256:].any() and (i["beta_zero_tail"]["beta"][:, :256] > 0).all()
    assert (i["beta_one"]["beta"] == 1).all()
    for case, cosine in (("correlated", 0.3), ("repeated", 0.8)):
        k = i[case]["k"][0, :, 0].float()
        assert (k @ k.t()).triu(1).sum() / (512 * 511 / 2) == pytest.approx(cosine, abs=0.03)
    for name, spread in (("v", 0.7), ("q", 1.0)):
        factor = i["mixed_rows"][name].float().norm(dim=-1) / plain[name].float().norm(dim=-1)
        assert (factor[:, :8] - 1).abs().max() < 0.01
        assert factor[:, 8:].log().std() == pytest.approx(0.96 * spread, rel=0.1)
        assert factor.log().abs().max() == pytest.approx(2 * spread, rel=0.01)
    assert torch.equal(i["scale_up"]["v"], plain["v"] * 256) and torch.equal(i["scale_up"]["q"], plain["q"] * 8)
    assert torch.equal(i["scale_down"]["v"], plain["v"] * 2**-12)


def test_rounding_to_tf32(code: ModuleType) -> None:
    t = torch.tensor([1.0, 1 + 2**-10, 1 + 2**-11, 1 + 2**-12, -(1 + 2**-11), 3.0e38, 0.0])
    wanted = [1.0, 1 + 2**-10, 1 + 2**-10, 1.0, -(1 + 2**-10)]
    assert code._tf32(t)[:5].tolist() == wanted and code._tf32(t)[5:].isfinite().all()


def test_six_doublings_are_the_whole_inverse(code: ModuleType) -> None:
    lower = 0.1 * torch.randn(64, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64).tril(-1)
    exact = (torch.eye(64, dtype=torch.float64) + lower).inverse()
    whole = code._doubling(6, lambda t: t, lower)
    torch.testing.assert_close(whole, exact, rtol=1e-9, atol=1e-9)
    terms = sum((torch.linalg.matrix_power(-lower, i) for i in range(4)), torch.zeros_like(lower))
    torch.testing.assert_close(code._doubling(2, lambda t: t, lower), terms, rtol=1e-9, atol=1e-12)


def legal_usage(loaded: LoadedProblem, shapes: tuple[Shape, ...], cases: list[str], seed: int) -> float:
    worst = 0.0
    for shape in shapes:
        for case in cases:
            tensors = draw(loaded, shape, case, 50 + seed, 60 + seed)
            expected = expect(loaded, tensors)
            for pipeline in loaded.reference.legal.values():
                answer = pipeline(tensors.weights, tensors.inputs, shape)
                worst = max(worst, compare(loaded, tensors, expected, answer).usage)
    return worst


@pytest.mark.parametrize("seed", [2, 3])
def test_legal_pipelines_pass_with_room_where_they_come_nearest(loaded: LoadedProblem, seed: int) -> None:
    shapes = (loaded.problem.shape(TWO_HEADS), loaded.problem.shape(SMALLEST))
    assert 0.5 < legal_usage(loaded, shapes, ["repeated", "strong_decay", "mixed_rows"], seed) < 0.85


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4, 5])
def test_legal_pipelines_pass_with_room_everywhere(loaded: LoadedProblem, seed: int) -> None:
    shapes = (*loaded.problem.tier(Tier.SMALL), *loaded.problem.tier(Tier.FULL_PLUS))
    assert 0.5 < legal_usage(loaded, shapes, list(loaded.reference.cases), seed) < 0.9


def teeth(loaded: LoadedProblem, name: str, keys: list[str], seed: int) -> float:
    mutant = next(m for m in loaded.problem.mutants if m.name == name)
    assert mutant.case is not None
    usages = []
    for key in keys:
        tensors = draw(loaded, loaded.problem.shape(key), mutant.case, seed, seed)
        answer = loaded.reference.mutants[name](tensors.weights, tensors.inputs, tensors.shape)
        usages.append(compare(loaded, tensors, expect(loaded, tensors), answer).usage)
    return max(usages)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_named_cases_reject_their_mutants(loaded: LoadedProblem, seed: int) -> None:
    keys = [shape.key for shape in loaded.problem.tier(Tier.SMALL)]
    found = {m.name: teeth(loaded, m.name, keys, seed) for m in loaded.problem.mutants}
    assert not {name: usage for name, usage in found.items() if usage < TEETH.get(name, 20.0)}


@pytest.mark.parametrize(
    "name", ["prediction_before_decay", "doubling_64_fp32", "inverse_4_doublings", "decay_after_write", "heads_rotated"]
)
def test_one_small_shape_rejects_the_subtle_ones(loaded: LoadedProblem, name: str) -> None:
    assert teeth(loaded, name, [TWO_HEADS], 3) > TEETH.get(name, 20.0)


def test_a_cut_series_passes_the_nominal_case(loaded: LoadedProblem) -> None:
    """Why correlated keys are a case: with independent ones, sixteen terms of the inverse are enough."""
    tensors = drawn(loaded, "nominal", "small-1x512x1x128x128")
    for name in ("inverse_4_doublings", "doubling_64_fp32"):
        answer = loaded.reference.mutants[name](tensors.weights, tensors.inputs, tensors.shape)
        assert compare(loaded, tensors, expect(loaded, tensors), answer).passed, name


def test_one_stale_head_is_seen(loaded: LoadedProblem) -> None:
    tensors = drawn(loaded, "nominal")
    expected = expect(loaded, tensors)
    answer = expected["o"].to(torch.bfloat16)
    assert compare(loaded, tensors, expected, {"o": answer}).usage < 0.3
    answer[0, -1, 1] = answer[0, -2, 1]  # one token of one head
    result = compare(loaded, tensors, expected, {"o": answer})
    assert not result.passed and result.where.startswith("axis 0: 0 of 2, axis 1: 191 of 192, row 1 of 2")


def test_prompt_states_the_contract_and_keeps_the_secrets(loaded: LoadedProblem) -> None:
    for text in (
        "4096",
        "multiple of 64",
        "raw log-decay",
        "`_version`",
        "Addresses may rotate",
        "0.02",
        "-5 ≤ `g` ≤ 0",
    ):
        assert text in loaded.prompt
    assert not [mutant.name for mutant in loaded.problem.mutants if "_" in mutant.name and mutant.name in loaded.prompt]
    assert "seed" not in loaded.prompt


def test_cost_is_the_specification_s(loaded: LoadedProblem) -> None:
    """Floors in µs at 989.5 TFLOP/s and 4.8 TB/s: memory-bound throughout."""
    cost = loaded.problem.cost
    full = loaded.problem.tier(Tier.FULL)
    moved = [evaluate(cost.bytes, s.values) / 4.8e6 for s in full]
    computed = [evaluate(cost.flops, s.values) / 989.5e6 for s in full]
    assert moved == pytest.approx([5.25, 10.5, 10.5, 2.62], abs=0.02)
    assert all(a > b for a, b in zip(moved, computed, strict=True))
    assert [s.launch_bound for s in full] == [True, False, False, True]
