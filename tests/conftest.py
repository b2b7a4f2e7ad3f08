"""What all suites share: the tests hear the signals that they send."""

from __future__ import annotations

import signal
from collections.abc import Iterator

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
