"""One live worker process, seen from the judge: start it, ask it, account for its end. Every reply is a claim."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import secrets
import signal
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kernelassay.records import EntryKind, Limits, Manifest, Problem, Record, Role, Shape, Status, extent
from kernelassay.sandbox import Ending, Jail, JailedProcess, Sandbox, SandboxError, gpu_environment
from kernelassay.session._peek import PeekError, read_memory
from kernelassay.session._slab import DeviceKind, Slab
from kernelassay.session._trouble import Trouble, one_line, readable
from kernelassay.worker import wire

WORKER_FOLDER = Path(wire.__file__).parent
CHANNEL_FD = 61
"""Number of the channel in the worker. Above what programs guess (3, 4, …), so that a stray write hits nothing."""
POLL_S = 0.2
"""How often a wait looks whether the process still lives: a surviving child may hold the channel open."""
START_S = 60.0
"""Interpreter and torch, on a cold page cache."""
END_S = 5.0
"""From the end of the channel to the end of the process; a core's memory takes a while to be given back."""
CANARY_BYTES = 64
"""Bytes 1…64 that a fresh worker holds, to learn whether its memory can be read."""
CLEAN = "clean"
"""Kind of a worker without a submission."""


def _worker_digest() -> bytes:
    """SHA-256 over the worker's sources as they lie on disk now."""
    digest = hashlib.sha256()
    for file in sorted(WORKER_FOLDER.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.digest()


WORKER_DIGEST = _worker_digest()
"""Of the sources that this judge was loaded beside. Another worker (an update while a grade runs) speaks another
protocol, and its replies would look like a forged channel."""


class Quiet(Record):
    """Threads and children that the worker's kernel counts."""

    threads: int
    python_threads: int
    children: int


@dataclass(frozen=True)
class Job:
    """What a worker is started with."""

    problem: Problem
    folder: Path
    """Host folder with the submission's files and, where one was built, its library."""
    manifest: Manifest
    kind: EntryKind | None
    limits: Limits
    threads: int
    cpus: frozenset[int] | None = None
    """Cores of the device. The worker is put there when it is up: interpreter and torch may start anywhere."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the worker's environment; the same in every phase of a grade."""
    device: DeviceKind = "cpu"
    """Where the submission's tensors lie."""
    gpu_minor: int | None = None
    """Which GPU's node the jail has; None for all of them."""


class Session:
    """Starts a worker in a jail, asks it, and accounts for how it ended."""

    def __init__(self, sandbox: Sandbox, job: Job) -> None:
        """Start the process; `load` waits for it.

        Raises:
            kernelassay.sandbox.SandboxError: the machine could not start the jail, or this judge is no longer whole.
        """
        if _worker_digest() != WORKER_DIGEST:
            raise SandboxError("the judge's own files changed while it runs\nnext: the same command again")
        self.job = job
        ours, theirs = wire.pair()
        self._sock = ours
        # The lowest free number from CHANNEL_FD on: whoever calls the judge may have that very one open.
        channel = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD, CHANNEL_FD)
        theirs.close()
        try:
            self.process: JailedProcess = sandbox.start(
                Jail(
                    argv=(
                        "{python}",
                        "-I",
                        "-S",
                        "-B",
                        "-u",  # a worker ends by SIGKILL: what it printed must not die in a buffer
                        "-X",
                        "faulthandler",
                        "{worker}/start.py",
                        str(channel),
                        "{site}",
                        "{submission}",
                    ),
                    rooms={"worker": WORKER_FOLDER, "submission": job.folder},
                    env=_environment(job),
                    limits=job.limits,
                    pass_fds=(channel,),
                    gpu=job.device == "cuda",
                    gpu_minor=job.gpu_minor,
                )
            )
        finally:
            os.close(channel)
        self._next_slab = 1
        self._weights: dict[tuple[tuple[int, ...], ...], tuple[int, Slab]] = {}
        self._unused: list[int] = []
        """Numbers of slabs that nobody here refers to any more; the worker forgets them before the next request."""
        self._ending: Ending | None = None
        self.kind: EntryKind | None = job.kind
        self.pid = 0
        """The worker's process as this host numbers it; found before anything of the submission runs."""
        self.readable = False
        """Whether the judge may read results where they lie in that process; on a GPU it may not."""

    def start(self) -> None:
        """Wait until the worker is up; it holds nothing of the submission yet. Later calls do nothing.

        Raises:
            kernelassay.sandbox.SandboxError: it did not come up, which no submission can be blamed for.
        """
        if self.pid:
            return
        try:
            hello = self.receive(0, "start", START_S)
        except Trouble as trouble:
            raise SandboxError(
                f"the judge's own worker did not start, before anything of the submission ran: {trouble.title}\n"
                "next: assay doctor, or again when the machine is less busy"
            ) from trouble
        self.pid = self.process.pid
        _pin(self.pid, self.job.cpus)
        if self.job.device == "cuda":
            self._open_device()
            return
        canary = ctypes.create_string_buffer(CANARY_BYTES)
        try:
            read_memory(self.pid, [(int(hello["canary"]), ctypes.addressof(canary), CANARY_BYTES)])
        except PeekError:
            return
        self.readable = canary.raw == bytes(range(1, CANARY_BYTES + 1))

    def _open_device(self) -> None:
        try:
            self.ask("open_device", START_S)
        except Trouble as trouble:
            raise SandboxError(
                f"the judge's own worker cannot use the GPU, before anything of the submission ran: {trouble.title}\n"
                "next: assay doctor, and nvidia-smi for who else uses it"
            ) from trouble

    def load_nothing(self) -> None:
        """Start, and give the worker an entry of our own that does nothing; the submission may be loaded afterwards.

        By such a worker the judge measures what a round costs without calls.
        """
        self._load(CLEAN)

    def load(self) -> EntryKind | None:
        """Start, and let the worker import the submission; returns the entry kind that was found.

        Raises:
            kernelassay.sandbox.SandboxError: the worker did not come up.
            Trouble: the submission could not be imported.
        """
        reply = self._load(self.job.kind)
        try:
            self.kind = EntryKind(str(reply.get("kind")))
        except ValueError as error:
            raise self.forged("load", f"entry kind {reply.get('kind')!r}") from error
        return self.kind

    def _load(self, kind: str | None) -> dict[str, Any]:
        self.start()
        job, manifest = self.job, self.job.manifest
        return self.ask(
            "load",
            job.limits.load_s,
            file=manifest.file,
            kind=kind,
            library=manifest.build.library if manifest.build else None,
            symbol=manifest.symbol,
            entry=job.problem.entry,
            weights=[t.name for t in job.problem.role(Role.WEIGHT)],
            threads=job.threads,
            device=job.device,
        )

    def ask(self, op: str, timeout_s: float, fds: Sequence[int] = (), **arguments: Any) -> dict[str, Any]:
        """One request, one reply.

        Raises:
            Trouble: an exception in the submission, the end of its process, a limit, or a forged reply.
        """
        while self._unused:
            unused = self._unused.pop()
            self.receive(self.post("unmap", slab=unused), "unmap", timeout_s)
        return self.receive(self.post(op, fds, **arguments), op, timeout_s)

    def post(self, op: str, fds: Sequence[int] = (), **arguments: Any) -> int:
        """Send one request without waiting; returns its number for `receive`.

        Raises:
            Trouble: the process is gone.
        """
        request_id = secrets.randbits(62) + 1
        try:
            wire.send(self._sock, {"op": op, "id": request_id, **arguments}, fds)
        except wire.Closed as error:
            raise self._ended(op) from error
        except TimeoutError as error:
            raise self.forged(op, "replies to requests that were never read") from error
        return request_id

    def receive(self, request_id: int, op: str, timeout_s: float) -> dict[str, Any]:
        """The reply to a posted request.

        Raises:
            Trouble: as `ask`.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                self.process.kill()
                raise Trouble(
                    Status.TIMEOUT,
                    "limit.time",
                    f"{op} did not end within {timeout_s:g} s",
                    actual=f"still running after {timeout_s:g} s",
                )
            self._sock.settimeout(min(left, POLL_S))
            try:
                reply, _ = wire.receive(self._sock, accept_fds=False)
            except TimeoutError:
                if self.process.poll() is not None:
                    raise self._ended(op) from None
                continue
            except wire.Closed as error:
                raise self._ended(op) from error
            except wire.WireError as error:
                raise self.forged(op, str(error)) from error
            if reply.get("id") != request_id or not isinstance(reply.get("ok"), bool):
                raise self.forged(op, f"a reply to request {reply.get('id')!r}")
            if not reply["ok"]:
                raise _exception(op, reply)
            return reply

    def forged(self, op: str, what: str) -> Trouble:
        """The trouble of a channel that carries what no worker sends; kills the process."""
        self.process.kill()
        return Trouble(
            Status.CONTRACT,
            "channel.forged",
            f"during {op} the judge's channel carried something that the worker never sends",
            expected="one reply, by the worker, to each request",
            actual=what[:300],
            forged=True,
        )

    def _ended(self, op: str) -> Trouble:
        alive = self.process.wait(END_S) is None
        ending = self.close()
        if ending.over_limit is not None:
            return Trouble(
                Status.OVER_LIMIT,
                f"limit.{ending.over_limit}",
                f"over the limit of {ending.over_limit} during {op}",
                actual=f"killed for its {ending.over_limit}",
            )
        if alive:
            return Trouble(
                Status.CRASHED,
                "worker.closed",
                f"the process closed its channel to the judge during {op}",
                actual="channel closed, process still running",
            )
        how = (
            f"killed by {signal.Signals(ending.signal).name}"
            if ending.signal is not None and ending.signal in set(signal.Signals)
            else f"ended with exit code {ending.exit_code}"
        )
        return Trouble(
            Status.CRASHED,
            "worker.ended",
            f"the process {how} during {op}",
            actual=f"process {how}",
            detail="an exit code is no evidence of success; only the judge's own comparison is",
        )

    def quiet(self) -> Quiet:
        """Threads and children of the worker, by its own account."""
        reply = self.ask("quiet", self.job.limits.call_s)
        return Quiet(threads=reply["threads"], python_threads=reply["python_threads"], children=reply["children"])

    def globals(self) -> dict[str, str]:
        """Global state of the worker's process, by its own account."""
        told = self.ask("globals", self.job.limits.call_s).get("globals")
        return {str(k): str(v) for k, v in told.items()} if isinstance(told, dict) else {}

    def slab(
        self, roles: Sequence[Role], shape: Shape, label: str, sets: int = 1, results: int = 0
    ) -> tuple[int, Slab]:
        """A new slab for the tensors of these roles, mapped in the worker too; its number and the judge's side."""
        slab = Slab(self.job.problem.role(*roles), shape, label, sets, results, self.job.device)
        number, self._next_slab = self._next_slab, self._next_slab + 1
        self.ask(
            "map",
            START_S,
            [slab.fd],
            slab=number,
            size_bytes=slab.size_bytes,
            set_bytes=slab.set_bytes,
            table_offset=slab.table_offset,
            fields=slab.fields,
        )
        slab.close()
        if self.job.device == "cuda":  # a mapping there holds memory that others need
            weakref.finalize(slab, self._unused.append, number).atexit = False
        return number, slab

    def weights_slab(self, shape: Shape) -> tuple[int, Slab]:
        """The slab through which weights of these sizes are changed: one, whatever the number of shapes."""
        sizes = tuple(extent(spec, shape) for spec in self.job.problem.role(Role.WEIGHT))
        if sizes not in self._weights:
            self._weights[sizes] = self.slab((Role.WEIGHT,), shape, "assay-weights")
        return self._weights[sizes]

    def close(self) -> Ending:
        """Kill what is left and account for it; safe to call twice."""
        if self._ending is None:
            self._sock.close()
            self._ending = self.process.close()
            self._weights.clear()
        return self._ending

    @property
    def ended(self) -> bool:
        """Whether the worker is gone."""
        return self._ending is not None

    def log(self) -> bytes:
        """What the process printed, capped."""
        return self.process.log()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _pin(pid: int, cpus: frozenset[int] | None) -> None:
    """Put every thread of a worker that holds nothing of the submission yet on `cpus`."""
    if cpus is not None:
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), cpus)


