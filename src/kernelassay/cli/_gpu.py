"""`assay gpu`: run a command while holding a device, and show who holds it."""

from __future__ import annotations

import shlex
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from kernelassay.cli._errors import CommandError
from kernelassay.cli._options import Json, Quiet
from kernelassay.cli._out import emit, note, show, styled
from kernelassay.cli._progress import reporter

if TYPE_CHECKING:
    from kernelassay.devices import LeaseStatus
    from kernelassay.records import LeaseEvent, LeaseOwner

LIMIT_EXIT = 124
"""What `timeout` of the GNU core utilities ends with for the same reason."""
_SIGNAL_EXIT = 128
"""A command that ended by signal N gives 128 + N, as every shell says it."""
_TAIL = 10
"""Journal lines shown."""
_CUT = 300
"""Characters of a foreign command line that are shown."""


def app() -> App:
    """The group of commands `assay gpu`."""
    group = App(name="gpu", help="Hold a device for one command, or show who holds it.")
    group.default(run)
    group.command(status)
    return group


def run(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    device: str = "cpu",
    limit: float | None = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run a command while holding a device: assay gpu --device NAME -- COMMAND ARGUMENTS.

    Whoever came first is served first. Waiting has no limit. The exit code is the command's; 124 when the limit
    ended it, 128 + N when signal N did.

    Parameters
    ----------
    command
        The command and its arguments, after `--`.
    device
        A device of `assay device`, or any other name: whoever uses the same one takes turns.
    limit
        Seconds after which everything of the command is ended; an hour unless given.
    json
        Print how it ended as JSON; the command's output goes to standard error.
    quiet
        No progress.
    """
    if not command:
        raise CommandError("no command to run", "assay gpu --help")
    from kernelassay.devices import LIMIT_S, lease, run_held, valid_limit

    limit_s = LIMIT_S if limit is None else limit
    if not valid_limit(limit_s):
        raise CommandError(f"--limit {limit_s:g}: a positive number of seconds", "assay gpu --help")
    with ExitStack() as stack:
        with reporter(f"waiting for {device}", quiet=quiet or json) as progress:  # later the terminal is the command's
            asked = lease(_unit(device), limit_s=limit_s, on_wait=lambda w: progress.advance(0, w.position, str(w)))
            held = stack.enter_context(asked)
        ended = run_held(held, command, limit_s=limit_s, stdout=sys.stderr.fileno() if json else None)
    if ended.stuck:
        stuck = ", ".join(map(str, ended.stuck))
        note(f"warning: these processes of the command would not end: {stuck}; next: ps -fp {ended.stuck[0]}")
    if ended.ended == "limit":
        note(f"error: the command held {device} for its limit of {limit_s:g} s and was ended")
        note(f"next: assay gpu --device {device} --limit {2 * limit_s:g} -- {shlex.join(command)}")
    code = {"exit": ended.code, "signal": _SIGNAL_EXIT + ended.code, "limit": LIMIT_EXIT}[ended.ended]
    if json:
        emit(
            {
                "device": device,
                "token": held.token,
                "nested": held.nested,
                "waited_s": held.waited_s,
                "held_s": held.held_s,
                "limit_s": limit_s,
                "ended": ended.ended,
                "code": ended.code,
                "exit_code": code,
            }
        )
    return code


def _unit(name: str) -> str:
    """The name under which a device of the catalogue is held; any other name stands for itself.

    Raises:
        kernelassay.devices.DeviceError: that device is not on this machine.
    """
    from kernelassay.devices import CATALOGUE, detect, lease_name

    return lease_name(detect(name)) if name.partition(":")[0] in CATALOGUE else name


def status(*, device: str = "cpu", json: Json = False) -> int:
    """Show who holds a device, who waits, and the last lines of its journal.

    Parameters
    ----------
    device
        The device.
    json
        Print it as JSON.
    """
    from kernelassay.board import one_line
    from kernelassay.devices import lease_status

    found = lease_status(_unit(device))
    if json:
        emit(_document(found))
        return 0
    show(styled(f"{device}: {found.note}", "bold"))
    if found.owner is not None:
        show(styled(_owner_line(found.owner)))
    for place, pid in enumerate(found.waiters, 1):
        show(styled(f"waiting, place {place}: pid {pid}"))
    for event in found.events[-_TAIL:]:
        show(styled(_event_line(event)))
    if found.unreadable:
        show(styled(f"lines of the journal that a kill cut short, or that are not ours: {found.unreadable}"))
    for line in found.violations:
        show(styled(f"the journal shows: {one_line(line, _CUT)}", "red"))
    show(styled(f"files: {found.folder}"))
    return 0


def _document(found: LeaseStatus) -> dict[str, Any]:
    return {
        "device": found.device,
        "held": found.held,
        "note": found.note,
        "owner": None if found.owner is None else found.owner.model_dump(mode="json"),
        "waiters": list(found.waiters),
        "journal": [event.model_dump(mode="json") for event in found.events[-_TAIL:]],
        "unreadable": found.unreadable,
        "violations": list(found.violations),
        "folder": str(found.folder),
    }


def _owner_line(owner: LeaseOwner) -> str:
    from kernelassay.board import one_line

    limit = "no limit" if owner.limit_s is None else f"limit {owner.limit_s:g} s"
    beat = max(0.0, time.time() - owner.heartbeat)
    return f"{one_line(shlex.join(owner.command), _CUT)}; {limit}; last sign of life {beat:.0f} s ago"


def _event_line(event: LeaseEvent) -> str:
    moment = datetime.fromtimestamp(event.wall, UTC)
    about = {"start": "waited", "left": "waited", "end": "held", "wait": ""}[event.event]
    seconds = f", {about} {event.seconds:.1f} s" if event.seconds is not None else ""
    how = f", {event.how}" if event.how else ""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC  {event.event:<5} token {event.token}, pid {event.pid}{how}{seconds}"
