"""Shared fixture: native examples, each compiled once per session."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from .native import JUDGE_FLAGS, NativeTopK, compile_example


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., NativeTopK]:
    """`build(example, flags)`."""

    @functools.cache
    def compiled(example: str, flags: tuple[str, ...] = JUDGE_FLAGS) -> NativeTopK:
        return compile_example(example, flags, tmp_path_factory.mktemp(example) / "libkernel.so")

    return compiled
