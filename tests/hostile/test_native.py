"""C and C++ submissions: what the compiler, the loader and native code can do to a judge that runs none of them."""

from __future__ import annotations

from typing import Any

import pytest

from kernelassay.records import Status, Verdict
from tests.hostile.arena import C_MANIFEST, Arena, native

BODY = """
#include <cstdlib>
#include <cstring>
{before}
extern "C" int topk(const void *const *in, void *const *out, const int64_t *shape) {{ {body} }}
"""


def topk(body: str, before: str = "", manifest: str = C_MANIFEST) -> dict[str, str]:
    return native(BODY.format(body=body, before=before), manifest)


TEMPLATES = """
template <int N, int M> struct T { static constexpr int v = T<N - 1, M * 2>::v + T<N - 1, M * 2 + 1>::v; };
template <int M> struct T<0, M> { static constexpr int v = M; };
static int bomb = T<24, 1>::v;
"""
Attack = tuple[dict[str, str], tuple[str, ...], tuple[str, ...], dict[str, Any]]
ATTACKS: dict[str, Attack] = {
    "segfault": (topk("*(volatile int *)8 = 1; return 0;"), ("crashed",), ("worker.ended",), {}),
    "abort": (topk("abort();"), ("crashed",), ("worker.ended",), {}),
    "exit": (topk("exit(0);"), ("crashed",), ("worker.ended",), {}),
    "loop": (topk("for (volatile int i = 0;; i = i + 1) {}"), ("timeout",), ("limit.time",), {"call_s": 2.0}),
    "non-zero": (topk("honest(in, out, shape); return 7;"), ("crashed",), ("worker.exception",), {}),
    "stack overflow": (
        topk(
            "return deep(1);", "static int deep(int n) { volatile char a[4096]; a[0] = n; return deep(n + 1) + a[0]; }"
        ),
        ("crashed",),
        ("worker.ended",),
        {},
    ),
    "writes out of bounds": (
        topk("honest(in, out, shape); memset(out[0], 0x41, 64 << 20); return 0;"),
        ("crashed", "wrong"),
        ("worker.ended", "check.selection.values"),
        {},
    ),
    "missing symbol": (
        topk("return honest(in, out, shape);", manifest=C_MANIFEST.replace("symbol: topk", "symbol: top_k")),
        ("build_failed",),
        ("build.load",),
        {},
    ),
    "a symbol of Python": (
        topk("return honest(in, out, shape);", manifest=C_MANIFEST.replace("symbol: topk", "symbol: __class__")),
        ("build_failed",),
        ("build.load",),
        {},
    ),
    "initialiser exits": (
        topk("return honest(in, out, shape);", "struct Out { Out() { _Exit(0); } } out_;"),
        ("crashed",),
        ("worker.ended",),
        {},
    ),
    "does not compile": (topk("return nonsense;"), ("build_failed",), ("build.compile",), {}),
    "unknown machine": (
        topk("return honest(in, out, shape);", manifest=C_MANIFEST.replace("-O1", "-march=nonesuch")),
        ("build_failed",),
        ("build.compile",),
        {},
    ),
    "template bomb": (
        topk("return bomb;", TEMPLATES),
        ("timeout", "over_limit"),
        ("build.time", "limit.memory"),
        {"build_s": 4.0, "memory_bytes": 1 << 29},
    ),
    "endless include": (
        topk("return 0;", '#include "/dev/zero"'),
        ("build_failed", "timeout", "over_limit"),
        ("build.compile", "build.time", "limit.memory"),
        {"build_s": 4.0, "memory_bytes": 1 << 29},
    ),
    "writes nothing": (topk("return 0;"), ("wrong",), ("check.selection.values",), {}),
}
FAST = ("exit", "does not compile")


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in ATTACKS])
def test_ends_in_its_status(arena: Arena, name: str) -> None:
    files, statuses, rules, limits = ATTACKS[name]
    grade = arena.grade(files, **limits)
    assert grade.status in {Status(s) for s in statuses}, grade.reasons
    assert grade.verdict is Verdict.INCORRECT
    assert {f.rule for f in grade.findings} & set(rules), grade.reasons


@pytest.mark.slow
def test_the_compiler_reads_nothing_of_the_host(arena: Arena) -> None:
    """What an include shows is the jail's own file, which names nobody of this machine."""
    grade = arena.grade(topk("return 0;", '#include "/etc/passwd"\n#include "/etc/hostname"'))
    assert grade.status is Status.BUILD_FAILED
    assert "root:" not in arena.log
