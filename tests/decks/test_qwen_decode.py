"""cuda/qwen_decode: the stack against another formulation, its distribution, and what its comparator rejects."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernelassay.decks import CaseTensors, LoadedProblem, attribute, compare, draw, expect, load
from kernelassay.records import Tier, evaluate

SMALL = tuple(f"small-128x2-{pos}x4" for pos in (0, 1, 7, 70, 300))
LARGER = tuple(f"small-256x3-{pos}x4" for pos in (0, 3, 129, 513))
THIN = {"int8_v", "fp8_v"}
"""Rejected by less than a factor of 3."""
EPSILON = 0.02
"""The rms bound of out."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Many tiny operations: threads only wait for each other when other tests run beside this one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def loaded() -> LoadedProblem:
    return load("cuda/qwen_decode")


@pytest.fixture(scope="module")
def code(loaded: LoadedProblem) -> ModuleType:
    return sys.modules[loaded.reference.model.__module__]


def drawn(loaded: LoadedProblem, case: str = "nominal", key: str = SMALL[3], seed: int = 1) -> CaseTensors:
    return draw(loaded, loaded.problem.shape(key), case, seed, weights_seed=2)


def answer(loaded: LoadedProblem, tensors: CaseTensors, name: str = "fp32") -> dict[str, Tensor]:
    pipelines = {**loaded.reference.legal, **loaded.reference.mutants}
    return pipelines[name](tensors.weights, tensors.inputs, tensors.shape)


def usage(loaded: LoadedProblem, tensors: CaseTensors, actual: dict[str, Tensor]) -> float:
    """Of an answer along its own trace, for which the oracle's numbers are not needed."""
    return compare(loaded, tensors, dict.fromkeys(("out", "k_cache", "v_cache"), torch.empty(0)), actual).usage


def turned(x: Tensor, position: int) -> Tensor:
    """RoPE as a product of complex numbers; x (heads, D)."""
    half = x.shape[1] // 2
    angle = torch.tensor([position / 10000 ** (j / half) for j in range(half)], dtype=torch.float64)
    z = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((z.real, z.imag), 1)


def by_library(tensors: CaseTensors) -> dict[str, Tensor]:
    """The decode with torch's own norms, products and attention, in float64."""
    w = {name: t.double() for name, t in tensors.weights.items()}
    v = tensors.shape.values
    dim, pos = v["head_dim"], v["pos"]
    keys, values = (tensors.inputs[name].clone() for name in ("k_cache", "v_cache"))
    h, out = tensors.inputs["hidden"], []
    for i, noise in enumerate(tensors.inputs["noise"]):
        h = ((noise.double() + h.double()) / 2).bfloat16()
        for l in range(v["layers"]):
            x = h.double()
            a = F.rms_norm(x, x.shape, w["input_ln"][l], 1e-6)
            q, k, new = (F.linear(a, w[f"{name}_proj"][l]).view(-1, dim) for name in "qkv")
            q = turned(F.rms_norm(q, (dim,), w["q_norm"][l], 1e-6), pos + i)
            keys[l, :, pos + i] = turned(F.rms_norm(k, (dim,), w["k_norm"][l], 1e-6), pos + i).bfloat16()
            values[l, :, pos + i] = new.bfloat16()
            k, new = (t[l, :, : pos + i + 1].double() for t in (keys, values))
            attended = F.scaled_dot_product_attention(q[:, None], k, new, enable_gqa=True)
            x = x + F.linear(attended.flatten(), w["o_proj"][l])
            b = F.rms_norm(x, x.shape, w["post_ln"][l], 1e-6)
            gate, up = F.linear(b, w["gate_proj"][l]), F.linear(b, w["up_proj"][l])
            h = (x + F.linear(gate / (1 + (-gate).exp()) * up, w["down_proj"][l])).bfloat16()
        out.append(h)
    return {"out": torch.stack(out), "k_cache": keys, "v_cache": values}


