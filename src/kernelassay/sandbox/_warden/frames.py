"""One message = four bytes of length (big-endian) and that much JSON. Both ends are trusted, the size is bounded."""

from __future__ import annotations

import json
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HEADER = struct.Struct(">I")
MAX_FRAME = 64 << 20
"""Far above any specification or log; a larger length means that the stream is broken."""


class Closed(Exception):
    """The other end is gone."""


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    """Send one message.

    Raises:
        Closed: the other end is gone.
    """
    body = json.dumps(message).encode()
    try:
        channel.sendall(_HEADER.pack(len(body)) + body)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise Closed from error


def receive(channel: socket.socket) -> dict[str, Any]:
    """Receive one message, blocking.

    Raises:
        Closed: the other end is gone.
    """
    (length,) = _HEADER.unpack(_exactly(channel, _HEADER.size))
    if length > MAX_FRAME:
        raise Closed
    message = json.loads(_exactly(channel, length))
    if not isinstance(message, dict):
        raise Closed
    return message


def _exactly(channel: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        try:
            part = channel.recv(count - len(parts))
        except ConnectionResetError as error:
            raise Closed from error
        if not part:
            raise Closed
        parts += part
    return bytes(parts)
