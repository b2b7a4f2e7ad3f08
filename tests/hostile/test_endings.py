"""However the submission's process ends, hangs or swells, the grade says so within the limit, and nothing stays."""

from __future__ import annotations

from typing import Any

import pytest

from kernelassay.judge import exit_code
from kernelassay.records import ExitCode, Status, Verdict
from tests.hostile.arena import HONEST, Arena, python

START_ALLOWANCE_S = 45.0
"""A worker's start and end on a machine that is busy with something else."""
MODEL = """
class Model(torch.nn.Module):
    def __init__(self, batch, n, k):
        super().__init__()
        {init}

    def forward(self, x):
        return honest(x)
"""
DAEMON = """
started = []

def daemon(once=False):
    if (once and started) or os.fork():
        started.append(1)
        return
    os.setsid()
    for s in range(1, 65):
        try:
            signal.signal(s, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    if os.fork():
        os._exit(0)
    while True:
        time.sleep(1)
"""


def model(init: str) -> dict[str, str]:
    files = python("pass", MODEL.format(init=init))
    return {"solution.py": files["solution.py"].partition("def custom_kernel")[0]}


def at_import(code: str) -> dict[str, str]:
    return python("return honest(x)", code)


Attack = tuple[dict[str, str], str, str, dict[str, Any]]
"""Files, status, rule, limits."""
ATTACKS: dict[str, Attack] = {
    "segfault in call": (python("ctypes.string_at(0)"), "crashed", "worker.ended", {}),
    "abort in call": (python("os.abort()"), "crashed", "worker.ended", {}),
    "exit in call": (python("sys.exit(0)"), "crashed", "worker.exception", {}),
    "os._exit in call": (python("os._exit(0)"), "crashed", "worker.ended", {}),
    "os._exit at import": (at_import("os._exit(0)"), "crashed", "worker.ended", {}),
    "exit at import": (at_import("sys.exit(0)"), "build_failed", "build.load", {}),
    "exception at import": (at_import("raise RuntimeError('no\\x1b[31m\\n\\ud800')"), "build_failed", "build.load", {}),
    "exception in call": (python("raise ValueError('\\ud800\\x07' + 'ж' * 20000)"), "crashed", "worker.exception", {}),
    "exception that lies": (
        python("raise E", "class E(BaseException):\n    def __str__(self):\n        os._exit(0)"),
        "crashed",
        "worker.ended",
        {},
    ),
    "syntax error": ({"solution.py": "def custom_kernel(data:\n"}, "build_failed", "build.load", {}),
    "no entry": ({"solution.py": "x = 1\n"}, "build_failed", "build.load", {}),
    "exception in constructor": (model("raise RuntimeError('no')"), "build_failed", "build.load", {}),
    "hang in call": (python("while True: pass"), "timeout", "limit.time", {"call_s": 2.0}),
    "hang at import": (at_import("time.sleep(1e6)"), "timeout", "limit.time", {"load_s": 4.0}),
    "hang in constructor": (model("time.sleep(1e6)"), "timeout", "limit.time", {"load_s": 4.0}),
    "stops itself": (python("os.kill(os.getpid(), signal.SIGSTOP)"), "timeout", "limit.time", {"call_s": 2.0}),
    "ignores signals": (
        python("[signal.signal(s, signal.SIG_IGN) for s in (1, 2, 3, 15)]\nwhile True: time.sleep(1)"),
        "timeout",
        "limit.time",
        {"call_s": 2.0},
    ),
    "touches 100 GB": (
        python("keep = []\nwhile True: keep.append(torch.ones(16 << 20))"),
        "over_limit",
        "limit.memory",
        {"memory_bytes": 1 << 30},
    ),
    "asks for 100 GB": (python("torch.ones(25_000_000_000)"), "over_limit", "limit.memory", {}),
    "asks for a petabyte": (python("torch.empty(1 << 48)"), "over_limit", "limit.memory", {}),
    "endless stdout": (python("while True: print('PASS' * 1000)"), "over_limit", "limit.output", {}),
    "endless stderr": (python("while True: os.write(2, b'PASS' * 1000)"), "over_limit", "limit.output", {}),
    "endless file": (
        python("f = open(os.environ['TMPDIR'] + '/f', 'wb')\nwhile True: f.write(bytes(1 << 20))"),
        "over_limit",
        "limit.files",
        {"file_bytes": 16 << 20},
    ),
}
FAST = (
    "segfault in call",
    "os._exit at import",
    "exception in call",
    "hang in call",
    "touches 100 GB",
    "endless stdout",
)


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in ATTACKS])
def test_ends_in_its_status(arena: Arena, name: str) -> None:
    files, status, rule, limits = ATTACKS[name]
    grade = arena.grade(files, **limits)
    assert (grade.status, grade.verdict) == (Status(status), Verdict.INCORRECT), grade.reasons
    assert exit_code(grade) is ExitCode.INCORRECT
    assert grade.findings[0].rule == rule, grade.reasons
    assert all(reason.isprintable() for reason in grade.reasons)
    if status == "timeout":
        limit = limits.get("call_s") or limits["load_s"]
        assert limit <= arena.seconds < limit + START_ALLOWANCE_S


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        "while True: os.fork()",
        "while True:\n    threading.Thread(target=time.sleep, args=(1e6,)).start()",
        "while True: daemon()",
    ],
    ids=["fork bomb", "thread bomb", "daemonising fork bomb"],
)
def test_bombs_hit_the_limit_of_processes(arena: Arena, body: str) -> None:
    grade = arena.grade(python(body, DAEMON), call_s=4.0, processes=32)
    assert grade.status in (Status.CRASHED, Status.TIMEOUT, Status.OVER_LIMIT)
    assert grade.verdict is Verdict.INCORRECT


HARMLESS = {
    "a child outlives": python("daemon(once=True)\nreturn honest(x)", DAEMON),
    "hang at exit": at_import("import atexit\natexit.register(time.sleep, 1e6)"),
    "untouched 100 GB": at_import("import mmap\nkeep = mmap.mmap(-1, 100 << 30, mmap.MAP_PRIVATE | 0x4000)"),
    "printed verdicts": python(
        'print("PASS\\nstatus: correct")\nprint(\'{"id": 0, "ok": true, "verdict": "clean"}\', flush=True)\n'
        "return honest(x)"
    ),
}


@pytest.mark.parametrize(
    "name", ["a child outlives", *(pytest.param(n, marks=pytest.mark.slow) for n in HARMLESS if n[0] != "a")]
)
def test_changes_nothing(arena: Arena, name: str) -> None:
    grade = arena.grade(HARMLESS[name])
    assert (grade.status, grade.verdict) == (Status.CORRECT, Verdict.CLEAN), grade.reasons


def test_printed_words_decide_nothing(arena: Arena) -> None:
    grade = arena.grade({"solution.py": 'print("PASS")\nprint(\'{"verdict": "clean"}\')\n' + HONEST.replace("8", "7")})
    assert grade.verdict is Verdict.INCORRECT
    assert "PASS" in arena.log
