"""The warden: starts one jail, watches it, and leaves nothing of it behind, whatever happens to the judge.

Single-threaded and trusted. It lives until the judge closes the control channel or dies (both are an end of
file, and a pidfd tells the death apart from a forked copy of the channel), then kills every process of the jail,
removes its control groups and its stage, and exits. It ignores a terminal's signals: those are for the judge.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import time
from contextlib import suppress

from . import child, confine, procs
from .cgroup import Cgroups
from .frames import Closed, receive, send
from .output import Output
from .reap import remove_tree, settle
from .watch import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TICK_S = 0.1
"""Pause between two looks at memory, processes and scratch: an excess lives no longer than this and the look."""
NICE = -10
"""Where permitted: a fork bomb of a hundred busy processes must not keep the warden from its look."""
START_TIMEOUT_S = 20.0
"""bubblewrap needs some 20 ms; this allows for a machine that swaps."""


class Failed(Exception):
    """The jail could not be started; the text goes to the judge."""


class Warden:
    """One jail, from fork to the last trace of it."""

    def __init__(self, channel: socket.socket, spec: dict[str, Any]) -> None:
        self.channel = channel
        self.spec = spec
        self.cgroups = Cgroups(**spec["cgroups"])
        self.output = Output(spec["limits"]["output_bytes"])
        self.known = frozenset((s.st_dev, s.st_ino) for s in map(os.fstat, spec["pass_fds"]))
        self.main = 0
        self.inner: int | None = None
        self.ending: dict[str, Any] | None = None
        self.watch: Watch | None = None

    def serve(self) -> None:
        """Start the jail, answer the judge until it closes or dies, then clean up."""
        judge = os.pidfd_open(self.spec["judge"])
        wakeup, signalled = os.pipe()
        for end in (wakeup, signalled):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        try:
            try:
                self.start()
            except (Failed, OSError) as failure:
                send(self.channel, {"failed": str(failure)})
                return
            send(self.channel, {"pid": self.inner or self.main, "init": self.inner_init, "main": self.main})
            self.loop(judge, wakeup)
        except Closed:
            pass
        finally:
            self.finish()

    def start(self) -> None:
        """Make groups and mounts, fork, confine, and wait until the command runs.

        Raises:
            Failed: with the reason, as bubblewrap or the kernel gives it.
        """
        spec = self.spec
        self.cgroups.make()
        if spec["binds"]:
            confine.private_mounts()
            for source, target in spec["binds"]:
                confine.bind_read_only(source, target)
        reader, writer = os.pipe()
        trouble, error = os.pipe()
        os.set_blocking(reader, False)
        extra, ours = self._bubblewrap_pipes()
        self.main = os.fork()
        if self.main == 0:
            child.become(spec, writer, error, extra)
        for descriptor in {writer, error, *spec["pass_fds"], *extra.values()} - set(ours.values()):
            os.close(descriptor)
        self.output.attach(reader)
        text = _read_all(trouble)
        if text:
            raise Failed(text)
        self.inner_init = None
        if spec["level"] == "namespaces":
            self._await_bubblewrap(ours)
        self.watch = Watch(self.main, spec, self.cgroups, self.known)

    def _bubblewrap_pipes(self) -> tuple[dict[str, int], dict[str, int]]:
        """(what bubblewrap gets, what stays here): arguments, information, the block before the command, filter."""
        if self.spec["level"] != "namespaces":
            return {}, {}
        info, info_end = os.pipe()
        block, block_end = os.pipe()
        extra = {"args": _memory(self._arguments()), "info": info_end, "block": block}
        if self.spec["seccomp"]:
            extra["seccomp"] = _memory(bytes.fromhex(self.spec["seccomp"]))
        for descriptor in extra.values():
            os.set_inheritable(descriptor, True)
        return extra, {"info": info, "block": block_end, "queue": block}

    def _arguments(self) -> bytes:
        environment = [part for pair in self.spec["env"].items() for part in ("--setenv", *pair)]
        return b"".join(os.fsencode(text) + b"\0" for text in [*self.spec["bwrap_args"], *environment])

    def _await_bubblewrap(self, ours: dict[str, int]) -> None:
        """Learn the pid of the jail's init, limit it, release it, and see the release being consumed.

        The block is the last step before the command: a byte that stays in the pipe when bubblewrap has ended
        means that the jail was never entered.
        """
        text = _read_all(ours["info"])
        if text:
            self.inner_init = int(json.loads(text)["child-pid"])
            if self.spec["nproc_inside"] is not None:
                _prlimit_processes(self.inner_init, self.spec["nproc_inside"] + child.OVERHEAD_TASKS)
        os.write(ours["block"], b"x")
        deadline = time.monotonic() + START_TIMEOUT_S
        while _queued(ours["queue"]):
            if not procs.alive(self.main) or time.monotonic() > deadline:
                self.output.pump()
                raise Failed(self.output.text().decode(errors="replace").strip() or "bubblewrap ended without a word")
            time.sleep(0.001)
        for descriptor in ours.values():
            os.close(descriptor)
        while self.inner_init and procs.alive(self.inner_init) and self.inner is None:
            self.inner = next(iter(procs.children(self.inner_init)), None)
            time.sleep(0 if self.inner else 0.001)

    def loop(self, judge: int, wakeup: int) -> None:
        """Serve until the judge is gone.

        Raises:
            Closed: it is.
        """
        with selectors.DefaultSelector() as selector:
            for what in (self.channel, judge, wakeup, self.output.descriptor):
                selector.register(what, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select(TICK_S if self.ending is None else None)}
                if judge in ready:
                    raise Closed
                if wakeup in ready:
                    with suppress(BlockingIOError):
                        os.read(wakeup, 4096)
                if self.output.descriptor in ready and not self.output.pump():
                    selector.unregister(self.output.descriptor)
                if self.ending is None:
                    self.look()
                if self.channel in ready:
                    self.answer(receive(self.channel))

    def look(self) -> None:
        """Reap, and end the jail when its command ended or a limit is exceeded."""
        status = self._reap()
        over = self.output.over or (self.watch.over() if self.watch and status is None else None)
        if status is None and over is None:
            return
        self.end(over, status)

    def end(self, over: str | None, status: int | None = None) -> None:
        """Kill what is left, drain the output and tell the judge how it ended."""
        settled = self._settle(status)
        if over is None and self.watch is not None:
            over = self.watch.last_words(settled)
        self.output.pump(to_the_end=True)
        code = os.waitstatus_to_exitcode(settled) if settled is not None else -signal.SIGKILL
        if self.spec["level"] == "namespaces" and 128 < code <= 128 + signal.SIGRTMAX:
            code = 128 - code  # how bubblewrap tells that a signal ended the command
        self.ending = {
            "exit_code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "over_limit": over or self.output.over,
        }
        send(self.channel, {"ended": self.ending})

    def answer(self, request: dict[str, Any]) -> None:
        """Carry out one request of the judge and confirm it."""
        reply: dict[str, Any] = {"re": request["do"]}
        if request["do"] == "kill":
            if self.ending is None:
                self.end(None)
        elif request["do"] == "log":
            self.output.pump()
            reply["log"] = self.output.text().decode("latin-1")
        elif request["do"] == "close":
            if self.ending is None:
                self.end(None)
            reply["left"] = self.clean()
        send(self.channel, reply)

    def _reap(self) -> int | None:
        """Collect every dead child; the command's wait status when it is among them."""
        found = None
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self.main:
                    found = status
        return found

    def _settle(self, status: int | None) -> int | None:
        """Kill until nothing is left; the command's wait status if it was seen."""
        box = [status]

        def reap() -> None:
            found = self._reap()
            box[0] = found if found is not None else box[0]

        self.survivors = settle(os.getpid(), self.cgroups, self.spec["uid"], reap)
        return box[0]

    def clean(self) -> list[str]:
        """Remove groups and stage; says in words what is left of the jail."""
        self.cleaned = True
        left = [f"process {pid}" for pid in sorted(self.survivors)]
        left += [f"control group {folder}" for folder in self.cgroups.remove()]
        for _, target in self.spec["binds"]:
            confine.unbind(target)
        if not left:
            left += remove_tree(self.spec["stage"])
        return left

    def finish(self) -> None:
        """The last thing: also reached when starting failed or the judge died."""
        if not self.cleaned:
            self._settle(None)
            self.clean()

    cleaned = False
    survivors: frozenset[int] = frozenset()
    inner_init: int | None = None


def _read_all(descriptor: int) -> str:
    """Everything until end of file, then the descriptor is closed; START_TIMEOUT_S at most."""
    deadline = time.monotonic() + START_TIMEOUT_S
    parts = []
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            part = os.read(descriptor, 65536)
            if not part:
                break
            parts.append(part)
    return b"".join(parts).decode(errors="replace")


def _memory(content: bytes) -> int:
    descriptor = os.memfd_create("kernelassay", os.MFD_CLOEXEC)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _queued(pipe: int) -> int:
    import array
    import fcntl
    import termios

    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def _prlimit_processes(pid: int, count: int) -> None:
    import resource

    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_NPROC, (count, count))


def main(control: int) -> None:
    """Serve the judge at the other end of the socket `control` until it is gone."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    confine.prctl(confine.PR_SET_CHILD_SUBREAPER, 1)
    confine.prctl(confine.PR_SET_DUMPABLE, 0)
    channel = socket.socket(fileno=control)
    channel.set_inheritable(False)
    try:
        spec = receive(channel)
    except Closed:
        return
    Warden(channel, {**spec, "nice": usual}).serve()
