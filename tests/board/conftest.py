"""The grades of `grades.py` as a fixture."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.board import grades as made


@pytest.fixture(scope="session")
def grades() -> ModuleType:
    """The module `tests/board/grades.py`."""
    return made
