"""Whatever a jailed command does to the machine ends at its limit, leaves nothing behind, and is told apart."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time

import pytest

from tests.sandbox.helpers import HERE, RemoteJail, RemoteJudge, with_token

SMALL = {"memory_bytes": 300 << 20, "processes": 48, "file_bytes": 24 << 20, "output_bytes": 1 << 20}
END_S = 30.0
"""Longest time any of these may take on a busy machine; each needs about a second."""


def ended(jail: RemoteJail, wait_s: float = END_S) -> dict[str, int | str | None]:
    ending = jail.wait(wait_s)
    try:
        assert ending is not None, "still running"
        return dict(ending)
    finally:
        jail.close()


@pytest.mark.parametrize("level", ["namespaces", "none"])  # landlock shares every mechanism with none
@pytest.mark.parametrize(
    ("attack", "limit"),
    [
        ("hoard", "memory"),
        ("hoard_unmapped", "memory"),
        ("shout", "output"),
        ("litter", "files"),
        ("litter_hidden", "files"),
    ],
)
def test_excess_ends_at_its_limit(judge: RemoteJudge, level: str, attack: str, limit: str) -> None:
    start = time.monotonic()
    ending = ended(judge.attack(attack, level, limits=SMALL))
    assert ending == {"exit_code": None, "signal": 9, "over_limit": limit}
    assert time.monotonic() - start < END_S


def test_fork_bomb_is_bounded_and_ends(judge: RemoteJudge, level: str) -> None:
    token = f"bomb-{secrets.token_hex(6)}"
    jail = judge.attack("bomb", level, token, limits=SMALL)
    most = 0
    until = time.monotonic() + END_S
    while time.monotonic() < until and jail.poll() is None:
        most = max(most, len(with_token(token)))
        time.sleep(0.02)
    assert jail.poll() == {"exit_code": None, "signal": 9, "over_limit": "processes"}
    assert with_token(token) == []
    jail.close()
    # Between two looks of the watchdog the caller's own limit stands, which is wider.
    counted = judge.user == "root" or level == "namespaces"
    assert most <= SMALL["processes"] + 8 + (0 if counted else 2000)


def test_single_file_beyond_its_limit(judge: RemoteJudge, level: str) -> None:
    jail = judge.start(["/bin/sh", "-c", "exec cat /dev/zero > big"], level, limits=SMALL, tools=True)
    assert ended(jail)["over_limit"] == "files"


def test_flood_is_kept_as_head_and_tail(judge: RemoteJudge) -> None:
    code = "import sys; [print(n) for n in range(300000)]"
    jail = judge.start(["{python}", "-I", "-S", "-c", code], "none")
    assert jail.wait(END_S)["exit_code"] == 0
    log = jail.log()
    jail.close()
    assert log.startswith("0\n1\n2\n")
    assert log.endswith("\n299998\n299999\n")
    assert "bytes left out" in log
    assert len(log) < 600 << 10


@pytest.mark.parametrize("level", ["namespaces", "none"])
@pytest.mark.parametrize(
    ("code", "exit_code", "number"),
    [
        ("raise SystemExit(3)", 3, None),
        ("import os; os._exit(0)", 0, None),
        ("import os; os.abort()", None, 6),
        ("import ctypes; ctypes.string_at(0)", None, 11),
        ("import os; os.kill(os.getpid(), 9)", None, 9),
    ],
)
def test_ending_is_told_apart(
    judges: dict[str, RemoteJudge], level: str, code: str, exit_code: int | None, number: int | None
) -> None:
    judge = next(iter(judges.values()))
    jail = judge.start(["{python}", "-I", "-S", "-c", code], level)
    assert ended(jail) == {"exit_code": exit_code, "signal": number, "over_limit": None}


def test_hang_is_killed(judge: RemoteJudge, level: str) -> None:
    jail = judge.attack("hang", level)
    assert jail.wait(0.3) is None
    assert jail.processes() == [jail.pid]
    start = time.monotonic()
    jail.kill()
    assert jail.poll() == {"exit_code": None, "signal": 9, "over_limit": None}
    assert time.monotonic() - start < 5
    assert jail.processes() == []
    jail.close()


def progress(jail: RemoteJail) -> tuple[str, ...]:
    return tuple(sorted(f"{path.name} {path.read_text()}" for path in jail.scratch.glob("count-*")))


def test_freeze_stops_all_of_it_and_thaw_lets_it_go_on(judge: RemoteJudge, level: str) -> None:
    jail = judge.attack("count", level)
    until = time.monotonic() + 10
    while len(list(jail.scratch.glob("count-*"))) < 3 and time.monotonic() < until:
        time.sleep(0.05)
    assert len(jail.processes()) >= 3
    jail.freeze()
    frozen = progress(jail)
    time.sleep(0.25)
    assert progress(jail) == frozen
    jail.thaw()
    until = time.monotonic() + 10
    while progress(jail) == frozen and time.monotonic() < until:
        time.sleep(0.02)
    assert progress(jail) != frozen
    jail.freeze()
    assert jail.close() == {"exit_code": None, "signal": 9, "over_limit": None}  # also from the frozen state
    assert not jail.scratch.exists()


def test_nothing_is_left_behind(judge: RemoteJudge, level: str) -> None:
    token = f"daemon-{secrets.token_hex(6)}"
    jail = judge.attack("daemon", level, token)
    assert jail.wait(END_S) == {"exit_code": 0, "signal": None, "over_limit": None}
    assert "left" in jail.log()
    assert with_token(token) == []
    jail.close()
    assert not jail.scratch.exists()


def test_daemon_has_teeth() -> None:
    token = f"daemon-{secrets.token_hex(6)}"
    subprocess.run([sys.executable, "-I", "-S", str(HERE / "attack.py"), "daemon", token], check=True, timeout=20)
    left = with_token(token)
    assert len(left) == 1
    subprocess.run(["kill", "-9", str(left[0])], check=True)


def test_cpus_are_those_asked_for(judge: RemoteJudge, level: str) -> None:
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    jail = judge.start(["{python}", "-I", "-S", "-c", code], level, cpus=[0])
    assert jail.wait(END_S)["exit_code"] == 0
    assert jail.log() == "[0]\n"
    jail.close()
