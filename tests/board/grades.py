"""Grades for tests: a clean one, a wrong one, a refused one and a hostile one, with the folder that keeps them."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernelassay.records import (
    Artefact,
    Build,
    Case,
    CaseResult,
    Device,
    EntryKind,
    Environment,
    FileEntry,
    Finding,
    Force,
    Grade,
    Isolation,
    Limits,
    Location,
    Manifest,
    Measurement,
    Phase,
    ProblemRef,
    Recipe,
    ShapeTiming,
    Status,
    Submission,
    Tier,
    Timing,
    TimingState,
    Verdict,
)

SECRET = bytes(range(32))
CASES = ("adjacent_floats", "all_negative", "clustered", "denormal", "equal", "inf", "nominal", "tail", "two_values")
SHAPES = ("small-1x4096x64", "small-8x1024x8", "small-4x2048x32", "small-4x1500x16", "small-16x512x1")
SOURCE = "\n".join(
    [
        "// Top-k by partial selection.",
        "#include <algorithm>",
        "#include <cstdint>",
        'extern "C" int topk(const void *const *in, void *const *out, const std::int64_t *shape) {',
        "    const float *x = static_cast<const float *>(in[0]);",
        *(f"    // step {number}: compare & swap <if> needed" for number in range(80)),
        "    return 0;",
        "}",
        "",
    ]
)
EVIL_NAME = "evil\x1b[2J\nname<script>alert(1)</script>\u202e"
EVIL_LOG = "\x1b[31mPASS\x1b[0m \x1b]0;owned\x07</pre><script>alert(2)</script>\r\nfine\x00\n[bold]verdict[/bold]\n"


def file_entry(path: str, data: bytes) -> FileEntry:
    """A file as intake would list it."""
    return FileEntry(path=path, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))


def environment() -> Environment:
    """A fixed environment block."""
    return Environment(
        kernelassay="0.1.0",
        python="3.11.2",
        torch="2.13.0+cpu",
        numpy="2.4.6",
        platform="Linux 6.1 x86_64, glibc 2.36",
        cpu_model="A Processor <9000>",
        cpu_count=2,
        compiler="c++ 12.2.0",
    )


def results(wrong: frozenset[str] = frozenset(), *, usage: float | None = None) -> tuple[CaseResult, ...]:
    """One result per case and shape; the cases named in `wrong` fail on every shape but the last."""
    rows = []
    for number, (case, shape) in enumerate((case, shape) for case in CASES for shape in SHAPES):
        fails = case in wrong and shape != SHAPES[-1]
        rows.append(
            CaseResult(
                case=Case(shape=shape, case=case, seed=1000 + number),
                status=Status.WRONG if fails else Status.CORRECT,
                usage=None if fails else usage,
                message="values: 3 of 64 differ; rows 0 of 1; columns 60–63 of 64" if fails else "",
                call_us=200.0 + 13.7 * number,
            )
        )
    return tuple(rows)


def timing() -> Timing:
    """No clock yet."""
    shapes = tuple(
        ShapeTiming(
            shape=shape,
            state=TimingState.INVALID,
            reason="no clock yet",
        )
        for shape in SHAPES
    )
    return Timing(state=TimingState.INVALID, reason="no clock yet", shapes=shapes)


def wrong_finding(grade_id: str) -> Finding:
    """What the judge says of a wrong value."""
    return Finding(
        id="f1",
        rule="check.selection.values",
        force=Force.CONVICTS,
        charge=Verdict.INCORRECT,
        title="3 of 64 values are not the largest (case adjacent_floats on small-1x4096x64)",
        detail="rows 0 of 1; columns 60–63 of 64",
        expected="1.0000153779983521",
        actual="1.0000152587890625",
        location=Location(output="values", index=(0, 60)),
        measured=(
            Measurement(name="cases", value=4),
            Measurement(name="same_error_as_mutant", value="drop_low_2_bits"),
        ),
        recipe=Recipe(stage="case", shape=SHAPES[0], case="adjacent_floats", seed=1000),
        reproduce=f"assay reproduce {grade_id}/f1",
    )


def grade(**changes: Any) -> Grade:
    """A clean grade with `changes`."""
    grade_id = changes.get("id", "g-20250102T030405-0123abcd")
    manifest = Manifest(entry=EntryKind.C_ABI, symbol="topk", build=Build(sources=("kernel.cpp",)))
    files = (file_entry("kernel.cpp", SOURCE.encode()), file_entry("submission.yaml", b"entry: c_abi\n"))
    fields: dict[str, Any] = {
        "id": grade_id,
        "created_at": datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC),
        "problem": ProblemRef(name="ops/topk", version=1, content_hash="ab" * 32, tier=Tier.SMALL),
        "submission": Submission(
            name="topk_cpp", content_hash="cd" * 32, files=files, entry=EntryKind.C_ABI, manifest=manifest
        ),
        "device": Device(name="cpu", kind="cpu", model="A Processor <9000>", fingerprint="ef" * 8, cores=2),
        "environment": environment(),
        "isolation": Isolation(level="namespaces", memory="cgroup", uid_dropped=True),
        "limits": Limits(),
        "status": Status.CORRECT,
        "timing": timing(),
        "verdict": Verdict.CLEAN,
        "reasons": ("every planned case agreed with the oracle",),
        "cases": results(),
        "cases_planned": len(CASES) * len(SHAPES),
        "secret_commitment": hashlib.sha256(SECRET).hexdigest(),
        "secret": SECRET.hex(),
        "phases": (Phase(name="build", seconds=2.1), Phase(name="check", seconds=3.4)),
        "artefacts": (Artefact(path="libkernel.so", sha256="12" * 32, what="library built by the judge, not kept"),),
    }
    return Grade(**(fields | changes))


def wrong_grade(**changes: Any) -> Grade:
    """An incorrect grade with a diagnosis."""
    grade_id = "g-20250102T030406-0123abce"
    fields: dict[str, Any] = {
        "id": grade_id,
        "status": Status.WRONG,
        "verdict": Verdict.INCORRECT,
        "reasons": ("wrong: 8 of 45 cases disagree with the oracle",),
        "cases": results(frozenset({"adjacent_floats", "denormal"})),
        "findings": (wrong_finding(grade_id),),
    }
    return grade(**(fields | changes))


def refused_grade(**changes: Any) -> Grade:
    """A submission that intake refused: nothing ran."""
    fields: dict[str, Any] = {
        "id": "g-20250102T030407-0123abcf",
        "status": Status.REFUSED,
        "verdict": Verdict.INCORRECT,
        "reasons": ("refused: solution.py is a symbolic link",),
        "submission": Submission(name="linked", content_hash="cd" * 32, files=()),
        "isolation": None,
        "timing": Timing(state=TimingState.INVALID, reason="nothing ran"),
        "cases": (),
        "cases_planned": 0,
        "secret": None,
        "secret_commitment": None,
        "phases": (),
        "artefacts": (),
    }
    return grade(**(fields | changes))


def hostile_grade(**changes: Any) -> Grade:
    """Every text that a submission can influence tries to break out."""
    grade_id = "g-20250102T030408-0123abd0"
    evil = "\x1b[31m<b>&\"'</b>\n\u202eok[/red]"
    finding = wrong_finding(grade_id).model_copy(
        update={"title": f"title {evil}", "detail": f"detail {evil}", "expected": evil, "actual": evil}
    )
    first = results(frozenset({"adjacent_floats"}))[0].model_copy(update={"message": f"message {evil}"})
    files = (file_entry("a b.py", b"x = 1\n"), file_entry("\u202eyp.exe<img src=x>.py", b"</code><script>\n"))
    fields: dict[str, Any] = {
        "id": grade_id,
        "submission": Submission(
            name=EVIL_NAME,
            content_hash="cd" * 32,
            files=files,
            manifest=Manifest(file="a b.py", description=f"says {evil}"),
        ),
        "reasons": (f"wrong: {evil}",),
        "cases": (first, *results(frozenset({"adjacent_floats"}))[1:]),
        "findings": (finding,),
    }
    return wrong_grade(**(fields | changes))


def keep(folder: Path, record: Grade) -> Path:
    """Write what the judge keeps of `record` below `folder`; returns the grade's folder."""
    place = folder / "grades" / record.id
    (place / "submission").mkdir(parents=True)
    (place / "grade.json").write_text(record.model_dump_json(indent=2), encoding="utf-8")
    texts = {"kernel.cpp": SOURCE, "submission.yaml": "entry: c_abi\n", "a b.py": "x = 1\n"}
    for entry in record.submission.files:
        text = texts.get(entry.path, "</code><script>\n")
        (place / "submission" / entry.path).write_text(text, encoding="utf-8")
    log = EVIL_LOG if record.submission.name == EVIL_NAME else "c++ -O3 -march=native kernel.cpp\n"
    (place / "log.txt").write_bytes(log.encode())
    return place


def convicted_grade(**changes: Any) -> Grade:
    """A grade of a submission that answers from memory."""
    wrong = wrong_grade(**({"id": "g-20250102T030408-0123abd0"} | changes))
    charged = {
        "rule": "probe.live_inputs",
        "charge": Verdict.REWARD_HACK,
        "title": "inputs overwritten in place: the answer is, byte for byte, that to call 1",
    }
    finding = wrong.findings[0].model_copy(update=charged)
    accused = {"verdict": Verdict.REWARD_HACK, "findings": (finding,), "reasons": (finding.title,)}
    return Grade.model_validate(wrong.model_copy(update=accused).model_dump())
