"""The examples of ops/paged_attention: right on every case, follow table and lengths, and C++ beats torch."""

from __future__ import annotations

import ctypes
import math
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernelassay.decks import LoadedProblem, compare, draw, expect, load
from kernelassay.records import Shape, Tier

from .model_example import Live, Tensors, import_example
from .native import ALWAYS, GUARD, JUDGE_FLAGS, PORTABLE_FLAGS, ROOT

Run = Callable[[Shape, Tensors], Tensors]
NAMES = ("batch", "num_heads", "num_kv_heads", "head_dim", "seq_len", "page_size")
EXAMPLES = ("paged_attention_cpp", "paged_attention_torch")
ODD = ((3, 6, 2, 5, 19, 16), (2, 7, 1, 40, 33, 16), (4, 3, 3, 72, 50, 7), (2, 14, 2, 16, 16, 1), (1, 1, 1, 1, 1, 1))
"""Heads, lengths, pages and rows that fill no block."""


class Native:
    """The function of one shared object; every call gets fresh outputs with guards around them."""

    def __init__(self, folder: Path, flags: tuple[str, ...]) -> None:
        target = folder / f"paged{''.join(flags)}.so"
        source = ROOT / "examples" / "paged_attention_cpp" / "kernel.cpp"
        subprocess.run(["g++", *ALWAYS, *flags, str(source), "-o", str(target)], check=True, timeout=100)
        self._function = ctypes.CDLL(str(target)).paged_attention
        self._function.restype = ctypes.c_int

    def call(self, shape: Shape, inputs: Tensors) -> tuple[int, Tensor]:
        query = inputs["query"]
        buffer = torch.full((query.numel() + 2 * GUARD,), 7.0, dtype=torch.bfloat16)
        pointers = (ctypes.c_void_p * 4)(*(tensor.data_ptr() for tensor in inputs.values()))
        outputs = (ctypes.c_void_p * 1)(buffer[GUARD:].data_ptr())
        code = self._function(pointers, outputs, (ctypes.c_int64 * 6)(*(shape.values[name] for name in NAMES)))
        assert (buffer[:GUARD] == 7).all() and (buffer[-GUARD:] == 7).all(), "wrote outside the output"
        return code, buffer[GUARD:-GUARD].view_as(query)

    def __call__(self, shape: Shape, inputs: Tensors) -> Tensors:
        before = {name: tensor.clone() for name, tensor in inputs.items()}
        code, out = self.call(shape, inputs)
        assert code == 0
        for name, tensor in before.items():
            assert torch.equal(inputs[name], tensor), f"{name} was written"
        return {"out": out}


@pytest.fixture(scope="module")
def loaded() -> LoadedProblem:
    return load("ops/paged_attention")


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Native:
    return Native(tmp_path_factory.mktemp("paged_native"), JUDGE_FLAGS)


