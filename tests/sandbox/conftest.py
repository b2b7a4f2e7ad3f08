"""Fixtures: a judge under each kind of user, and the levels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.sandbox.helpers import USERS, RemoteJudge


@pytest.fixture(scope="session")
def judges() -> Iterator[dict[str, RemoteJudge]]:
    started = {user: RemoteJudge(user) for user in USERS}
    yield started
    for judge in started.values():
        judge.end()


@pytest.fixture(params=USERS)
def judge(request: pytest.FixtureRequest, judges: dict[str, RemoteJudge]) -> RemoteJudge:
    return judges[request.param]


@pytest.fixture(params=("namespaces", "landlock", "none"))
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=("namespaces", "landlock"))
def confined(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def new_judge() -> Iterator[Callable[[str], RemoteJudge]]:
    """Judges for one test, to be killed by it."""
    started: list[RemoteJudge] = []

    def start(user: str) -> RemoteJudge:
        started.append(RemoteJudge(user))
        return started[-1]

    yield start
    for judge in started:
        judge.end()