@pytest.mark.parametrize("key", (*SMALL, *LARGER))
def test_the_oracle_by_the_library_s_own_layers(loaded: LoadedProblem, key: str) -> None:
    """Equal but for sums in another order, which now and then round the other way."""
    for case in ("nominal", "needles", "large_hidden"):
        tensors = drawn(loaded, case, key)
        expected, other = expect(loaded, tensors), by_library(tensors)
        for name in other:
            differ = (expected[name].bfloat16() != other[name]).double().mean()
            assert differ < 0.01, (case, name)
        torch.testing.assert_close(expected["out"].double(), other["out"].double(), rtol=0.02, atol=0.02)
        assert usage(loaded, tensors, other) < 0.35


def test_along_trace_follows_the_submission(loaded: LoadedProblem) -> None:
    """A wrong hidden state is charged to its own step: what follows from it is right along the trace."""
    tensors = drawn(loaded)
    right = answer(loaded, tensors)
    assert usage(loaded, tensors, right) < 0.5
    moved = {name: t.clone() for name, t in tensors.inputs.items()}
    moved["hidden"] = right["out"][0] * 2
    moved["noise"] = tensors.inputs["noise"][1:]
    for name in ("k_cache", "v_cache"):
        moved[name] = right[name].clone()
    shape = tensors.shape.model_copy(update={"values": {**tensors.shape.values, "pos": 71, "n": 3}})
    rest = loaded.reference.legal["fp32"](tensors.weights, moved, shape)
    actual = {**rest, "out": torch.cat((moved["hidden"][None], rest["out"]))}
    result = compare(loaded, tensors, expect(loaded, tensors), actual)
    assert {m.rule for m in result.mismatches} >= {"normalised.group", "normalised.element"}
    assert {m.output for m in result.mismatches} == {"out"} and "row 0 of 4" in result.where
    assert not torch.equal(rest["out"], right["out"][1:])


def test_caches_that_a_submission_filled_with_nan_fail(loaded: LoadedProblem) -> None:
    tensors = drawn(loaded)
    for name in ("out", "k_cache", "v_cache"):
        actual = answer(loaded, tensors)
        actual[name][..., -2, 5] = torch.nan
        assert usage(loaded, tensors, actual) == math.inf


def test_old_rows_are_bitwise(loaded: LoadedProblem) -> None:
    tensors = drawn(loaded)
    actual = answer(loaded, tensors)
    actual["v_cache"][1, 1, 69, 3] *= 1.01
    (mismatch,) = compare(loaded, tensors, expect(loaded, tensors), actual).mismatches
    assert mismatch.rule == "along_trace.exact" and mismatch.index == (1, 1, 69, 3)


def test_one_wrong_new_row_is_seen(loaded: LoadedProblem) -> None:
    """Two heads of one token swapped, in one layer."""
    tensors = drawn(loaded, key=LARGER[2])
    actual = answer(loaded, tensors)
    actual["k_cache"][2, :, -1] = actual["k_cache"][2, :, -1].flip(0)
    result = compare(loaded, tensors, expect(loaded, tensors), actual)
    assert result.usage > 5 and "k_rows" in {m.output for m in result.mismatches}


def test_one_step_late_is_seen(loaded: LoadedProblem) -> None:
    """Every answer but the last right, and that one the step's before."""
    tensors = drawn(loaded)
    actual = answer(loaded, tensors)
    actual["out"][3] = actual["out"][2]
    assert usage(loaded, tensors, actual) > 10


def test_pipelines_and_oracle_leave_their_arguments_alone(loaded: LoadedProblem) -> None:
    tensors = drawn(loaded, key=SMALL[2])
    before = {name: t.clone() for name, t in {**tensors.inputs, **tensors.weights}.items()}
    for name in (*loaded.reference.legal, *loaded.reference.mutants):
        answer(loaded, tensors, name)
    expect(loaded, tensors)
    assert all(torch.equal(t, before[name]) for name, t in {**tensors.inputs, **tensors.weights}.items())


