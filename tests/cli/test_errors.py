"""Every way to fail: one line and the next command, an exit code, one JSON document; tracebacks for faults only."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelassay.cli._errors import split_next

Assay = Callable[..., Any]


@pytest.mark.parametrize(
    ("arguments", "hint", "command"),
    [
        (("grad", "x"), 'Did you mean "grade"?', "assay --help"),
        (("grade", "x", "--problme", "ops/topk"), "--problem", "assay grade --help"),
        (("grade",), "requires an argument", "assay grade --help"),
        (("grade", "x", "--problem", "ops/topk", "--tier", "smal"), 'Did you mean "small"?', "assay grade --help"),
        (("grade", "x", "--problem", "ops/topk", "--frobnicate"), "--frobnicate", "assay grade --help"),
        (("deck", "lnt"), "lint", "assay deck --help"),
        (("deck", "show", "ops/topkk"), "did you mean 'ops/topk'", "assay deck list"),
        (("deck", "show", "topk"), "did you mean 'ops/topk'", "assay deck list"),
        (("deck", "lint"), "either one problem or --all", "assay deck lint --all"),
        (("schema", "grade"), "did you mean 'Grade'", "assay schema"),
    ],
)
def test_usage_mistakes(bench: Any, assay: Assay, arguments: tuple[str, ...], hint: str, command: str) -> None:
    ran = assay(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    first, second = ran.err.splitlines()
    assert first.startswith("error: ") and hint in first
    assert second == f"next: {command}"


@pytest.mark.parametrize(
    ("package", "name", "code", "otherwise"),
    [
        ("judge", "UsageError", 2, "assay --help"),
        ("decks", "DeckError", 2, "assay deck list"),
        ("devices", "DeviceError", 2, "assay doctor"),
        ("sandbox", "SandboxError", 5, "assay doctor"),
    ],
)
def test_announced_failures(bench: Any, assay: Assay, package: str, name: str, code: int, otherwise: str) -> None:
    import kernelassay.decks
    import kernelassay.devices  # noqa: F401

    bench.error(package, name, "no such \x1b[31mthing\nat 'here'\nnext: assay try --this")
    ran = assay("grade", "topk_cpp", "--problem", "ops/topk")
    assert ran.code == code
    assert ran.err.splitlines() == [r"error: no such \x1b[31mthing\nat 'here'", "next: assay try --this"]
    bench.error(package, name, "no such thing")
    assert assay("grade", "topk_cpp", "--problem", "ops/topk").err.splitlines()[-1] == f"next: {otherwise}"


def test_json_has_one_document_also_for_an_error(bench: Any, assay: Assay) -> None:
    bench.error("judge", "UsageError", "no submission at 'x'\nnext: assay grade PATH")
    ran = assay("grade", "topk_cpp", "--problem", "ops/topk", "--json")
    assert json.loads(ran.out) == {
        "error": {"what": "no submission at 'x'", "next": "assay grade PATH", "exit_code": 2}
    }
    assert json.loads(assay("grade", "--json").out)["error"]["exit_code"] == 2


def test_full_disk_is_the_machines(bench: Any, assay: Assay) -> None:
    bench.raises = lambda: OSError(errno.ENOSPC, "No space left on device", "/somewhere")
    ran = assay("grade", "topk_cpp", "--problem", "ops/topk")
    assert ran.code == 5
    assert "Traceback" not in ran.err
    assert "/somewhere: No space left on device" in ran.err


def test_fault_of_the_judge_shows_its_traceback(bench: Any, assay: Assay) -> None:
    bench.raises = lambda: KeyError("a\x1b[2Jb")
    ran = assay("grade", "topk_cpp", "--problem", "ops/topk", "--json")
    assert ran.code == 5
    assert "Traceback" in ran.err and "\x1b" not in ran.err
    assert "this is a fault of the judge, not of the submission" in ran.err
    assert "assay doctor --json" in ran.err.splitlines()[-1]
    assert json.loads(ran.out)["error"]["exit_code"] == 5


def test_interrupt_is_130(bench: Any, assay: Assay) -> None:
    bench.raises = KeyboardInterrupt
    ran = assay("grade", "topk_cpp", "--problem", "ops/topk")
    assert ran.code == 130
    assert "finished grades are intact" in ran.err


def test_home_that_is_a_file(bench: Any, assay: Assay, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = assay("grade", "topk_cpp", "--problem", "ops/topk", "--home", str(tmp_path / "file"))
    assert ran.code == 2
    assert "it is no folder" in ran.err


def test_unknown_grade(bench: Any, assay: Assay) -> None:
    ran = assay("report", "g-none")
    assert ran.code == 2
    assert ran.err.startswith("error: no grade called 'g-none'")


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        ("what\nnext: assay x", ("what", "assay x")),
        ("what; next: assay x", ("what", "assay x")),
        ("what, next: here\nnext: assay x", ("what, next: here", "assay x")),
        ("what", ("what", None)),
        (
            "f.yaml, line 3: what; correct it, then run: assay deck lint a/b",
            ("f.yaml, line 3: what; correct it", "assay deck lint a/b"),
        ),
        (
            "unknown 'x'; did you mean 'y'? see what there is with: assay deck list",
            ("unknown 'x'; did you mean 'y'?", "assay deck list"),
        ),
        ("sandbox: no level works. To see why, run `assay doctor`", ("sandbox: no level works", "assay doctor")),
        ("sandbox: left: folder /tmp/x; run `assay doctor`", ("sandbox: left: folder /tmp/x", "assay doctor")),
        ("run `chmod o+rX` on it, then try again", ("run `chmod o+rX` on it, then try again", None)),
    ],
)
def test_split_next(message: str, parts: tuple[str, str | None]) -> None:
    assert split_next(message) == parts
