"""The workers of one grade: each is a fresh process, and the next ones start while the present one works.

Starting an interpreter with torch takes two seconds, and a grade needs several workers one after another. Those that
wait hold nothing of the submission: it is loaded into a worker only when the one before is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from kernelassay.sandbox import Sandbox
from kernelassay.session import Job, Session

AHEAD = 2
"""Workers that may wait at once: each holds some 200 MB, and two are what the costliest probe needs in a row."""


class Workers:
    """Hands out workers in turn. Close it, or use it as a context manager."""

    def __init__(self, sandbox: Sandbox, job: Job, *, expected: int = 0) -> None:
        """`expected`: how many will be asked for; so many are started ahead of need, at most `AHEAD` at once."""
        self.sandbox, self.job = sandbox, job
        self.logs: list[str] = []
        """What each printed, in the order in which they ended."""
        self._expected = expected
        self._waiting: list[Session] = []
        self._start_ahead()

    @contextmanager
    def open(self, *, load: bool = True) -> Iterator[Session]:
        """The next worker, with the submission loaded unless `load` is false; it ends with the block.

        Raises:
            kernelassay.sandbox.SandboxError: it did not start.
            kernelassay.session.Trouble: the submission could not be imported.
        """
        if not self._waiting:
            self._expected += 1
            self._start_ahead()
        session = self._waiting.pop(0)
        with session:
            try:
                self._start_ahead()
                if load:
                    session.load()
                else:
                    session.start()
                yield session
            finally:
                session.close()
                self.logs.append(session.log().decode(errors="replace"))

    def wait(self) -> None:
        """Until nobody is starting: a clock wants the cores for itself."""
        for session in self._waiting:
            session.start()

    def _start_ahead(self) -> None:
        while self._expected > 0 and len(self._waiting) < AHEAD:
            self._expected -= 1
            self._waiting.append(Session(self.sandbox, self.job))

    def close(self) -> None:
        """End those that nobody asked for."""
        while self._waiting:
            self._waiting.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
