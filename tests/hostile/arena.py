"""Grades small hostile submissions by the real judge, and looks for anything that they left behind."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import kernelassay.sandbox
from kernelassay.judge import GradeRequest, grade
from kernelassay.records import Grade, Limits
from kernelassay.sandbox import Jail, JailedProcess, Level, Sandbox

ROOT = Path(__file__).resolve().parents[2]
TOPK = ROOT / "decks" / "ops" / "topk"
PROBLEM = "ops/topk"
K = 8
LIMITS = Limits(
    build_s=20.0,
    load_s=20.0,
    call_s=5.0,
    memory_bytes=2 << 30,
    processes=64,
    file_bytes=64 << 20,
    output_bytes=1 << 20,
)
"""Small, so that each attack ends soon; the call's leaves room for a machine that others use too."""

HONEST = f"import torch\n\ndef custom_kernel(data):\n    return tuple(torch.topk(data[0], {K}, dim=-1))\n"
WRONG = f"import torch\n\ndef custom_kernel(data):\n    return tuple(torch.topk(data[0].abs(), {K}, dim=-1))\n"
HONEST_C = """
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>
static int honest(const void *const *in, void *const *out, const int64_t *shape) {
    const int64_t rows = shape[0], n = shape[1], k = shape[2];
    for (int64_t r = 0; r < rows; ++r) {
        const float *x = static_cast<const float *>(in[0]) + r * n;
        std::vector<int64_t> order(n);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return x[a] > x[b]; });
        for (int64_t i = 0; i < k; ++i) {
            static_cast<float *>(out[0])[r * k + i] = x[order[i]];
            static_cast<int64_t *>(out[1])[r * k + i] = order[i];
        }
    }
    return 0;
}
"""
C_MANIFEST = "entry: c_abi\nsymbol: topk\nbuild: {sources: [kernel.cpp], flags: [-O1]}\n"


def python(body: str, before: str = "") -> dict[str, str]:
    """A submission whose `custom_kernel` runs `body`; `x` is the input, `honest(x)` the right answer."""
    lines = "\n".join("    " + line for line in body.strip("\n").split("\n"))
    text = (
        "import ctypes, os, signal, socket, sys, threading, time\nimport torch\n\n"
        f"def honest(x):\n    return tuple(torch.topk(x, {K}, dim=-1))\n\n"
        f"{before}\n\ndef custom_kernel(data):\n    x = data[0]\n{lines}\n"
    )
    return {"solution.py": text}


def native(code: str, manifest: str = C_MANIFEST) -> dict[str, str]:
    """A C ABI submission; `code` may call `honest(in, out, shape)`."""
    return {"kernel.cpp": HONEST_C + code, "submission.yaml": manifest}


def reduced_deck(folder: Path) -> Path:
    """A copy of the deck with one small shape and two cases, so that a grade is little more than a start."""
    target = folder / "ops" / "topk"
    target.mkdir(parents=True)
    yaml = YAML(typ="safe", pure=True)
    problem: dict[str, Any] = yaml.load((TOPK / "problem.yaml").read_text())
    problem["shapes"] = [{"key": "small-4x256x8", "tier": "small", "values": {"batch": 4, "n": 256, "k": K}}]
    keep = {"cases": ("nominal", "equal"), "mutants": ("smallest", "by_magnitude")}
    for what, names in keep.items():
        problem[what] = [{"name": name} for name in names]
    (target / "problem.yaml").write_text(json.dumps(problem))  # JSON is YAML, and keeps the order of a shape's values
    reference = (TOPK / "reference.py").read_text()
    for table, names in (("CASES", keep["cases"]), ("MUTANTS", keep["mutants"])):
        reference += f"\n{table} = {{name: {table}[name] for name in {names!r}}}\n"
    (target / "reference.py").write_text(reference)
    (target / "prompt.md").write_text((TOPK / "prompt.md").read_text())
    return folder


@dataclass
class Arena:
    """Where hostile submissions are graded."""

    folder: Path
    home: Path
    stages: Path
    """Only this process makes jails in here."""
    jails: list[JailedProcess] = field(default_factory=list)
    started: int = 0
    seconds: float = 0.0
    last: Path = Path()
    """Folder of the last grade."""

    def submission(self, files: Mapping[str, str | bytes]) -> Path:
        """A new folder with these files."""
        self.started += 1
        folder = self.folder / f"s{self.started}"
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return folder

    def grade(self, files: Mapping[str, str | bytes] | Path, level: Level | None = None, **limits: Any) -> Grade:
        """Grade them, then see that nothing of any jail is left."""
        path = files if isinstance(files, Path) else self.submission(files)
        chosen = LIMITS.model_copy(update=limits)
        start = time.monotonic()
        request = GradeRequest(
            path, PROBLEM, level=level, limits=chosen, home=self.home, probes=frozenset(), clocks=False
        )
        graded = grade(request)
        self.seconds = time.monotonic() - start
        self.last = graded.folder
        self.assert_nothing_left()
        return graded.grade

    @property
    def log(self) -> str:
        """What the last submission printed."""
        return (self.last / "log.txt").read_text()

    def assert_nothing_left(self) -> None:
        """No process, mount, stage, control group or half-made grade of any jail so far."""
        assert not list(self.stages.glob("kernelassay-jail-*"))
        assert not list((self.home / "grades").glob(".partial-*"))
        mounts = Path("/proc/self/mountinfo").read_text()
        for jail in self.jails:
            assert not [f for f in jail._cgroups.folders if Path(f).is_dir()]
            assert jail.scratch.parent.name not in mounts
        names = {jail.scratch.parent.name.encode() for jail in self.jails}
        assert not [pid for pid in processes() if any(name in _told(pid) for name in names)]
        assert not children(), "a child of the judge is still there"
        self.jails.clear()


def processes() -> list[int]:
    """Every process of this machine."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _told(pid: int) -> bytes:
    """What a process's environment and arguments say: outside of namespaces they hold the stage's path."""
    found = b""
    for name in ("environ", "cmdline"):
        try:
            found += Path(f"/proc/{pid}/{name}").read_bytes()
        except OSError:
            continue
    return found


def children() -> list[int]:
    """Live children of this process."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state != "Z":
                found.append(int(pid))
    return found


def open_arena(folder: Path, stages: Path, patch: pytest.MonkeyPatch) -> Arena:
    """An arena on the reduced deck whose jails all stand in `stages`."""
    arena = Arena(folder / "submissions", folder / "home", stages)
    patch.setenv("KERNELASSAY_DECKS", str(reduced_deck(folder / "decks")))
    patch.setenv("TMPDIR", str(stages))
    patch.setattr(tempfile, "tempdir", str(stages))
    start = Sandbox.start

    def recorded(self: Sandbox, jail: Jail) -> JailedProcess:
        process = start(self, jail)
        arena.jails.append(process)
        return process

    patch.setattr(kernelassay.sandbox.Sandbox, "start", recorded)
    return arena
