"""The framing that judge and worker share: one JSON object per packet, descriptors beside it, never pickle.

The channel is a Unix `SOCK_SEQPACKET` pair, so the kernel keeps each message's length: a hostile peer can
send a wrong message but can never shift the boundary of the next one.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import Any

MAX_PACKET = 1 << 17
"""Bytes in one packet. Tensors never travel here; below the kernel's default send buffer (208 KiB)."""
MAX_FDS = 8
"""Descriptors beside one packet."""


class WireError(Exception):
    """The peer sent something that is not a message."""


class Closed(Exception):
    """The peer's end is gone."""


def pair() -> tuple[socket.socket, socket.socket]:
    """A connected pair of packet sockets."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one message.

    Raises:
        Closed: the peer's end is gone.
        WireError: the message is larger than `MAX_PACKET` or holds a non-finite number.
    """
    try:
        data = json.dumps(message, allow_nan=False).encode()
    except ValueError as error:
        raise WireError(f"not a message: {error}") from error
    if len(data) > MAX_PACKET:
        raise WireError(f"a message of {len(data)} bytes; at most {MAX_PACKET}")
    try:
        socket.send_fds(sock, [data], list(fds))
    except (BrokenPipeError, ConnectionResetError) as error:
        raise Closed(str(error)) from error


def receive(sock: socket.socket, *, accept_fds: bool) -> tuple[dict[str, Any], list[int]]:
    """Receive one message, waiting as long as the socket's timeout says.

    With `accept_fds` false no room is given to descriptors, so the kernel drops those that come: the judge
    never holds what a submission opened.

    Raises:
        Closed: the peer's end is gone.
        WireError: the packet is no JSON object, or too large.
        TimeoutError: nothing came in the socket's timeout.
    """
    fds: list[int] = []
    try:
        if accept_fds:
            data, fds, _flags, _ = socket.recv_fds(sock, MAX_PACKET + 1, MAX_FDS)
        else:
            data = sock.recv(MAX_PACKET + 1)
    except ConnectionResetError as error:
        raise Closed(str(error)) from error
    if not data:
        raise Closed("end of stream")
    if len(data) > MAX_PACKET:
        raise WireError(f"a packet of more than {MAX_PACKET} bytes")
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {data[:60]!r}") from error
    if not isinstance(message, dict):
        raise WireError(f"not a JSON object: {data[:60]!r}")
    return message, fds
