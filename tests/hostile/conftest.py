"""One arena per file of attacks; each file ends with an honest and a wrong grade, as if nothing had been."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelassay.records import Status, Verdict
from tests.hostile.arena import HONEST, WRONG, Arena, open_arena


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    stages = Path(tempfile.mkdtemp(prefix="kernelassay-arena-", dir="/var/tmp"))
    stages.chmod(0o711)  # a jail's own uid passes through
    try:
        with pytest.MonkeyPatch.context() as patch:
            arena = open_arena(tmp_path_factory.mktemp("arena"), stages, patch)
            yield arena
            honest, wrong = arena.grade({"solution.py": HONEST}), arena.grade({"solution.py": WRONG})
            assert (honest.status, honest.verdict, honest.findings) == (Status.CORRECT, Verdict.CLEAN, ())
            assert (wrong.status, wrong.verdict) == (Status.WRONG, Verdict.INCORRECT)
    finally:
        shutil.rmtree(stages)