def test_the_eager_model_writes_its_rows_and_no_others(loaded: LoadedProblem) -> None:
    tensors = drawn(loaded).clone()
    model: Any = loaded.reference.model(**tensors.shape.values)
    model.load_state_dict(tensors.weights)
    caches = [tensors.inputs[name] for name in ("k_cache", "v_cache")]
    before = [t.clone() for t in caches]
    out = model.run(*tensors.inputs.values(), pos=70)
    for cache, old in zip(caches, before, strict=True):
        assert torch.equal(cache[:, :, :70], old[:, :, :70])
        assert (cache[:, :, 70:] != old[:, :, 70:]).double().mean() > 0.99
    assert out.shape == (4, 128) and not out.requires_grad


# --- the distribution ---------------------------------------------------------------------------------------------


def test_norms_and_outliers(loaded: LoadedProblem) -> None:
    w = {name: t.float() for name, t in drawn(loaded, key=LARGER[2]).weights.items()}
    for name in ("input_ln", "post_ln"):
        assert w[name].log().std() == pytest.approx(0.3, rel=0.15)
    for name, factor in (("q_norm", 1 / 8), ("k_norm", 8.0)):
        loud, rest = w[name][:, [3, 35]], w[name][:, [j for j in range(64) if j not in (3, 35)]]
        assert (rest / 1.6).log().std() == pytest.approx(0.2, rel=0.25)
        assert (loud / 1.6 / factor).log().abs().max() < 0.8
    v = w["v_proj"].unflatten(1, (2, 64)).square().mean(-1).sqrt() * 16
    o = w["o_proj"].unflatten(2, (8, 64)).square().mean(1).sqrt() * 512**0.5
    assert v[..., 21].min() > 10 and o[..., 21].max() < 0.1
    assert v[..., 20].max() < 1.5 and o[..., 20].min() > 0.8
    gain = {"q_proj": 256, "k_proj": 256, "up_proj": 256, "down_proj": 384}
    assert all(w[name].std() * n**0.5 == pytest.approx(1, rel=0.03) for name, n in gain.items())
    assert w["gate_proj"].std() * 16 == pytest.approx(1.28, rel=0.03)


def test_weights_depend_neither_on_position_nor_on_threads(code: ModuleType, loaded: LoadedProblem) -> None:
    first, second = ({**loaded.problem.shape(SMALL[0]).values, "pos": pos} for pos in (0, 9))
    one = code.make_weights(first, torch.Generator().manual_seed(3))
    torch.set_num_threads(4)
    try:
        two = code.make_weights(second, torch.Generator().manual_seed(3))
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert len({float(matrix.float().sum()) for stack in one.values() for matrix in stack}) == 22


def test_cached_keys_are_rotated_at_their_own_position(loaded: LoadedProblem) -> None:
    inputs = drawn(loaded, key=SMALL[4]).inputs
    keys, values = (inputs[name][:, :, :300].double() for name in ("k_cache", "v_cache"))
    for layer in range(2):
        # Turned back, the two loud channels are 8 times the others.
        back = torch.stack([turned(keys[layer, :, t], -t) for t in range(300)], 1)
        size = back.square().mean((0, 1)).sqrt()
        assert size[[3, 19]].min() / size.median() > 5 and size[[3, 19]].max() / size.median() < 13
        norm = (back / size).square().mean(-1).sqrt()
        assert 0.9 < norm.mean() < 1.1
    spread = values.square().mean((0, 1, 2)).sqrt()
    assert spread[10] == pytest.approx(12, rel=0.1) and spread[9] == pytest.approx(1, rel=0.1)


def test_rows_from_pos_on_are_poison(loaded: LoadedProblem) -> None:
    for case in loaded.reference.cases:
        inputs = drawn(loaded, case, LARGER[1]).inputs
        assert (inputs["k_cache"][:, :, 3:] == 7).all() and (inputs["v_cache"][:, :, 3:] == -55).all()
        assert (inputs["v_cache"][:, :, :3] != -55).any()


