"""Nothing of a jail outlives its judge: not after kill -9, with the warden killed too, on a terminal's Ctrl-C."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.sandbox.helpers import RemoteJail, RemoteJudge, with_token

GONE_S = 15.0
"""Longest wait for the clean-up on a busy machine; it takes some 50 ms."""

NewJudge = Callable[[str], RemoteJudge]


def groups(name: str) -> list[str]:
    """Control groups of a jail, wherever they are mounted."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup"):
            found += [folder for folder, _, _ in os.walk(fields.split()[4]) if folder.endswith(f"/{name}")]
    return found


def traces(jail: RemoteJail, token: str) -> list[str]:
    """Everything that is left of a jail."""
    stage = jail.scratch.parent
    found = [f"process {pid}" for pid in with_token(token)]
    found += [str(stage)] if stage.exists() else []
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if stage.name in line]
    found += [f"process {jail.pid}"] if Path(f"/proc/{jail.pid}").exists() else []
    return found + groups(stage.name)


def gone(jail: RemoteJail, token: str) -> list[str]:
    until = time.monotonic() + GONE_S
    while (left := traces(jail, token)) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def daemonised(judge: RemoteJudge, level: str) -> tuple[RemoteJail, str]:
    """A jail that holds a stubborn daemon besides its command."""
    token = f"daemon-{secrets.token_hex(6)}"
    jail = judge.attack("daemon_and_stay", level, token)
    until = time.monotonic() + GONE_S
    while ("left" not in jail.log() or len(with_token(token)) < 2) and time.monotonic() < until:
        time.sleep(0.02)
    assert len(with_token(token)) >= 2, "the attack itself did not work"
    return jail, token


def test_kill_of_the_judge(new_judge: NewJudge, judge: RemoteJudge, level: str) -> None:
    victim = new_judge(judge.user)
    jail, token = daemonised(victim, level)
    victim.process.kill()
    assert gone(jail, token) == []


def test_kill_of_the_judge_with_a_frozen_jail(new_judge: NewJudge, judge: RemoteJudge) -> None:
    victim = new_judge(judge.user)
    jail, token = daemonised(victim, "namespaces")
    jail.freeze()
    victim.process.kill()
    assert gone(jail, token) == []


def test_kill_of_judge_and_warden_is_swept_and_the_living_spared(new_judge: NewJudge, judge: RemoteJudge) -> None:
    # Under the caller's own uid only the namespace level ties every process to its jail.
    victim = new_judge(judge.user)
    level = "landlock" if judge.user == "root" else "namespaces"
    living, other = daemonised(judge, level)
    jail, token = daemonised(victim, level)
    os.kill(victim.process.pid, signal.SIGSTOP)  # so that it cannot clean up in the warden's place
    os.kill(jail.warden, signal.SIGKILL)
    victim.process.kill()
    victim.process.wait()
    swept = judge.ask("sweep")
    assert swept["stages"] == [str(jail.scratch.parent)]
    assert swept["failed"] == []
    assert gone(jail, token) == []
    assert judge.ask("sweep")["stages"] == []
    assert living.poll() is None
    assert len(with_token(other)) >= 2
    living.close()
    assert gone(living, other) == []


def test_kill_of_the_warden_alone_ends_the_jail(judge: RemoteJudge, level: str) -> None:
    jail = judge.attack("hang", level, token := f"hang-{secrets.token_hex(6)}")
    os.kill(jail.warden, signal.SIGKILL)
    ending = jail.wait(GONE_S)
    assert ending["signal"] == 9
    jail.close()
    assert gone(jail, token) == []


def test_terminal_signals_do_not_reach_warden_and_jail(judge: RemoteJudge) -> None:
    jail = judge.attack("hang", "none")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(jail.warden, number)
    assert os.getsid(jail.warden) != os.getsid(judge.process.pid)
    assert os.getsid(jail.pid) != os.getsid(judge.process.pid)
    assert jail.wait(0.5) is None
    jail.close()


def test_closing_twice_is_fine(judge: RemoteJudge) -> None:
    jail = judge.attack("hang", "none")
    until = time.monotonic() + GONE_S
    while jail.log() != "up\n" and time.monotonic() < until:
        time.sleep(0.02)
    assert jail.close() == jail.close() == {"exit_code": None, "signal": 9, "over_limit": None}
    assert jail.log() == "up\n"
    assert jail.processes() == []


def test_forged_stage_is_not_trusted(new_judge: NewJudge, judge: RemoteJudge, tmp_path: Path) -> None:
    """A folder that anybody could have made is no stage of ours."""
    forged = Path(f"/tmp/kernelassay-jail-{secrets.token_hex(12)}")
    forged.mkdir()
    forged.chmod(0o777)
    (forged / "lock").touch()
    try:
        assert str(forged) not in judge.ask("sweep")["stages"]
        assert forged.exists()
    finally:
        (forged / "lock").unlink()
        forged.rmdir()
