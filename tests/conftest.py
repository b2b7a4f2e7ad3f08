"""What all suites share: the tests hear the signals that they send, and queue for no device with anybody else."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def _heard() -> Iterator[None]:
    """A shell lets what runs in the background ignore Ctrl-C, `nohup` a hang-up; what these start ignores it too."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="session")
def _own_leases() -> Iterator[None]:
    """Leases in a folder of this run, open to other users as the machine's own is: their time limits are not met by
    tests that wait for somebody else's grade.
    """
    folder = tempfile.mkdtemp(prefix="kernelassay-test-leases-")
    Path(folder).chmod(0o1777)
    before = os.environ.get("KERNELASSAY_LEASES")
    os.environ["KERNELASSAY_LEASES"] = folder
    yield
    if before is None:
        del os.environ["KERNELASSAY_LEASES"]
    else:
        os.environ["KERNELASSAY_LEASES"] = before
    shutil.rmtree(folder, ignore_errors=True)