@pytest.fixture(scope="module")
def examples(loaded: LoadedProblem, native: Native, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    model = import_example("paged_attention_torch", tmp_path_factory.mktemp("paged_torch"))

    def plain(shape: Shape, inputs: Tensors) -> Tensors:
        return Live(model, loaded, shape)(inputs)

    return dict(zip(EXAMPLES, (native, plain), strict=True))


def shape_of(values: tuple[int, ...]) -> Shape:
    return Shape(key="odd", tier=Tier.SMALL, values=dict(zip(NAMES, values, strict=True)))


def attend(shape: Shape, inputs: Tensors) -> Tensor:
    """Token by token in float64: a reading of the contract apart from the deck's."""
    page, group = shape.values["page_size"], shape.values["num_heads"] // shape.values["num_kv_heads"]
    query, cache, table = inputs["query"].double(), inputs["kv_cache"].double(), inputs["block_table"].tolist()
    batch, heads, dim = query.shape
    out = torch.empty_like(query)
    for b in range(batch):
        length = int(inputs["seq_lens"][b])
        tokens = torch.stack([cache[table[b][t // page], t % page] for t in range(length)])
        for h in range(heads):
            rows = tokens[:, h // group]
            p = (rows[:, :dim] @ query[b, h] / math.sqrt(dim)).softmax(0)
            out[b, h] = p @ rows[:, dim:]
    return out


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_case(example: str, loaded: LoadedProblem, examples: dict[str, Run]) -> None:
    for shape in loaded.problem.tier(Tier.SMALL):
        for case in loaded.reference.cases:
            tensors = draw(loaded, shape, case, seed=5, weights_seed=6)
            result = compare(loaded, tensors, expect(loaded, tensors), examples[example](shape, tensors.inputs))
            assert result.passed and result.usage < 0.6, (shape.key, case, result)


def check_odd_shapes(native: Native, loaded: LoadedProblem) -> None:
    for values in ODD:
        shape = shape_of(values)
        page, longest = shape.values["page_size"], shape.values["seq_len"]
        for seed in range(4):
            inputs = draw(loaded, shape, "nominal", seed, weights_seed=6).inputs
            inputs["seq_lens"].copy_(torch.arange(seed, seed + len(inputs["seq_lens"])) * 5 % longest + 1)
            used = torch.zeros(inputs["kv_cache"].shape[:2], dtype=torch.bool)
            for b, length in enumerate(inputs["seq_lens"].tolist()):
                t = torch.arange(length)
                used[inputs["block_table"][b, t // page].long(), t % page] = True
            inputs["kv_cache"][~used] = torch.nan  # a factor of zero would not hide it
            code, out = native.call(shape, inputs)
            expected = attend(shape, inputs)
            error = (out.double() - expected).abs()
            assert code == 0 and bool((error <= 2**-8 * expected.abs() + 1e-5).all()), (values, seed)


def test_odd_shapes(loaded: LoadedProblem, native: Native) -> None:
    check_odd_shapes(native, loaded)


@pytest.mark.slow
def test_odd_shapes_on_a_plain_machine(loaded: LoadedProblem, tmp_path: Path) -> None:
    check_odd_shapes(Native(tmp_path, PORTABLE_FLAGS), loaded)


@pytest.mark.parametrize("example", EXAMPLES)
def test_results_follow_table_and_lengths_and_stay(
    example: str, loaded: LoadedProblem, examples: dict[str, Run]
) -> None:
    """The same objects with other content, as the judge changes them."""
    shape = loaded.problem.shape("small-6x8x2x64x250")
    tensors, other = draw(loaded, shape, "nominal", 1, 2), draw(loaded, shape, "ragged", 3, 2)
    first = examples[example](shape, tensors.inputs)["out"]
    kept = first.clone()
    for name, tensor in tensors.inputs.items():
        tensor.copy_(other.inputs[name])
    second = examples[example](shape, tensors.inputs)
    assert compare(loaded, tensors, expect(loaded, tensors), second).passed
    assert torch.equal(first, kept) and not torch.equal(second["out"], kept)


def test_what_it_refuses(loaded: LoadedProblem, native: Native) -> None:
    shape = loaded.problem.shape("small-5x8x1x32x77")
    fresh = draw(loaded, shape, "nominal", 1, 2)
    for name, value in (("seq_lens", 0), ("seq_lens", 78), ("block_table", -1), ("block_table", 64)):
        inputs = fresh.clone().inputs
        inputs[name][-1] = value
        assert native.call(shape, inputs)[0] == 2, (name, value)
    assert native.call(shape_of((5, 8, 3, 32, 77, 16)), fresh.inputs)[0] == 1
    assert native.call(shape_of((5, 8, 1, 32, 77, 0)), fresh.inputs)[0] == 1


@pytest.mark.slow
def test_threads_do_not_change_the_answer(loaded: LoadedProblem, native: Native) -> None:
    """A shape large enough for threads: its first sequence is the same as alone."""
    shape = shape_of((6, 16, 2, 64, 700, 16))
    tensors = draw(loaded, shape, "nominal", 1, 2)
    out = native(shape, tensors.inputs)
    assert compare(loaded, tensors, expect(loaded, tensors), out).passed
    alone = shape_of((1, 16, 2, 64, 700, 16))
    inputs = {name: tensor if name == "kv_cache" else tensor[:1] for name, tensor in tensors.inputs.items()}
    pages = inputs["block_table"][0].long()
    cache = torch.zeros(64, *inputs["kv_cache"].shape[1:], dtype=torch.bfloat16)
    cache[: len(pages)] = inputs["kv_cache"][pages]
    inputs = {**inputs, "kv_cache": cache, "block_table": torch.arange(len(pages), dtype=torch.int32)[None]}
    assert torch.equal(native(alone, inputs)["out"], out["out"][:1])


@pytest.mark.slow
def test_the_native_one_is_faster(loaded: LoadedProblem, examples: dict[str, Run]) -> None:
    def best(run: Run, shape: Shape, inputs: Tensors) -> float:
        times = []
        for _ in range(20):
            started = time.perf_counter()
            run(shape, inputs)
            times.append(time.perf_counter() - started)
        return min(times)

    for shape in loaded.problem.tier(Tier.SMALL):
        inputs = draw(loaded, shape, "nominal", 1, 2).inputs
        native, plain = (best(examples[name], shape, inputs) for name in EXAMPLES)
        assert native < plain, shape.key
