"""The journal of a device: one JSON line per wait, start and end, and what it proves.

The rule: a line is appended with one write to a file opened for appending, so that lines of several processes never
mix. It begins with the newline: a kill can cut a write short where it crosses a page of the file, and what it leaves
must not swallow the next line. A cut line is no loss: its writer is dead, so its ticket or record says the same.
Exclusion and order are read off the lines alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Literal

from pydantic import ValidationError

from kernelassay.devices._lease_files import LeaseError, LeaseFiles
from kernelassay.records import LeaseEvent

How = Literal["released", "limit", "died"]


def append(
    files: LeaseFiles,
    event: Literal["wait", "start", "end", "left"],
    token: int,
    *,
    pid: int | None = None,
    uid: int | None = None,
    how: How | None = None,
    seconds: float | None = None,
) -> None:
    """Write one line about this process, or about another one that cannot do it any more.

    Raises:
        LeaseError: the line could not be written whole.
    """
    line = LeaseEvent(
        event=event,
        device=files.device,
        token=token,
        pid=os.getpid() if pid is None else pid,
        uid=os.geteuid() if uid is None else uid,
        wall=time.time(),
        monotonic=time.monotonic(),
        how=how,
        seconds=seconds,
    )
    text = b"\n" + line.model_dump_json(exclude_none=True).encode()
    handle = files.open("journal")
    try:
        written = os.write(handle, text)
    except OSError as error:
        raise LeaseError(f"the journal of {files.device} in {files.path}: {error.strerror}; next: df") from error
    finally:
        os.close(handle)
    if written != len(text):
        raise LeaseError(f"the journal of {files.device} in {files.path} is full; next: df {files.path}")


def read(files: LeaseFiles) -> tuple[list[LeaseEvent], int]:
    """The lines of the journal in the order written, and how many could not be read as such."""
    with os.fdopen(files.open("journal"), "rb") as file:
        lines = file.read().split()  # no line holds a space
    events, unreadable = [], 0
    for line in lines:
        try:
            events.append(LeaseEvent.model_validate_json(line))
        except ValidationError:
            unreadable += 1
    return events, unreadable


def violations(events: Iterable[LeaseEvent]) -> list[str]:
    """What in a device's journal breaks exclusion or the order of arrival; empty where both held.

    A holder that was killed left no line of its own; its end is the one that the next holder wrote for it. Such an
    end may come for a lease that had just been given back, or whose start was never written: that is no breach.
    """
    wrong: list[str] = []
    holder: LeaseEvent | None = None
    drawn: set[int] = set()
    last = 0
    for event in events:
        if event.event == "wait":
            if event.token <= max(drawn, default=0):
                wrong.append(f"ticket {event.token} was drawn after a later one")
            drawn.add(event.token)
        elif event.event == "start":
            if holder is not None:
                wrong.append(f"{event.token} (pid {event.pid}) began while {holder.token} (pid {holder.pid}) held")
            if event.token <= last:
                wrong.append(f"{event.token} began after {last}, which came later")
            if event.token not in drawn:
                wrong.append(f"{event.token} began without a ticket")
            holder, last = event, max(last, event.token)
        elif event.event == "end":
            if holder is not None and event.token == holder.token:
                holder = None
            elif event.how != "died":
                wrong.append(f"{event.token} ended, which did not hold")
    return wrong
