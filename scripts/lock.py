#!/usr/bin/env python3
"""Write requirements.lock from what is installed in the environment.

The rule: the lock holds the closure of everything that the project needs (run, development, building the
editable package) and of torch's own requirements, each pinned with `==`, for every tested Python; never torch
itself nor what comes with its accelerator builds, because which build a machine takes depends on where it asks.

To move to newer versions: `.venv/bin/pip install -U NAME`, run the tests, `make lock`.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
PYTHONS = ("3.11", "3.12")
BUILD = ("hatchling", "editables")
APART = ("torch", "triton", "nvidia-", "cuda-")
OWN = ("nvidia-ml-py",)
"""Not apart, whatever its name: bindings of a library that comes with the driver, small and pure Python."""
HEADER = """\
# Written by `make lock`; do not edit. Python 3.11 and 3.12, Linux.
# torch is installed apart (scripts/setup.py): which build a machine takes depends on where it asks.
"""


def wanted(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Whether a requirement applies on Linux under any of the tested Pythons."""
    if requirement.marker is None:
        return True
    return any(
        requirement.marker.evaluate({"python_version": python, "python_full_version": f"{python}.0", "extra": extra})
        for python in PYTHONS
        for extra in extras or {""}
    )


def closure() -> dict[str, str]:
    """Canonical name → version of everything that the lock pins.

    Raises:
        PackageNotFoundError: something that is needed is not installed.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [*project["dependencies"], *project["optional-dependencies"]["dev"], *BUILD]
    queue = [Requirement(name) for name in names]
    seen: set[tuple[str, frozenset[str]]] = set()
    pins: dict[str, str] = {}
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if key in seen or (name != "torch" and name.startswith(APART) and name not in OWN):
            continue
        seen.add(key)
        found = distribution(name)
        if name != "torch":
            pins[name] = found.version
        inner = [Requirement(text) for text in found.requires or ()]
        queue.extend(r for r in inner if wanted(r, frozenset(requirement.extras)))
    return pins


def main() -> int:
    """Write the lock, or with --check say whether it is current (exit 1 when not)."""
    parser = argparse.ArgumentParser(description="Write requirements.lock from the environment.")
    parser.add_argument("--check", action="store_true", help="compare only")
    options = parser.parse_args()
    try:
        pins = closure()
    except PackageNotFoundError as error:
        print(f"{error.name} is needed and not installed. Next: .venv/bin/pip install {error.name}", file=sys.stderr)
        return 1
    text = HEADER + "".join(f"{name}=={version}\n" for name, version in sorted(pins.items()))
    if options.check:
        if LOCK.read_text() == text:
            return 0
        print("requirements.lock differs from the environment. Next: make setup, or make lock", file=sys.stderr)
        return 1
    draft = LOCK.with_suffix(".new")
    draft.write_text(text)
    draft.replace(LOCK)
    print(f"requirements.lock: {len(pins)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
