"""Who holds a device, and what its journal says of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kernelassay.records._base import Record


class LeaseOwner(Record):
    """The process that holds a device: for people, and for a child that asks for what its parent holds."""

    device: str
    token: int = Field(gt=0)
    """Fencing token: grows with every process that asks for the device, and never shrinks while the folder lasts."""
    pid: int = Field(gt=0)
    started: int = Field(ge=0)
    """Start of the process in clock ticks since boot, which tells it from a later one with the same pid."""
    uid: int = Field(ge=0)
    command: tuple[str, ...]
    since: float = Field(ge=0, allow_inf_nan=False)
    """Unix time in seconds."""
    limit_s: float | None = Field(gt=0, allow_inf_nan=False)
    """After this many seconds the holder is ended; None: never."""
    heartbeat: float = Field(ge=0, allow_inf_nan=False)
    """Unix time of the last sign of life, in seconds."""


class LeaseEvent(Record):
    """One line of a device's journal."""

    event: Literal["wait", "start", "end", "left"]
    """`wait`: a ticket was drawn; `start`, `end`: the device was held; `left`: a waiter gave up."""
    device: str
    token: int = Field(gt=0)
    pid: int = Field(gt=0)
    """Process of the holder or waiter that the line is about."""
    uid: int = Field(ge=0)
    wall: float = Field(ge=0, allow_inf_nan=False)
    """Unix time of writing, in seconds."""
    monotonic: float = Field(ge=0, allow_inf_nan=False)
    """The same on the kernel's monotonic clock, which all processes of one boot share, in seconds."""
    how: Literal["released", "limit", "died"] | None = None
    """How it ended; `died` is written by the next holder, who found the record standing."""
    seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Waited (`start`, `left`) or held (`end`); None where it is not known."""
