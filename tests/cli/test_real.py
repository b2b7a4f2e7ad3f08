"""The command line with the real judge: grade, reproduce, report, interrupt, demo."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kernelassay
from kernelassay.records import Grade

_ASSAY = [sys.executable, "-m", "kernelassay"]
_EXAMPLES = Path(kernelassay.__file__).parents[2] / "examples"
_TIMEOUT_S = 280
pytestmark = pytest.mark.timeout(300)
"""A grade takes seconds; on a machine that runs other suites beside this one it may take minutes."""


def _run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KERNELASSAY_HOME": str(home), "NO_COLOR": "1"}
    return subprocess.run(
        [*_ASSAY, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, env=environment
    )


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The home and the record of one real grade of the wrong example."""
    home = tmp_path_factory.mktemp("home with space")
    done = _run(home, "grade", str(_EXAMPLES / "topk_wrong"), "--problem", "ops/topk", "--json")
    assert done.returncode == 1, done.stderr
    return home, json.loads(done.stdout)


def test_grade_is_a_record_and_a_page(wrong: tuple[Path, dict[str, Any]]) -> None:
    home, document = wrong
    record = Grade.from_plain(document)
    assert (record.status, record.verdict, record.score) == ("wrong", "incorrect", None)
    folder = home / "grades" / record.id
    assert Grade.model_validate_json((folder / "grade.json").read_bytes()) == record
    page = (folder / "report.html").read_text()
    assert "✗ incorrect" in page and "extern &#34;C&#34;" in page
    assert "hash differs" not in page and "is not kept beside the grade" not in page


def test_finding_reproduces(wrong: tuple[Path, dict[str, Any]]) -> None:
    home, document = wrong
    command = document["findings"][0]["reproduce"].split()
    assert command[:2] == ["assay", "reproduce"]
    done = _run(home, *command[1:], "--json")
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["reproduced"] is True
    assert (outcome["expected"], outcome["actual"]) == (
        document["findings"][0]["expected"],
        document["findings"][0]["actual"],
    )


def test_report_by_the_beginning_of_an_id(wrong: tuple[Path, dict[str, Any]]) -> None:
    home, document = wrong
    done = _run(home, "report", document["id"][:-4])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(home / "grades" / document["id"] / "report.html")


def _two_lines(err: str) -> tuple[str, str]:
    first, second = [line for line in err.splitlines() if not line.startswith("·")]
    return first, second


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("grade", ".", "--problem", "ops/topk", "--device", "h300"), "error: no device 'h300'"),
        (("grade", ".", "--problem", "ops/tokp"), "did you mean 'ops/topk'"),
        (("reproduce", "g-nothing/f1"), "error: no grade"),
        (("reproduce", "nonsense"), "error: "),
        (("report", ""), "error: "),
    ],
)
def test_mistakes_exit_2_with_two_lines(
    assay: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    what: str,
) -> None:
    monkeypatch.setenv("KERNELASSAY_HOME", str(tmp_path))
    ran = assay(*arguments)
    assert ran.code == 2
    first, second = _two_lines(ran.err)
    assert what in first and second.startswith("next: ")


def test_no_such_submission(tmp_path: Path) -> None:
    done = _run(tmp_path, "grade", "no/such\nfolder", "--problem", "ops/topk")
    assert done.returncode == 2
    first, second = _two_lines(done.stderr)
    assert first.startswith("error: no submission at 'no/such\\nfolder'")
    assert second.startswith("next: assay grade")
    assert done.stdout == "" and not list(tmp_path.glob("grades/*"))


def _descendants(pid: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(status.parent.name))
    found, open_pids = set(), [pid]
    while open_pids:
        new = children.get(open_pids.pop(), [])
        found.update(new)
        open_pids.extend(new)
    return found


def test_interrupt_closes_the_jail_and_leaves_nothing(tmp_path: Path) -> None:
    submission = tmp_path / "sleeper"
    submission.mkdir()
    (submission / "solution.py").write_text("import time\ntime.sleep(600)\n")
    home = tmp_path / "home"
    arguments = [*_ASSAY, "grade", str(submission), "--problem", "ops/topk", "--home", str(home)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            below: set[int] = set()
            deadline = time.monotonic() + 60
            while len(below) < 3 and time.monotonic() < deadline:  # warden, bubblewrap, worker
                time.sleep(0.2)
                below = _descendants(process.pid)
            assert len(below) >= 3, "the jail never started"
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "interrupted by SIGINT; finished grades are intact" in err and "Traceback" not in err
    deadline = time.monotonic() + 5
    while (alive := {pid for pid in below if Path(f"/proc/{pid}").exists()}) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive
    assert not list(home.glob("grades/*")), "an unfinished grade leaves no folder"


@pytest.mark.slow
@pytest.mark.parametrize(("order", "code"), [((0, 1, 2), 0), ((2, 0, 1), 1)])
def test_demo_and_swapped(tmp_path: Path, order: tuple[int, ...], code: int) -> None:
    folders = [_EXAMPLES / name for name in ("topk_cpp", "topk_wrong", "topk_memo")]
    plain = [tmp_path / name for name in ("one", "two", "three")]
    for link, at in zip(plain, order, strict=True):
        link.mkdir()
        for file in folders[at].iterdir():
            if file.is_file():
                (link / file.name).write_bytes(file.read_bytes())
    done = _run(tmp_path / "home", "demo", *map(str, plain), "--json")
    assert done.returncode == code, done.stderr
    document = json.loads(done.stdout)
    verdicts = [row["verdict"] for row in document["grades"]]
    assert verdicts == [["clean", "incorrect", "reward_hack"][at] for at in order]
    assert re.search(r"one|two|three", document["grades"][0]["submission"]), "the folder's name says nothing"
    assert Path(document["index"]).is_file()
