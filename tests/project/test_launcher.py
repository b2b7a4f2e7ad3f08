"""`./assay` works from anywhere, through a link, and keeps standard output for the command."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["straight", "link"])
def launcher(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    subprocess.run(["make", "setup"], cwd=ROOT, capture_output=True, check=True)  # pyproject.toml may just have changed
    if request.param == "straight":
        return ROOT / "assay"
    link = tmp_path / "a link"
    link.symlink_to(ROOT / "assay")
    return link


def test_runs_from_another_folder(launcher: Path, tmp_path: Path) -> None:
    ended = subprocess.run(
        [str(launcher), "version", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(ended.stdout)["version"]
    assert ended.stderr == ""


def test_keeps_arguments_and_the_exit_code(launcher: Path, tmp_path: Path) -> None:
    ended = subprocess.run(
        [str(launcher), "grade", "no such folder", "--problem", "no/problem"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "no such folder" in ended.stderr or "no/problem" in ended.stderr