@pytest.mark.parametrize("key", [*SMALL[3:], *LARGER[2:]])
def test_scores_are_peaky(loaded: LoadedProblem, key: str) -> None:
    """Queries of the first block on cached keys: σ of 2.6 or so, independent of context."""
    tensors = drawn(loaded, key=key)
    pos, dim = tensors.shape.values["pos"], tensors.shape.values["head_dim"]
    w = {name: t[0].double() for name, t in tensors.weights.items()}
    a = F.rms_norm(tensors.inputs["hidden"].double(), tensors.inputs["hidden"].shape, w["input_ln"], 1e-6)
    q = turned(F.rms_norm((w["q_proj"] @ a).view(-1, dim), (dim,), w["q_norm"], 1e-6), pos)
    scores = torch.einsum("hd,ktd->hkt", q, tensors.inputs["k_cache"][0, :, :pos].double()) / dim**0.5
    assert 1.8 < scores.std() < 3.6


def one_step(loaded: LoadedProblem, shape_key: str, pos: int, part: str) -> float:
    """Relative rms by which a pipeline changes the first token."""
    shape = loaded.problem.shape(shape_key)
    shape = shape.model_copy(update={"values": {**shape.values, "pos": pos, "n": 1}})
    weights = loaded.reference.make_weights(shape, torch.Generator().manual_seed(5))
    inputs = loaded.reference.make_inputs(shape, torch.Generator().manual_seed(6))
    pipelines = {**loaded.reference.legal, **loaded.reference.mutants}
    whole, other = (pipelines[name](weights, inputs, shape)["out"].double() for name in ("fp32", part))
    return float((other - whole).norm() / whole.norm())


@pytest.mark.parametrize("pos", [0, 64, 300, 2048, 8192])
def test_attention_carries_more_than_five_tolerances(loaded: LoadedProblem, pos: int) -> None:
    assert one_step(loaded, SMALL[0], pos, "no_attention") > 5 * EPSILON


@pytest.mark.slow
@pytest.mark.parametrize(("pos", "share"), [(64, 0.87), (2048, 0.53)])
def test_attention_at_the_timed_geometry(loaded: LoadedProblem, pos: int, share: float) -> None:
    """The specification's figures; honest rounding is 50 times smaller."""
    assert one_step(loaded, "full-2048x64", pos, "no_attention") == pytest.approx(share, rel=0.35)
    assert one_step(loaded, "full-2048x64", pos, "bf16_operands") < 0.02


def test_a_poisoned_row_ruins_the_answer(loaded: LoadedProblem) -> None:
    for key in (SMALL[0], SMALL[4], LARGER[3]):
        tensors = drawn(loaded, key=key)
        right, wrong = (answer(loaded, tensors, name)["out"][0].double() for name in ("fp32", "one_row_past_the_end"))
        assert (wrong - right).norm() > 0.5 * right.norm()
        assert usage(loaded, tensors, answer(loaded, tensors, "one_row_past_the_end")) > 10


def test_cases_are_what_they_say(loaded: LoadedProblem) -> None:
    inputs = {case: drawn(loaded, case, SMALL[4]).inputs for case in loaded.reference.cases}
    plain = inputs["nominal"]
    ratio = (inputs["needles"]["k_cache"].float() / plain["k_cache"].float()).median(-1).values[0, 0]
    loud = set((ratio > 2).nonzero().flatten().tolist())
    fixed = {0, 1, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 150, 298, 299}
    assert fixed <= loud and len(loud) <= len(fixed) + 4
    assert torch.equal(inputs["large_v"]["v_cache"][:, :, :300], plain["v_cache"][:, :, :300] * 16)
    assert torch.equal(inputs["large_hidden"]["hidden"], plain["hidden"] * 64)
    assert not inputs["zero_noise"]["noise"].any() and plain["noise"].float().std() == pytest.approx(1, rel=0.1)
    assert plain["hidden"].float().std() == pytest.approx(1.5, rel=0.2)


def test_one_seed_one_case_and_another_seed_another(loaded: LoadedProblem) -> None:
    for case in loaded.reference.cases:
        first, again, other = drawn(loaded, case), drawn(loaded, case), drawn(loaded, case, seed=9)
        assert all(torch.equal(first.inputs[name], again.inputs[name]) for name in first.inputs)
        assert not any(torch.equal(first.inputs[name], other.inputs[name]) for name in first.inputs if name != "noise")


