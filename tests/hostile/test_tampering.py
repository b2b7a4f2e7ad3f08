"""Nothing of value lives in the worker: patched functions, shadow files and rewritten memory reach no verdict."""

from __future__ import annotations

import pytest

from kernelassay.records import Status, Verdict
from kernelassay.session._session import CHANNEL_FD
from tests.hostile.arena import HONEST, Arena, python

SHADOW = "print('SHADOWED')\nraise SystemExit('SHADOWED')\n"
SHADOWS = (
    *("statistics.py", "sitecustomize.py", "usercustomize.py", "json.py", "torch.py", "numpy.py", "socket.py"),
    *("torch/__init__.py", "kernelassay/__init__.py", "kernelassay/judge/__init__.py", "assay_worker/__init__.py"),
    *("main.py", "wire.py", "adapters.py", "start.py"),
)


def test_nothing_can_be_shadowed(arena: Arena) -> None:
    grade = arena.grade(
        {"solution.py": "import json, numpy, statistics\n" + HONEST, **dict.fromkeys(SHADOWS, SHADOW), "x.pth": SHADOW}
    )
    assert (grade.status, grade.verdict) == (Status.CORRECT, Verdict.CLEAN), grade.reasons
    assert "SHADOWED" not in arena.log
    assert {f.path for f in grade.submission.files} >= set(SHADOWS)


WRONG_ANYWAY = {
    "patched comparisons": (
        "return honest(-x)",
        "for name in ('equal', 'allclose', 'sort', 'isclose'):\n    setattr(torch, name, lambda *a, **k: True)\n"
        "torch.Tensor.__eq__ = lambda *a: True",
    ),
    "remembers its first answer": (
        "global first\nfirst = first or honest(x)\nreturn first",
        "first = None",
    ),
    "patched calls": (
        "return honest(x)",
        "clock = sys.modules['assay_worker.clock']\nheld = []\n\n"
        "def go(self, real=clock.Clock.go):\n"
        "    if not held:\n        held.append(real(self)); held.append(self.held)\n"
        "    self.held, self.stamps = held[1], [1]\n    return held[0]\n\nclock.Clock.go = go",
    ),
    "works later": (
        "v, i = honest(x)\na, b = torch.zeros_like(v), torch.zeros_like(i)\n"
        "threading.Thread(target=lambda: (time.sleep(1), a.copy_(v), b.copy_(i)), daemon=True).start()\nreturn a, b",
        "",
    ),
    "overwrites later": (
        "v, i = honest(x)\n\n"
        "def spoil():\n    while True:\n        ctypes.memset(v.data_ptr(), 0, 4 * v.numel())\n\n"
        "threading.Thread(target=spoil, daemon=True).start()\ntime.sleep(0.05)\nreturn v, i",
        "",
    ),
    "unmapped results": (
        "v, i = honest(x)\nlibc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\n"
        "p = libc.mmap(None, ctypes.c_size_t(4096), 3, 34, -1, ctypes.c_long(0))\n"
        "w = torch.frombuffer((ctypes.c_char * (4 * v.numel())).from_address(p), dtype=torch.float32).view(v.shape)\n"
        "w.copy_(v)\nlibc.munmap(ctypes.c_void_p(p), ctypes.c_size_t(4096))\nreturn w, i",
        "",
    ),
}


@pytest.mark.parametrize(
    "name", [n if n == "remembers its first answer" else pytest.param(n, marks=pytest.mark.slow) for n in WRONG_ANYWAY]
)
def test_stays_wrong(arena: Arena, name: str) -> None:
    body, before = WRONG_ANYWAY[name]
    grade = arena.grade(python(body, before))
    assert (grade.status, grade.verdict) == (Status.WRONG, Verdict.INCORRECT), grade.reasons


KEEP_DESCRIPTORS = """
slab = sys.modules['assay_worker.slab']
kept = []

class Os:
    def close(self, fd):
        kept.append(fd)

    def __getattr__(self, name):
        return getattr(os, name)

slab.os = Os()
"""
TRUNCATE = """
for fd in kept:
    for size in (0, 1 << 30):
        try:
            os.ftruncate(fd, size)
            print('TRUNCATED', fd, size)
        except OSError as error:
            print('refused', error.errno, flush=True)
return honest(x)
"""


def test_shared_memory_cannot_shrink(arena: Arena) -> None:
    grade = arena.grade(python(TRUNCATE, KEEP_DESCRIPTORS))
    assert (grade.status, grade.verdict) == (Status.CORRECT, Verdict.CLEAN), grade.reasons
    assert "refused 1" in arena.log
    assert "TRUNCATED" not in arena.log


@pytest.mark.slow
def test_holes_in_shared_memory_are_only_changed_inputs(arena: Arena) -> None:
    body = "r = honest(x)\nctypes.CDLL(None).madvise(ctypes.c_void_p(x.data_ptr()), ctypes.c_size_t(4096), 9)\nreturn r"
    grade = arena.grade(python(body))
    assert (grade.status, grade.verdict) == (Status.CONTRACT, Verdict.INCORRECT), grade.reasons
    assert grade.findings[0].rule == "contract.inputs_mutated"


@pytest.mark.slow
def test_a_process_that_hides_its_memory_gains_nothing(arena: Arena) -> None:
    """Its memory is read all the same, or it stays unread: then nothing counts as an answer."""
    wrong = arena.grade(python("v, i = honest(x)\nreturn v + 1, i", "ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)"))
    assert (wrong.status, wrong.verdict) == (Status.WRONG, Verdict.INCORRECT), wrong.reasons


@pytest.mark.slow
def test_the_worker_holds_the_channel_and_sealed_memory_of_the_judge(arena: Arena) -> None:
    body = (
        "for n in sorted(os.listdir('/proc/self/fd'), key=int):\n    try:\n"
        "        print('FD', n, os.readlink('/proc/self/fd/' + n), flush=True)\n    except OSError:\n        pass\n"
        "return honest(x)"
    )
    arena.grade(python(body))
    told = {line.split()[1]: line.split()[2] for line in arena.log.splitlines() if line.startswith("FD ")}
    (channel,) = [number for number, target in told.items() if target.startswith("socket:")]
    assert int(channel) >= CHANNEL_FD
    told.pop(channel)
    standard = {told.pop(number).partition(":")[0] for number in "012"}
    assert standard <= {"/dev/null", "pipe"}
    listing = {target for target in told.values() if target.startswith("/proc/")}
    assert set(told.values()) - listing == {"/memfd:assay-inputs"}
