"""Judges under root and under a plain uid, each a process of its own that the tests ask to start jails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.strangers import as_user

HERE = Path(__file__).resolve().parent
ROOT = os.geteuid() == 0
PLAIN_UID = 12345
USERS = ("root", "user") if ROOT else ("user",)


class RemoteError(Exception):
    """An exception of the judge process."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class RemoteJail:
    """A jail that a judge process runs."""

    def __init__(self, judge: RemoteJudge, facts: dict[str, Any]) -> None:
        self.judge = judge
        self.pid: int = facts["pid"]
        self.scratch = Path(facts["scratch"])
        self.warden: int = facts["warden"]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: self.judge.ask("call", self.pid, name, *arguments)


class RemoteJudge:
    """A judge process (`driver.py`) under some uid."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.process = subprocess.Popen(
            [*(as_user(PLAIN_UID) if ROOT and user == "user" else []), sys.executable, str(HERE / "driver.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"ASSAY_TEST_SECRET": "1", "PATH": os.environ["PATH"], "HOME": "/"},
        )
        self.target: dict[str, Any] = self.ask("target")
        self.target["home"] = str(Path(self.target["private"]).parent)

    def ask(self, what: str, *arguments: Any, **options: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": what, "args": arguments, "options": options}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise RemoteError(answer["error"], answer["text"])
        return answer["result"]

    def start(self, argv: list[str], level: str, **options: Any) -> RemoteJail:
        return RemoteJail(self, self.ask("start", argv, level, **options))

    def attack(self, name: str, level: str, token: str = "", **options: Any) -> RemoteJail:
        """Start an attack of `attack.py` in a jail."""
        plain = token.replace("{", "{{").replace("}", "}}")
        return self.start(["{python}", "-I", "-S", "-B", "{attack}/attack.py", name, plain], level, **options)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(Path(self.target["private"]).parent.parent, ignore_errors=True)


def with_token(token: str) -> list[int]:
    """Every process that has `token` in its command line, the tests' own apart."""
    found = []
    for name in (path.name for path in Path("/proc").iterdir()):
        if name.isdigit() and int(name) != os.getpid():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if token.encode() in words:
                found.append(int(name))
    return found
