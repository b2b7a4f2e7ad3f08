"""A running jail, seen from the judge: every question goes to its warden, every answer is the kernel's."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import stat
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kernelassay.sandbox._model import Ending, SandboxError, ScratchError
from kernelassay.sandbox._stage import Stage
from kernelassay.sandbox._uids import Lease
from kernelassay.sandbox._warden import procs
from kernelassay.sandbox._warden.cgroup import Cgroups
from kernelassay.sandbox._warden.frames import Closed, receive, send
from kernelassay.sandbox._warden.reap import remove_tree, settle

_STOP_PAUSE_S = 20e-6
"""First pause before looking again whether everybody stands still; doubled each time."""
_COPY_CHUNK = 1 << 20
_EXIT_TIMEOUT_S = 15.0
"""The warden kills for at most 10 s before it gives up and exits."""


class JailedProcess:
    """One command in its jail. Close it, or use it as a context manager."""

    pid: int
    """Host pid of the command itself."""
    scratch: Path
    """Host path of the only folder that it may write to."""

    def __init__(
        self,
        warden: subprocess.Popen[bytes],
        channel: socket.socket,
        stage: Stage,
        lease: Lease | None,
        cgroups: Cgroups,
    ) -> None:
        self.scratch = stage.scratch
        self._warden = warden
        self._channel = channel
        self._stage = stage
        self._lease = lease
        self._cgroups = cgroups
        self._turn = threading.RLock()
        self._ending: Ending | None = None
        self._log = b""
        self._closed = False
        self._lost = False
        self._own = set[int]()
        self._stopped: tuple[int, ...] = ()
        self.pid = 0

    def _await_start(self) -> None:
        """Read the warden's first message.

        Raises:
            SandboxError: the jail could not be entered.
        """
        try:
            message = receive(self._channel)
        except Closed:
            message = {"failed": "the warden process ended"}
        if "failed" in message:
            self._end()
            raise SandboxError(f"sandbox: the jail could not be started: {message['failed']}; run `assay doctor`")
        self.pid = message["pid"]
        self._own = {self._warden.pid}
        if message["init"] is not None:
            self._own |= {message["main"], message["init"]} - {self.pid}

    def poll(self) -> Ending | None:
        """How it ended; None while it runs."""
        return self.wait(0.0)

    def wait(self, timeout_s: float) -> Ending | None:
        """Wait for the end, at most `timeout_s` seconds; None when it still runs."""
        deadline = time.monotonic() + timeout_s
        with self._turn:
            while self._ending is None and not self._lost:
                if not _readable(self._channel, deadline - time.monotonic()):
                    break
                self._take()
            return self._ending

    def kill(self) -> None:
        """SIGKILL to everything in it, and wait until all of it is gone."""
        self._ask("kill")

    def freeze(self) -> None:
        """Stop every process of it, and return when all stand still.

        Raises:
            SandboxError: something would not stop.
        """
        if self._cgroups.freeze():
            return
        self._stopped = ()
        pause_s = _STOP_PAUSE_S
        deadline = time.monotonic() + 2.0
        while True:  # whoever is forked between the walk and the signal is found by the next walk
            running = [pid for pid in self.processes() if _state(pid) not in "TtZX"]
            if not running:
                return
            procs.signal_each(running, signal.SIGSTOP)
            self._stopped += tuple(running)
            if time.monotonic() > deadline:
                raise SandboxError(f"sandbox: process {running[0]} of the jail could not be stopped")
            time.sleep(pause_s)
            pause_s *= 2

    def thaw(self) -> None:
        """Let what `freeze` stopped go on; nothing else, because a clock is running."""
        self._cgroups.thaw()
        procs.signal_each(self._stopped, signal.SIGCONT)
        self._stopped = ()

    def processes(self) -> tuple[int, ...]:
        """Host pids of everything alive in it, the warden and bubblewrap apart."""
        if self._closed:
            return ()
        return tuple(sorted((self._cgroups.members() or procs.descendants(self._warden.pid)) - self._own))

    def collect(self, name: str, to: Path, max_bytes: int) -> None:
        """Copy one regular file out of scratch; no symlink on its way is followed.

        Raises:
            FileNotFoundError: there is no such file.
            ScratchError: it is no plain file of the jail's own, or holds more than `max_bytes`.
        """
        owner = self._lease.uid if self._lease else os.geteuid()
        source = _open_below(self.scratch, name)
        try:
            facts = os.fstat(source)
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != owner:
                raise ScratchError(f"{name!r} in scratch is no plain file that the jailed process made")
            with open(to, "xb") as target:
                left = max_bytes
                while part := os.read(source, min(_COPY_CHUNK, left + 1)):
                    left -= len(part)
                    if left < 0:
                        break
                    target.write(part)
            if left < 0:
                to.unlink()
                raise ScratchError(f"{name!r} in scratch holds more than {max_bytes} bytes")
        finally:
            os.close(source)

    def log(self) -> bytes:
        """Standard output and error in the order written; head and tail when it was much."""
        if not self._closed and not self._lost:
            reply = self._ask("log")
            if "log" in reply:
                self._log = reply["log"].encode("latin-1")
        return self._log

    def close(self) -> Ending:
        """Kill and reap everything, see that nothing is left, remove groups and scratch.

        Raises:
            SandboxError: something of the jail survived; says what.
        """
        with self._turn:
            if not self._closed:
                self.kill()  # first, so that the log holds its last words
                self.log()
                left = self._ask("close").get("left", [])
                left += self._end()
                if left:
                    raise SandboxError(f"sandbox: left of the jail: {', '.join(left)}; run `assay doctor`")
            return self._ending or Ending(None, signal.SIGKILL, None)

    def _end(self) -> list[str]:
        """Let the warden go, then look for anything that it left, and do its work if it was killed."""
        self._closed = True
        self._channel.close()
        _wait_for(self._warden)
        uid = self._lease.uid if self._lease else None
        left = [f"process {pid}" for pid in settle(None, self._cgroups, uid, lambda: None)]
        left += [f"control group {folder}" for folder in self._cgroups.remove()]
        left += remove_tree(str(self._stage.folder))
        os.close(self._stage.lock)
        if self._lease:
            self._lease.release()
        return left

    def _ask(self, what: str) -> dict[str, Any]:
        with self._turn:
            if self._closed or self._lost:
                return {}
            try:
                send(self._channel, {"do": what})
            except Closed:
                self._lose()
                return {}
            while True:
                message = self._take()
                if message is None:
                    return {}
                if message.get("re") == what:
                    return message

    def _take(self) -> dict[str, Any] | None:
        try:
            message = receive(self._channel)
        except Closed:
            self._lose()
            return None
        if "ended" in message:
            self._ending = Ending(**message["ended"])
        return message

    def _lose(self) -> None:
        """The warden is gone, which only a kill from outside does: end the jail in its place."""
        self._lost = True
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)
        settle(None, self._cgroups, self._lease.uid if self._lease else None, lambda: None)
        self._ending = self._ending or Ending(None, signal.SIGKILL, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _wait_for(warden: subprocess.Popen[bytes]) -> None:
    """Reap the warden; one that does not end in time is killed. (Popen.wait with a timeout would poll.)"""
    if warden.poll() is None:
        handle = os.pidfd_open(warden.pid)
        with selectors.DefaultSelector() as selector:
            selector.register(handle, selectors.EVENT_READ)
            if not selector.select(_EXIT_TIMEOUT_S):
                warden.kill()
        os.close(handle)
    warden.wait()


def _readable(channel: socket.socket, timeout_s: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        return bool(selector.select(max(0.0, timeout_s)))


def _state(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return "X"
    return text[text.rindex(")") + 2]


def _open_below(folder: Path, name: str) -> int:
    """Descriptor of `folder`/`name`, each step without following a symlink, without waiting for a FIFO.

    Raises:
        FileNotFoundError: there is none.
        ScratchError: a symlink, or a name that leaves the folder.
    """
    parts = name.split("/")
    if not all(parts) or {".", ".."} & set(parts):
        raise ScratchError(f"{name!r} is no name inside scratch")
    step = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=step)
            os.close(step)
            step = inner
        return os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=step)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ScratchError(f"{name!r} in scratch cannot be read: {error.strerror}") from error
    finally:
        os.close(step)
