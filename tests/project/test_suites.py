"""The runner fails loudly: for tests that nobody runs, for no tests, for failures, skips and overrun budgets."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = 'Suite("one", ("one",), fast_s={fast}, all_s=60),'


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A small project with the real runner and one suite of one test."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "tests" / "one").mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\naddopts = --import-mode=importlib\n")
    table(tmp_path, fast=60)
    (tmp_path / "tests" / "one" / "test_one.py").write_text("def test_one(): pass\n")
    return tmp_path


def table(house: Path, fast: int) -> None:
    text = (ROOT / "scripts" / "suites.py").read_text()
    head, rest = text.split("SUITES = (\n")
    _, tail = rest.split("\n)\n", 1)
    (house / "scripts" / "suites.py").write_text(f"{head}SUITES = (\n    {ROW.format(fast=fast)}\n)\n{tail}")


def run(house: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(house / "scripts" / "suites.py"), *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def test_passes_and_closes_with_pytests_line(house: Path) -> None:
    ended = run(house, "fast")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1].startswith("===")
    assert " 1 passed in " in ended.stdout.splitlines()[-1]


def test_a_folder_without_a_row(house: Path) -> None:
    shutil.copytree(house / "tests" / "one", house / "tests" / "two")
    ended = run(house, "all")
    assert ended.returncode == 2
    assert "tests/two has tests and no row" in ended.stderr


def test_a_row_without_a_folder(house: Path) -> None:
    shutil.rmtree(house / "tests" / "one")
    ended = run(house, "all")
    assert ended.returncode == 2
    assert "row 'one' names nothing" in ended.stderr


@pytest.mark.parametrize(
    ("body", "half", "fast", "complaint"),
    [
        ("def test_one(): assert False", "fast", 60, "pytest ended with 1"),
        ("import pytest\ndef test_one(): pytest.skip('no')", "fast", 60, "skipped"),
        ("import pytest\n@pytest.mark.slow\ndef test_one(): pass", "fast", 60, "ran no test"),
        ("import time\ndef test_one(): time.sleep(60)", "fast", 1, "ended after 6 times its budget"),
    ],
)
def test_what_does_not_pass(house: Path, body: str, half: str, fast: int, complaint: str) -> None:
    table(house, fast=fast)
    (house / "tests" / "one" / "test_one.py").write_text(body)
    ended = run(house, half)
    assert ended.returncode == 1
    assert complaint in ended.stdout


def test_unknown_suite(house: Path) -> None:
    ended = run(house, "fast", "nonesuch")
    assert ended.returncode == 2
    assert "nonesuch" in ended.stderr


def test_the_real_table_is_whole() -> None:
    ended = run(ROOT, "all", "--list")
    assert ended.returncode == 0, ended.stderr
