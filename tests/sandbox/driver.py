"""A small judge as a program of its own: it holds secrets worth stealing and starts jails on request.

Run by the tests under root and under a plain uid. One JSON request per line on standard input, one answer per line
on standard output.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from kernelassay import sandbox
from kernelassay.records import Limits
from kernelassay.sandbox import Jail, JailedProcess, Level, Sandbox

SECRET = b"assay-secret-in-memory-" + os.urandom(8).hex().encode()
HERE = Path(__file__).resolve().parent


class Judge:
    """What the attacks aim at, and the jails that it runs."""

    def __init__(self) -> None:
        self.live: dict[int, JailedProcess] = {}
        self.memory = ctypes.create_string_buffer(SECRET, len(SECRET))
        self.folder = Path(tempfile.mkdtemp(prefix="assay-test-"))
        self.folder.chmod(0o755)
        private = self.folder / "private"
        private.mkdir(mode=0o700)
        (private / "grade.json").write_text("another grade")
        (private / "grade.json").chmod(0o600)
        (self.folder / "public.txt").write_text("another submission")
        (self.folder / "public.txt").chmod(0o644)
        (self.folder / "open").mkdir()
        (self.folder / "open").chmod(0o777)
        self.secret_file = (private / "grade.json").open("rb")
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.udp.setblocking(False)
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind("\0assay-test-" + os.urandom(8).hex())
        self.abstract.listen()
        self.named = socket.socket(socket.AF_UNIX)
        self.named.bind(str(self.folder / "open" / "socket"))
        (self.folder / "open" / "socket").chmod(0o777)
        self.named.listen()

    def target(self) -> dict[str, Any]:
        """Where each secret lies: the attacker is told everything."""
        return {
            "pid": os.getpid(),
            "address": ctypes.addressof(self.memory),
            "secret": SECRET.decode(),
            "fd": self.secret_file.fileno(),
            "private": str(self.folder / "private" / "grade.json"),
            "public": str(self.folder / "public.txt"),
            "open": str(self.folder / "open"),
            "tcp": self.tcp.getsockname()[1],
            "udp": self.udp.getsockname()[1],
            "abstract": str(self.abstract.getsockname()[1:], "ascii"),
            "named": str(self.folder / "open" / "socket"),
        }

    def start(self, argv: list[str], level: str, **options: Any) -> dict[str, Any]:
        """Start a jail; the folder of the attacks is its room `attack`."""
        rooms = {"attack": str(HERE), **options.pop("rooms", {})}
        jail = Jail(
            argv=tuple(argv),
            rooms={name: Path(path) for name, path in rooms.items()},
            env=options.pop("env", {}),
            limits=Limits(**options.pop("limits", {})),
            pass_fds=tuple(options.pop("pass_fds", ())),
            runtime=options.pop("runtime", False),
            tools=options.pop("tools", False),
            cpus=frozenset(options.pop("cpus")) if "cpus" in options else None,
        )
        assert not options, f"unknown options {options}"
        process = Sandbox(Level(level)).start(jail)
        self.live[process.pid] = process
        return {"pid": process.pid, "scratch": str(process.scratch), "warden": process._warden.pid}

    def call(self, pid: int, method: str, *arguments: Any) -> Any:
        """Call a method of a started jail."""
        if method == "collect":
            arguments = (arguments[0], Path(arguments[1]), arguments[2])
        return getattr(self.live[pid], method)(*arguments)

    def free(self, argv: list[str], wait_s: float = 20.0) -> str:
        """The same command without any jail, to show that an attack has teeth."""
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(argv, capture_output=True, timeout=wait_s, check=False, cwd=folder)
        return (done.stdout + done.stderr).decode()

    def datagram(self) -> bool:
        """Whether a datagram arrived since the last call."""
        try:
            return bool(self.udp.recv(100))
        except BlockingIOError:
            return False

    def private_room(self, mode: int) -> str:
        """A folder below one that only this uid may enter."""
        room = self.folder / "private" / os.urandom(4).hex()
        room.mkdir()
        (room / "note.txt").write_text("read me")
        (room / "note.txt").chmod(0o644)
        room.chmod(mode)
        return str(room)

    def rewind(self) -> None:
        self.secret_file.seek(0)

    def isolation(self, level: str) -> dict[str, Any]:
        return Sandbox(Level(level)).isolation.model_dump()

    def available(self) -> Any:
        return list(sandbox.available())

    def harden(self) -> None:
        sandbox.harden_judge()

    def sweep(self) -> Any:
        return sandbox.sweep()


def plain(value: Any) -> Any:
    """As JSON-like data."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if not isinstance(value, dict) else {key: plain(item) for key, item in value.items()}


def main() -> None:
    judge = Judge()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": plain(getattr(judge, request["do"])(*request["args"], **request["options"]))}
        except Exception as error:  # every failure goes to the test that asked
            answer = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
