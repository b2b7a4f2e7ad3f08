"""The device's lease around whatever is timed: taken before cores are pinned or kept awake, so that waiting disturbs
nobody who measures.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kernelassay.devices import Lease, lease, lease_name
from kernelassay.judge._request import Progress
from kernelassay.records import Device


@dataclass
class _Beating:
    """Progress that is also a sign of life in the lease's record."""

    progress: Progress
    held: Lease

    def phase(self, name: str) -> None:
        self.held.beat()
        self.progress.phase(name)

    def advance(self, done: int, total: int, note: str) -> None:
        self.held.beat()
        self.progress.advance(done, total, note)


@contextmanager
def leased(device: Device, progress: Progress) -> Iterator[Progress]:
    """Hold the device for the block, without a limit; `progress` hears of the wait. Yields what to report to meanwhile.

    Raises:
        kernelassay.devices.LeaseError: the lease's files cannot be used.
    """
    with lease(lease_name(device), on_wait=lambda waiting: progress.advance(0, waiting.position, str(waiting))) as held:
        yield _Beating(progress, held)