def _environment(job: Job) -> dict[str, str]:
    threads = str(job.threads)
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "{scratch}",
        "TMPDIR": "{scratch}",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "TORCH_EXTENSIONS_DIR": "{scratch}/torch_extensions",
        "PYTHONDONTWRITEBYTECODE": "1",
        **(gpu_environment() if job.device == "cuda" else {}),
        **job.env,
    }


MEMORY_ERRORS = ("MemoryError", "OutOfMemoryError")
_OUT_OF_MEMORY_TEXT = "can't allocate memory"
"""Torch's CPU allocator raises a plain RuntimeError with these words."""
_FILE_TOO_LARGE_TEXT = f"[Errno {errno.EFBIG}]"
"""What Python makes of the limit on one file, whose signal it ignores."""


def _exception(op: str, reply: dict[str, Any]) -> Trouble:
    kind, message = one_line(str(reply.get("type", "?"))[:200]), str(reply.get("message", ""))
    out_of_memory = kind in MEMORY_ERRORS or _OUT_OF_MEMORY_TEXT in message
    status, rule = Status.CRASHED, "worker.exception"
    if out_of_memory:
        status, rule = Status.OVER_LIMIT, "limit.memory"
    elif kind == "OSError" and _FILE_TOO_LARGE_TEXT in message:
        status, rule = Status.OVER_LIMIT, "limit.files"
    elif kind == "WeightsMismatch":
        status, rule = Status.CONTRACT, "contract.state_dict"
    elif op in ("load", "model"):
        status, rule = Status.BUILD_FAILED, "build.load"
    first = one_line(message.strip().splitlines()[0][:300]) if message.strip() else ""
    return Trouble(
        status,
        rule,
        f"{kind} in {op}: {first}" if first else f"{kind} in {op}",
        expected=f"{op} returns",
        actual=f"{kind}: {first}",
        detail=readable(str(reply.get("traceback", ""))[-8000:]),
    )
