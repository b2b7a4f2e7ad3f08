"""The honest example is right on every case and shape, from any thread, and leaves nothing running."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from .native import JUDGE_FLAGS, PORTABLE_FLAGS, NativeTopK, why_wrong
from .topk_cases import CASES, FULL, FULL_PLUS, ODD, SMALL, Shape, draw

Build = Callable[..., NativeTopK]
LIFE = Path(__file__).with_name("life_of_a_library.py")


@pytest.mark.parametrize("flags", [JUDGE_FLAGS, PORTABLE_FLAGS], ids=["native", "portable"])
@pytest.mark.parametrize("shape", [*SMALL, *FULL_PLUS, *ODD], ids=str)
def test_every_case(build: Build, flags: tuple[str, ...], shape: Shape) -> None:
    topk = build("topk_cpp", flags)
    for case in CASES:
        x = draw(case, shape)
        before = x.clone()
        assert why_wrong(x, shape[2], *topk(x, shape[2])) is None, case
        assert torch.equal(x.view(torch.int32), before.view(torch.int32)), f"{case}: the input was written"


@pytest.mark.parametrize("shape", FULL, ids=str)
@pytest.mark.parametrize("case", ["nominal", "sorted_pieces", "strided", "inf"])
def test_full_shapes(build: Build, shape: Shape, case: str) -> None:
    x = draw(case, shape)
    assert why_wrong(x, shape[2], *build("topk_cpp")(x, shape[2])) is None


@pytest.mark.slow
@pytest.mark.parametrize("shape", FULL, ids=str)
def test_full_shapes_every_case(build: Build, shape: Shape) -> None:
    for case in CASES:
        x = draw(case, shape, seed=1)
        assert why_wrong(x, shape[2], *build("topk_cpp")(x, shape[2])) is None, case


def test_many_seeds_and_k(build: Build) -> None:
    topk = build("topk_cpp")
    for seed in range(150):
        n = int(torch.randint(1, 3000, (), generator=torch.Generator().manual_seed(seed)))
        for k in {1, min(n, 1 + seed % 40), max(1, n // 33), max(1, n // 32)}:
            x = draw("nominal", (2, n, k), seed).mul(8).round()  # many ties
            assert why_wrong(x, k, *topk(x, k)) is None, (seed, n, k)


def test_same_object_new_contents(build: Build) -> None:
    topk = build("topk_cpp")
    x = draw("nominal", (4, 20_000, 9))
    for seed in range(6):
        x.copy_(draw("nominal", (4, 20_000, 9), seed))
        assert why_wrong(x, 9, *topk(x, 9)) is None
        x[2, 19_999 - seed] = 1e9
        values, indices = topk(x, 9)
        assert values[2, 0] == 1e9 and indices[2, 0] == 19_999 - seed


def test_calls_from_several_threads_at_once(build: Build) -> None:
    topk = build("topk_cpp")
    shapes = [(16, 12000, 16), (1, 131072, 64), (8, 1024, 8), (3, 1001, 7), (64, 4096, 1)]

    def one(seed: int) -> str | None:
        shape = shapes[seed % len(shapes)]
        x = draw("nominal", shape, seed)
        return why_wrong(x, shape[2], *topk(x, shape[2]))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(one, range(60))) == [None] * 60


@pytest.mark.parametrize("shape", [(1, 131072, 64), (6, 30_000, 40)], ids=str)
def test_the_choice_among_ties_does_not_depend_on_threads(build: Build, shape: Shape) -> None:
    # Of calls at the same time one has the pool and the others work alone.
    topk = build("topk_cpp")
    x = draw("two_values", shape)
    with ThreadPoolExecutor(4) as threads:
        answers = [indices for _, indices in threads.map(lambda _: topk(x, shape[2]), range(40))]
    assert all(torch.equal(indices, answers[0]) for indices in answers)


@pytest.mark.parametrize("offset", range(1, 8))
def test_rows_that_start_unaligned(build: Build, offset: int) -> None:
    flat = draw("nominal", (1, 2 * 1501 + 8, 1))[0]
    x = flat[offset : offset + 2 * 1501].view(2, 1501)
    assert why_wrong(x, 13, *build("topk_cpp")(x, 13)) is None


def test_denormals_count_although_the_caller_flushes_them(build: Build) -> None:
    shape = (4, 2048, 32)
    x = draw("denormal", shape)
    topk = build("topk_cpp")
    supported = torch.set_flush_denormal(True)
    try:
        answer = topk(x, 32)
        unchanged = float(torch.tensor(1e-39) * 1) == 0.0
    finally:
        torch.set_flush_denormal(False)
    assert why_wrong(x, 32, *answer) is None
    assert unchanged or not supported, "the kernel changed the caller's floating-point mode"


def test_nan_is_no_legal_input_but_harmless(build: Build) -> None:
    for share in (0.001, 0.5, 1.0):
        x = draw("nominal", (4, 2048, 32))
        x[torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < share] = torch.nan
        _, indices = build("topk_cpp")(x, 32)
        assert bool(((indices >= 0) & (indices < 2048)).all())
        assert all(len(set(row.tolist())) == 32 for row in indices)
    x = torch.full((3, 500), -1, dtype=torch.int32).view(torch.float32)
    assert sorted(build("topk_cpp")(x, 9)[1][0].tolist()) == list(range(9))
    x = torch.full((3, 500), 0x7FFFFFFF, dtype=torch.int32).view(torch.float32)
    assert sorted(build("topk_cpp")(x, 9)[1][0].tolist()) == list(range(9))


@pytest.mark.parametrize("shape", [(1, 4, 5), (1, 4, 0), (1, 4, -1), (-1, 4, 2), (1, 0, 1), (1, 1 << 32, 1)], ids=str)
def test_bad_shapes_are_refused(build: Build, shape: Shape) -> None:
    assert build("topk_cpp").code(*shape) == 1


@pytest.mark.parametrize("scene", ["quiet", "one_cpu", "fork", "close", "page_end"])
def test_life_of_the_library(build: Build, scene: str) -> None:
    # A process of its own: forks, closes the library and would die of a read past the end.
    ran = subprocess.run(
        [sys.executable, str(LIFE), str(build("topk_cpp").library), scene], capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, "right"), ran.stderr
