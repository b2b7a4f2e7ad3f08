"""What the jail prints: read to the last byte, kept as head and tail, counted against its limit."""

from __future__ import annotations

import os

HEAD_BYTES = 256 << 10
TAIL_BYTES = 256 << 10
"""A compiler's first errors and a program's last words; the middle of a flood tells nothing."""
_CHUNK = 1 << 16
_TURN_BYTES = 4 << 20
"""Read per turn, so that a flood cannot keep the warden from its other duties."""


class Output:
    """The reading end of the jail's standard output and error, which share one pipe."""

    def __init__(self, limit: int) -> None:
        self.descriptor = -1
        self.limit = limit
        self.total = 0
        self._head = bytearray()
        self._tail = bytearray()
        self._open = False

    @property
    def over(self) -> str | None:
        """`output` once more than the limit was printed."""
        return "output" if self.total > self.limit else None

    def attach(self, descriptor: int) -> None:
        """Read from this non-blocking descriptor from now on."""
        self.descriptor = descriptor
        self._open = True

    def pump(self, to_the_end: bool = False) -> bool:
        """Take what is there; False once the pipe has ended. `to_the_end`: all that is there, not one turn."""
        taken = 0
        while self._open and (to_the_end or taken < _TURN_BYTES):
            try:
                part = os.read(self.descriptor, _CHUNK)
            except BlockingIOError:
                break
            if not part:
                self._open = False
                break
            taken += len(part)
            self._keep(part)
        return self._open

    def _keep(self, part: bytes) -> None:
        self.total += len(part)
        room = max(0, min(HEAD_BYTES, self.limit) - len(self._head))
        self._head += part[:room]
        self._tail += part[room:]
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]

    def text(self) -> bytes:
        """Head and tail; a line between them says how much was left out."""
        tail = bytes(self._tail[-TAIL_BYTES:])
        left_out = self.total - len(self._head) - len(tail)
        if not left_out:
            return bytes(self._head) + tail
        return bytes(self._head) + f"\n[… {left_out} bytes left out …]\n".encode() + tail
