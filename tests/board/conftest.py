"""The grades of `grades.py` as a fixture; test modules are not importable by name."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def grades() -> ModuleType:
    """The module `tests/board/grades.py`."""
    path = Path(__file__).with_name("grades.py")
    spec = importlib.util.spec_from_file_location("kernelassay_test_grades", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
