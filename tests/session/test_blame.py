"""What goes wrong before anything of a submission runs is never blamed on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from kernelassay.decks import load
from kernelassay.records import Limits, Manifest
from kernelassay.sandbox import Sandbox, SandboxError
from kernelassay.session import Job, Session, _session


@pytest.fixture
def job(tmp_path: Path) -> Job:
    tmp_path.chmod(0o755)
    return Job(load("ops/topk").problem, tmp_path, Manifest(), None, Limits(), threads=1)


def test_a_worker_that_does_not_come_up_is_the_machines_fault(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_session, "START_S", 0.0)
    with Session(Sandbox(), job) as session, pytest.raises(SandboxError, match="before anything of the submission ran"):
        session.start()


def test_a_judge_whose_files_changed_starts_no_worker(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update while a grade runs: the new worker's replies would look like a forged channel."""

    class Untouched:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"the sandbox was asked to {name}")

    monkeypatch.setattr(_session, "WORKER_DIGEST", b"another")
    with pytest.raises(SandboxError, match="changed while it runs"):
        Session(cast("Sandbox", Untouched()), job)
