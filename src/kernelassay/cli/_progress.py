"""Progress for whatever takes longer than two seconds, on standard error only.

On a terminal it is a live line; elsewhere plain lines at most every few seconds, so that a log stays short and a
reader still sees that something happens. Nothing is shown for what ends sooner.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from kernelassay.cli._out import err, styled

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_SILENT_S = 2.0
"""Nothing is said before this."""
_EVERY_S = 5.0
"""At most one plain line in this time, unless the phase changed."""
_TICK_S = 0.5
"""How often a plain reporter looks whether a line is due: often enough for the two seconds, idle otherwise."""


class Reporter(Protocol):
    """What a command hands to the judge; the same surface as `kernelassay.judge.Progress`."""

    def phase(self, name: str) -> None: ...

    def advance(self, done: int, total: int, note: str) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Silent:
    """Shows nothing (`--quiet`)."""

    def phase(self, name: str) -> None:
        """Ignored."""

    def advance(self, done: int, total: int, note: str) -> None:
        """Ignored."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close."""


class Plain:
    """Lines such as `· build (12 s)` for logs and pipes."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._line = title
        self._start = time.monotonic()
        self._last = self._start
        self._shown = ""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="assay-progress", daemon=True)

    def phase(self, name: str) -> None:
        """A new phase begins."""
        with self._lock:
            self._line = f"{self._title}: {name}"
        self._say_if_due()

    def advance(self, done: int, total: int, note: str) -> None:
        """`done` of `total` steps of the phase have ended; `note` says which is next."""
        from kernelassay.board import one_line

        with self._lock:
            head = self._line.partition("  ")[0]
            self._line = f"{head}  {done}/{total} {one_line(note, 60)}".rstrip()
        self._say_if_due()

    def _say_if_due(self) -> None:
        with self._lock:
            now = time.monotonic()
            changed = self._line.partition("  ")[0] != self._shown.partition("  ")[0]
            if now - self._start < _SILENT_S or now - self._last < (_SILENT_S if changed else _EVERY_S):
                return
            self._last, self._shown = now, self._line
            err().print(styled(f"· {self._line} ({now - self._start:.0f} s)"), soft_wrap=True)

    def _run(self) -> None:
        while not self._stop.wait(_TICK_S):
            self._say_if_due()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()


class Live:
    """A spinner with the phase, a bar where steps are counted, and the time so far."""

    def __init__(self, title: str) -> None:
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self._title = title
        self._bar: Bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}", style="dim", markup=False),
            TimeElapsedColumn(),
            console=err(),
            transient=True,
            refresh_per_second=5,
        )
        self._task = self._bar.add_task(title, total=None, note="")

    def phase(self, name: str) -> None:
        """A new phase begins."""
        self._bar.reset(self._task, start=True, total=None, completed=0, visible=True)
        self._bar.update(self._task, description=f"{self._title}: {name}", note="")

    def advance(self, done: int, total: int, note: str) -> None:
        """`done` of `total` steps of the phase have ended; `note` says which is next."""
        from kernelassay.board import one_line

        self._bar.update(self._task, completed=done, total=total, note=f"{done}/{total} {one_line(note, 40)}")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


def reporter(title: str, *, quiet: bool = False) -> Reporter:
    """The reporter that fits standard error; `title` must be safe for a terminal."""
    if quiet:
        return Silent()
    return Live(title) if err().is_terminal else Plain(title)
