"""The lock pins everything but torch, and names no place."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LINES = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]


def test_every_line_is_a_pin() -> None:
    names = [line.split("==")[0] for line in LINES]
    assert names == sorted(set(names))
    for line in LINES:
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]*==[0-9][0-9a-z.]*", line), line


def test_torch_and_accelerator_builds_stay_apart() -> None:
    names = {line.split("==")[0] for line in LINES}
    assert not {name for name in names - {"nvidia-ml-py"} if re.match(r"torch|triton|nvidia|cuda", name)}


def test_everything_that_the_project_declares_is_pinned_within_its_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = dict(line.split("==") for line in LINES)
    for text in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        wanted = Requirement(text)
        if wanted.name != "torch":
            assert wanted.specifier.contains(pins[canonicalize_name(wanted.name)]), text
