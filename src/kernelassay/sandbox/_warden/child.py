"""From fork to exec: the steps that turn a child of the warden into the jailed command (or into bubblewrap)."""

from __future__ import annotations

import os
import resource
import signal

from . import confine
from .cgroup import Cgroups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

OVERHEAD_TASKS = 4
"""bubblewrap's own two processes, with room for the moment in which they start."""
OPEN_FILES = 4096
"""Enough for torch, a compiler and one descriptor per tensor."""


def become(spec: dict[str, Any], output: int, error: int, extra: dict[str, int]) -> NoReturn:
    """Confine this process as `spec` says and exec its command; a failure goes to the pipe `error` and ends it.

    `extra` are descriptors for bubblewrap by the name that stands for them in its arguments.
    """
    parent = os.getppid()
    try:
        os.setsid()
        os.setpriority(os.PRIO_PROCESS, 0, spec["nice"])
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        Cgroups(**spec["cgroups"]).join()
        _descriptors(output, {*spec["pass_fds"], *extra.values(), error})
        confine.set_limits(_rlimits(spec))
        if spec["cpus"] is not None:
            os.sched_setaffinity(0, spec["cpus"])
        os.umask(0o022)
        if spec["uid"] is not None:
            confine.drop(spec["uid"], spec["uid"])
        elif os.geteuid() == 0:
            confine.forget_capabilities()
        confine.die_with_parent(parent)
        confine.no_new_privileges()
        os.chdir(spec["scratch"])
        command, environment = _command(spec, extra)
        os.execvpe(command[0], command, environment)
    except BaseException as failure:  # whatever it is, nothing of the warden may go on running in the child
        os.write(error, f"{type(failure).__name__}: {failure}".encode()[:4000])
    finally:
        os._exit(127)


def _command(spec: dict[str, Any], extra: dict[str, int]) -> tuple[list[str], dict[str, str]]:
    step: dict[str, Callable[[], tuple[list[str], dict[str, str]]]] = {
        "namespaces": lambda: _bubblewrap(spec, extra),
        "landlock": lambda: _landlock(spec),
        "none": lambda: (spec["argv"], spec["env"]),
    }
    return step[spec["level"]]()


def _bubblewrap(spec: dict[str, Any], extra: dict[str, int]) -> tuple[list[str], dict[str, str]]:
    numbers = [f"{extra[text[1:]]}" if text[:1] == "@" else text for text in spec["bwrap"]]
    return [*numbers, "--", *spec["argv"]], {}


def _landlock(spec: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    me = f"/proc/{os.getpid()}"
    readable = confine.READ_FILE | confine.READ_DIR
    confine.landlock([*[(path, rights) for path, rights in spec["landlock"]], (me, readable)])
    confine.seccomp(bytes.fromhex(spec["seccomp"]))
    return spec["argv"], spec["env"]


def _descriptors(output: int, keep: set[int]) -> None:
    """Standard input from /dev/null, output and error into the pipe; besides `keep`, every other fd is closed."""
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:
                continue  # the descriptor of the listing itself


def _rlimits(spec: dict[str, Any]) -> dict[int, int]:
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: spec["limits"]["file_bytes"],
        resource.RLIMIT_NOFILE: OPEN_FILES,
    }
    if spec["nproc"] is not None:
        limits[resource.RLIMIT_NPROC] = spec["nproc"] + OVERHEAD_TASKS
    return limits
