"""A message arrives whole or is refused, and never shifts the boundary of the next one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelassay.worker import wire

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    a, b = wire.pair()
    b.settimeout(0.2)
    with a, b:
        yield a, b


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.text(max_size=8), values, max_size=4))
def test_round_trip(pair: Pair, message: dict[str, object]) -> None:
    wire.send(pair[0], message)
    assert wire.receive(pair[1], accept_fds=False) == (message, [])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(min_size=1, max_size=200))
def test_any_bytes_are_a_message_or_refused(pair: Pair, data: bytes) -> None:
    pair[0].send(data)
    wire.send(pair[0], {"next": 1})
    try:
        message, _ = wire.receive(pair[1], accept_fds=False)
        assert isinstance(message, dict)
    except wire.WireError:
        pass
    assert wire.receive(pair[1], accept_fds=False)[0] == {"next": 1}


@pytest.mark.parametrize(
    "data",
    [b"[1]", b"1", b'"x"', b"null", b"{", b"\xff\xfe", b"[" * 100_000, b"{}" + b" " * wire.MAX_PACKET, b"9" * 5000],
)
def test_what_is_no_message(pair: Pair, data: bytes) -> None:
    pair[0].send(data)
    with pytest.raises(wire.WireError):
        wire.receive(pair[1], accept_fds=False)


def test_descriptors_go_where_they_are_wanted(pair: Pair) -> None:
    fd = os.memfd_create("x")
    try:
        wire.send(pair[0], {"a": 1}, [fd])
        wire.send(pair[0], {"b": 2}, [fd])
        before = len(list(Path("/proc/self/fd").iterdir()))
        message, fds = wire.receive(pair[1], accept_fds=True)
        assert message == {"a": 1}
        assert len(fds) == 1
        os.close(fds[0])
        assert wire.receive(pair[1], accept_fds=False) == ({"b": 2}, [])
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    finally:
        os.close(fd)


def test_the_end(pair: Pair) -> None:
    with pytest.raises(TimeoutError):
        wire.receive(pair[1], accept_fds=False)
    pair[0].close()
    with pytest.raises(wire.Closed):
        wire.receive(pair[1], accept_fds=False)
    with pytest.raises(wire.Closed):
        wire.send(pair[1], {"a": 1})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "x" * (wire.MAX_PACKET + 1)])
def test_what_is_not_sent(pair: Pair, value: object) -> None:
    with pytest.raises(wire.WireError):
        wire.send(pair[0], {"value": value})