# --- pipelines ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "cases"),
    [
        (3, ("nominal", "needles", "large_v")),
        *(
            pytest.param(seed, ("nominal", "needles", "large_v", "large_hidden", "zero_noise"), marks=pytest.mark.slow)
            for seed in (4, 5, 6)
        ),
    ],
)
def test_legal_pipelines_pass_with_room(loaded: LoadedProblem, seed: int, cases: tuple[str, ...]) -> None:
    worst = max(
        usage(loaded, tensors, answer(loaded, tensors, name))
        for shape in loaded.problem.tier(Tier.SMALL)
        for case in cases
        for tensors in [draw(loaded, shape, case, 50 + seed, 60 + seed)]
        for name in ("bf16_operands", "fp32_between_blocks_bf16_operands")
    )
    assert 0.4 < worst < 0.8


@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3))])
def test_named_cases_reject_their_mutants(loaded: LoadedProblem, seed: int) -> None:
    """On some shape, at least by a factor of 3 but for the two thin ones."""
    assert all(mutant.case is not None for mutant in loaded.problem.mutants)
    survivors = []
    for mutant in loaded.problem.mutants:
        least, most = 1.0 if mutant.name in THIN else 3.0, 0.0
        for shape in reversed(loaded.problem.tier(Tier.SMALL)):
            tensors = draw(loaded, shape, str(mutant.case), seed, seed)
            most = max(most, usage(loaded, tensors, answer(loaded, tensors, mutant.name)))
            if most > least:
                break
        else:
            survivors.append((mutant.name, most))
    assert not survivors


@pytest.mark.parametrize("name", ["theta_1e6", "next_position", "no_attention", "relu"])
def test_a_mutant_is_named_though_it_rounds_elsewhere(loaded: LoadedProblem, code: ModuleType, name: str) -> None:
    """Two runs of one mistake part, but each residual is taken along its own trace."""
    tensors = drawn(loaded, key=SMALL[2])
    rounding = {"vector": code._bf16, "query": code._bf16, "probability": code._bf16}
    mutant = code.MUTANTS[name].args[0]._replace(**rounding)
    actual = code._pipeline(mutant, tensors.weights, tensors.inputs, shape=tensors.shape.values)
    assert not torch.equal(actual["out"], answer(loaded, tensors, name)["out"])
    assert getattr(attribute(loaded, tensors, expect(loaded, tensors), actual), "mutant", None) == name


# --- the record ---------------------------------------------------------------------------------------------------


def test_floors_are_the_specification_s(loaded: LoadedProblem) -> None:
    """µs per token at 989.5 TFLOP/s and 4.8 TB/s; all are bound by memory."""
    cost, floors = loaded.problem.cost, []
    for shape in loaded.problem.tier(Tier.FULL):
        moved = evaluate(cost.bytes, shape.values) / 4.8e6 / shape.values["n"]
        work = evaluate(cost.flops, shape.values) / 989.5e6 / shape.values["n"]
        assert work < moved / 10
        floors.append(moved)
    assert floors == pytest.approx([33.3, 54.3, 138.1, 473.6], abs=0.06)
    parameters = sum(math.prod(t.shape) for t in loaded.reference.model(
        **loaded.problem.shape("full-2048x64").values).parameters())  # fmt: skip
    assert parameters * 2 == pytest.approx(125.83e6, rel=2e-4)
    assert [(s.values["pos"], s.values["n"]) for s in loaded.problem.tier(Tier.FULL)] == [
        (2048, 64),
        (8192, 64),
        (32768, 32),
        (131072, 16),
    ]
    assert [(s.values["pos"], s.values["n"]) for s in loaded.problem.tier(Tier.FULL_PLUS)] == [
        (pos, 8) for pos in (0, 1, 7, 64)
    ]


def test_prompt_keeps_the_secrets(loaded: LoadedProblem) -> None:
    assert all(f"| {pos} | {n} |" in loaded.prompt for pos, n in ((2048, 64), (131072, 16), (64, 8)))
    assert not [m.name for m in loaded.problem.mutants if m.name in loaded.prompt]
    assert "needle" not in loaded.prompt
