"""cuda/nsa_attention: the selection in integers, its ties, the cases, and which mutant each named case rejects."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernelassay.decks import CaseTensors, LoadedProblem, compare, draw, expect, load
from kernelassay.records import Tier, evaluate

BLOCK = 64
KEYS = ("small-1x2x832x64", "small-1x2x1000x64", "small-1x1x703x128", "small-2x2x640x64")
LEAST = 2.0
"""Usage that every mutant reaches in its named case at some small shape, whatever the draw."""


@pytest.fixture(scope="module")
def loaded() -> LoadedProblem:
    return load("cuda/nsa_attention")


@pytest.fixture(scope="module")
def code(loaded: LoadedProblem) -> ModuleType:
    return sys.modules[loaded.reference.model.__module__]


def drawn(loaded: LoadedProblem, case: str, key: str = KEYS[0], seed: int = 1) -> CaseTensors:
    return draw(loaded, loaded.problem.shape(key), case, seed, weights_seed=0)


def exact_blocks(q: Tensor, k: Tensor) -> Iterator[list[int]]:
    """The blocks that each query of one head keeps: integers for scores, fractions for means, and a plain sort."""
    scores = np.rint(q.double().numpy() * 4).astype(np.int64) @ np.rint(k.double().numpy() * 4).astype(np.int64).T
    for t, row in enumerate(scores):
        means = []
        for block in range(t // BLOCK + 1):
            part = row[block * BLOCK : min(t + 1, (block + 1) * BLOCK)]
            means.append((Fraction(int(part.sum()), len(part)), block))
        yield [block for _, block in sorted(means)[-8:]]


def mask_of(q: Tensor, k: Tensor) -> Tensor:
    """(S, S): key j is selected by query t."""
    mask = torch.zeros(len(q), len(k), dtype=torch.bool)
    for t, blocks in enumerate(exact_blocks(q, k)):
        keys = {j for block in blocks for j in range(block * BLOCK, (block + 1) * BLOCK) if j <= t}
        keys |= set(range(max(0, t - 63), t + 1))
        mask[t, sorted(keys)] = True
    return mask


def test_shapes_and_floors_are_the_specification_s(loaded: LoadedProblem) -> None:
    full = loaded.problem.tier(Tier.FULL)
    assert [tuple(s.values.values()) for s in full] == [
        (1, 16, 2048, 64),
        (1, 16, 4127, 64),
        (1, 8, 8192, 64),
        (1, 8, 8191, 128),
        (4, 8, 1024, 64),
        (2, 8, 3000, 64),
    ]
    assert [tuple(s.values.values()) for s in loaded.problem.tier(Tier.FULL_PLUS)] == [(1, 1, 65, 64)]
    assert tuple(s.key for s in loaded.problem.tier(Tier.SMALL)) == KEYS
    cost = loaded.problem.cost
    floors = [max(evaluate(cost.flops, s.values) / 989.5e6, evaluate(cost.bytes, s.values) / 4.8e6) for s in full]
    assert [round(f, 1) for f in floors] == [3.9, 8.5, 9.0, 17.9, 3.5, 6.0]
    assert [f < 10 for f in floors] == [s.launch_bound for s in full]


@pytest.mark.parametrize("s", [65, 640, 703, 1000])
def test_flops_are_the_sum_over_queries(loaded: LoadedProblem, s: int) -> None:
    keys = sum(min(t + 1, 512) for t in range(s))
    blocks = sum(t // 64 for t in range(s))
    expected = 6 * (4 * 32 * keys + 2 * 32 * blocks + s * 32)
    assert evaluate(loaded.problem.cost.flops, {"B": 2, "H": 3, "S": s, "D": 32}) == expected


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("case", ["nominal", "ties", "all_tied", "block_signal"])
def test_oracle_is_torch_s_attention_under_a_mask_from_fractions(loaded: LoadedProblem, case: str, key: str) -> None:
    tensors = drawn(loaded, case, key)
    q, k, v = (tensors.inputs[name][0, -1] for name in "qkv")
    other = scaled_dot_product_attention(q.double()[None], k.double()[None], v.double()[None], attn_mask=mask_of(q, k))[
        0
    ]
    torch.testing.assert_close(expect(loaded, tensors)["o"][0, -1], other, rtol=1e-9, atol=1e-9)


def test_oracle_at_a_sequence_of_one_block_and_a_key(loaded: LoadedProblem) -> None:
    tensors = draw(loaded, loaded.problem.tier(Tier.FULL_PLUS)[0], "nominal", 1, 0)
    q, k, v = (tensors.inputs[name].double() for name in "qkv")
    dense = scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(expect(loaded, tensors)["o"], dense, rtol=1e-9, atol=1e-9)


def test_a_draw_is_a_function_of_its_seed(loaded: LoadedProblem) -> None:
    for case, key in (("one_hot_block", KEYS[0]), ("ties", KEYS[2])):
        one, same, other = (drawn(loaded, case, key, seed).inputs for seed in (1, 1, 2))
        assert all(torch.equal(one[name], same[name]) for name in one)
        assert not any(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("case", ["nominal", "ties", "block_signal", "negative_sums", "large_q", "one_hot_block"])
def test_elements_are_coarse_in_every_case(loaded: LoadedProblem, case: str) -> None:
    """Then the sums of a block stay below 2^24 units and are exact in float32 in any order."""
    for key in KEYS:
        inputs = drawn(loaded, case, key).inputs
        unit = {"q": 1.0 if case == "large_q" else 0.25, "k": 0.25}
        for name, step in unit.items():
            t = inputs[name].double()
            assert torch.equal(t, (t / step).round() * step) and t.abs().max() <= 16 * step


def gaps(loaded: LoadedProblem, code: ModuleType, case: str, key: str, seeds: range) -> Tensor:
    """Gaps at the boundary of all queries that leave a block out."""
    parts = []
    for seed in seeds:
        inputs = drawn(loaded, case, key, seed).inputs
        gap = code.gap(inputs["q"], inputs["k"])
        parts.append(gap[gap < torch.inf])
    return torch.cat(parts)


def test_share_of_ties(loaded: LoadedProblem, code: ModuleType) -> None:
    """At least 0.1 % of rows in the nominal case and 3 % in `ties`; never a gap that rounding could close."""
    exact = [key for key in KEYS if key != KEYS[2]]
    for case, least, keys in (
        ("nominal", 0.001, ["full-4x8x1024x64"]),  # 16384 rows: a small shape has one or two tied rows, or none
        ("ties", 0.03, exact),
        ("all_tied", 0.5, exact),
        ("zero_q", 1.0, exact),
    ):
        gap = torch.cat([gaps(loaded, code, case, key, range(2)) for key in keys])
        assert (gap == 0).double().mean() >= least
        assert not ((gap > 0) & (gap < 1e-5)).any()


def test_where_the_scale_is_inexact_no_row_is_tied(loaded: LoadedProblem, code: ModuleType) -> None:
    for case in loaded.reference.cases:
        if case != "zero_q":
            assert gaps(loaded, code, case, KEYS[2], range(2)).min() >= 1e-4
    assert (gaps(loaded, code, "zero_q", KEYS[2], range(1)) == 0).all()


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("case", ["nominal", "ties", "negative_sums", "large_q"])
def test_float32_selects_the_same_blocks_in_five_ways(
    loaded: LoadedProblem, code: ModuleType, case: str, key: str
) -> None:
    inputs = drawn(loaded, case, key).inputs
    q, k = inputs["q"].float(), inputs["k"].float()
    s, scale = q.shape[2], q.shape[3] ** -0.5
    right = code.best(code.importance(q.double(), k.double()))
    t = torch.arange(s)
    blocks = torch.arange(right.shape[3]) * BLOCK
    count = (t[:, None] + 1 - blocks).clamp(1, BLOCK).float()
    ahead = blocks > t[:, None]
    causal = (t <= t[:, None]).float()
    pad = (0, -s % BLOCK)

    def summed(scores: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(scores * causal, pad)
        return padded.view(*padded.shape[:3], -1, BLOCK).sum(-1)

    plain = q @ k.transpose(2, 3)
    scaled = (q * scale) @ k.transpose(2, 3)
    ways = {
        "keys summed first": code.importance(q, k),
        "scores over n": summed(plain) / count,
        "scores times 1/n": summed(plain) * (1 / count),
        "scaled scores over n": summed(plain * scale) / count,
        "scaled q, times 1/n": summed(scaled) * (1 / count),
    }
    for name, imp in ways.items():
        assert torch.equal(code.best(imp.masked_fill(ahead, -torch.inf)), right), name


def test_cases_are_what_they_say(loaded: LoadedProblem, code: ModuleType) -> None:
    inputs = {case: drawn(loaded, case).inputs for case in loaded.reference.cases}
    nominal = inputs["nominal"]
    assert nominal["q"].float().std() == pytest.approx(1.0, abs=0.02) and nominal["q"].abs().max() > 3.5
    for name in "qk":
        assert inputs["ties"][name].unique().tolist() == [-1, 0, 1]
        assert (inputs["ties"][name] == 0).float().mean() == pytest.approx(2 / 3, abs=0.01)
    tied = inputs["all_tied"]["k"].unflatten(2, (-1, BLOCK))
    assert (tied == tied[:, :, :1]).all()
    means = inputs["block_signal"]["k"].float().unflatten(2, (-1, BLOCK)).mean(3)
    assert means.std() > 0.8
    imp = code.importance(*(inputs["negative_sums"][name].double() for name in "qk"))
    assert imp[..., 1:, :][imp[..., 1:, :] > -torch.inf].max() < 0
    assert torch.equal(inputs["large_q"]["q"], nominal["q"] * 4)
    assert torch.equal(inputs["large_v"]["v"], nominal["v"] * 256)
    assert not inputs["zero_q"]["q"].any()
    assert torch.equal(drawn(loaded, "all_tied", KEYS[2]).inputs["k"], drawn(loaded, "nominal", KEYS[2]).inputs["k"])


@pytest.mark.parametrize("key", KEYS)
def test_an_old_block_takes_most_of_the_mass(loaded: LoadedProblem, key: str) -> None:
    inputs = drawn(loaded, "one_hot_block", key).inputs
    q, k = inputs["q"][0, 0].double(), inputs["k"][0, 0].double()
    p = (q[320:] @ k.T * q.shape[1] ** -0.5).masked_fill(~mask_of(q, k)[320:], -torch.inf).softmax(-1)
    share = p[:, : p.shape[1] // BLOCK * BLOCK].unflatten(1, (-1, BLOCK)).sum(-1).mean(0)
    blocks = -(-p.shape[1] // BLOCK)
    assert share.max() > 0.6 and int(share.argmax()) < blocks // 4


def worst_legal(loaded: LoadedProblem, seed: int, keys: tuple[str, ...] = KEYS) -> float:
    worst = 0.0
    for key in keys:
        for case in loaded.reference.cases:
            tensors = drawn(loaded, case, key, seed)
            answer = expect(loaded, tensors)
            for pipeline in loaded.reference.legal.values():
                result = compare(loaded, tensors, answer, pipeline({}, tensors.inputs, tensors.shape))
                worst = max(worst, result.usage)
    return worst


def test_legal_pipelines_pass_with_room(loaded: LoadedProblem) -> None:
    assert 0.25 < worst_legal(loaded, 50, KEYS[2:3]) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60, 66))
def test_legal_pipelines_pass_with_room_on_more_seeds(loaded: LoadedProblem, seed: int) -> None:
    assert 0.25 < worst_legal(loaded, seed) < 0.5


def weak(loaded: LoadedProblem, seed: int) -> list[tuple[str, float]]:
    """Mutants that stay below LEAST in their named case at every small shape."""
    found = []
    known: dict[tuple[str | None, str], tuple[CaseTensors, dict[str, Tensor]]] = {}
    for mutant in loaded.problem.mutants:
        assert mutant.case is not None
        usage = 0.0
        for key in KEYS:
            if (mutant.case, key) not in known:
                tensors = drawn(loaded, mutant.case, key, seed)
                known[mutant.case, key] = tensors, expect(loaded, tensors)
            tensors, right = known[mutant.case, key]
            answer = loaded.reference.mutants[mutant.name]({}, tensors.inputs, tensors.shape)
            usage = max(usage, compare(loaded, tensors, right, answer).usage)
            if usage >= LEAST:
                break
        else:
            found.append((mutant.name, usage))
    return found


def test_named_cases_reject_their_mutants(loaded: LoadedProblem) -> None:
    assert not weak(loaded, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_named_cases_reject_their_mutants_on_more_seeds(loaded: LoadedProblem, seed: int) -> None:
    assert not weak(loaded, seed)


def test_one_query_with_one_wrong_block_is_found(loaded: LoadedProblem, code: ModuleType) -> None:
    """The group ratio sees a single row of 1664."""
    tensors = drawn(loaded, "large_q")
    right = expect(loaded, tensors)
    wrong = right["o"].to(torch.bfloat16)
    assert compare(loaded, tensors, right, {"o": wrong}).passed
    wrong[0, 1, 831] = loaded.reference.mutants["top_7"]({}, tensors.inputs, tensors.shape)["o"][0, 1, 831]
    result = compare(loaded, tensors, right, {"o": wrong})
    assert "normalised.group" in [m.rule for m in result.mismatches]
