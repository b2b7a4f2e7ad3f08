"""What an attacker who knows every address and name gains in a real jail, at each level, under each kind of user."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.helpers import HERE, USERS, RemoteError, RemoteJudge

ALWAYS = {"capability", "descriptors", "mount"}
"""Promised by every level, under every user: no capability, no descriptor but the standard ones."""
OWN_UID = {
    *("memory_by_proc", "memory_by_system_call", "trace", "environment", "descriptor", "private_file", "home"),
    *("signal_judge", "signal_warden", "write_room"),
}
"""Follows from a uid of its own, hence at level none when started by root."""
LANDLOCK = OWN_UID | {
    *("public_file", "tcp", "udp", "abstract_socket", "named_socket", "write_outside", "write_system"),
    *("new_namespace", "shared_memory"),
}
NAMESPACES = (LANDLOCK - {"shared_memory", "udp"}) | {"other_processes"}
"""Shared memory and the loopback device are the jail's own there; that no datagram arrives is shown apart."""
PROMISED: dict[tuple[str, str], set[str]] = {
    ("namespaces", "root"): NAMESPACES,
    ("namespaces", "user"): NAMESPACES,
    ("landlock", "root"): LANDLOCK,
    ("landlock", "user"): LANDLOCK,
    ("none", "root"): OWN_UID,
    ("none", "user"): set(),
}
NEEDS_NO_YAMA = {"memory_by_proc", "memory_by_system_call", "trace", "environment", "descriptor"}


def gained(text: str) -> dict[str, bool]:
    result: dict[str, bool] = json.loads(text.strip().splitlines()[-1])
    return result


def attacked(judge: RemoteJudge, level: str) -> dict[str, bool]:
    # The warden's pid is known only once it runs, so the first jail shows the pid of a warden that lives.
    bystander = judge.attack("hang", level)
    own = "/dev/shm" if level == "namespaces" else ""  # a small one of the jail's own
    target: dict[str, Any] = {**judge.target, "warden": bystander.warden, "own": own}
    jail = judge.attack("passive", level, json.dumps(target))
    try:
        assert jail.wait(30) == {"exit_code": 0, "signal": None, "over_limit": None}, jail.log()
        return gained(jail.log())
    finally:
        jail.close()
        bystander.close()


@pytest.fixture(scope="module")
def gains(judges: dict[str, RemoteJudge]) -> dict[tuple[str, str], dict[str, bool]]:
    return {(level, user): attacked(judges[user], level) for level, user in PROMISED if user in judges}


@pytest.mark.parametrize(
    ("level", "user", "attempt"),
    [
        (level, user, attempt)
        for (level, user), promised in PROMISED.items()
        if user in USERS
        for attempt in sorted(promised | ALWAYS)
    ],
)
def test_attempt_gains_nothing(
    gains: dict[tuple[str, str], dict[str, bool]], level: str, user: str, attempt: str
) -> None:
    assert gains[level, user][attempt] is False


def test_attempts_have_teeth(judge: RemoteJudge) -> None:
    """The same attempts outside of any jail, under the judge's own uid, succeed."""
    script = [sys.executable, "-I", "-S", "-B", str(HERE / "attack.py"), "passive"]
    result = gained(judge.ask("free", [*script, json.dumps({**judge.target, "warden": judge.target["pid"]})]))
    wanted = OWN_UID | LANDLOCK | {"other_processes"}
    yama = Path("/proc/sys/kernel/yama/ptrace_scope")
    if yama.exists() and yama.read_text().strip() != "0" and judge.user == "user":
        wanted -= NEEDS_NO_YAMA
    if judge.user == "user" and HERE.stat().st_uid == 0:
        wanted -= {"write_room"}
    assert {name for name in wanted if not result[name]} == set()
    assert judge.ask("datagram")


def test_no_datagram_arrives(judge: RemoteJudge, confined: str) -> None:
    judge.ask("datagram")
    attacked(judge, confined)
    assert judge.ask("datagram") is False


def test_hardened_judge_is_unreadable_by_its_own_uid_and_still_starts_jails(new_judge: Any) -> None:
    judge = new_judge("user")
    script = [sys.executable, "-I", "-S", "-B", str(HERE / "attack.py"), "passive", json.dumps(judge.target)]
    judge.ask("harden")
    result = gained(judge.ask("free", script))
    assert not [name for name in NEEDS_NO_YAMA if result[name]]
    for level in ("namespaces", "landlock", "none"):
        jail = judge.start(["{python}", "-I", "-S", "-c", "print(6 * 7)"], level)
        assert jail.wait(20)["exit_code"] == 0
        assert jail.log() == "42\n"
        jail.close()


def test_root_of_a_namespace_jail_is_built_up(judge: RemoteJudge) -> None:
    code = "import os, json; print(json.dumps([sorted(os.listdir('/')), os.listdir('/etc'), os.listdir('/assay')]))"
    jail = judge.start(["{python}", "-I", "-S", "-c", code], "namespaces")
    assert jail.wait(20)["exit_code"] == 0
    root, etc, rooms = json.loads(jail.log())
    jail.close()
    python = Path(sys.base_prefix).resolve().parts[1]
    assert set(root) <= {"assay", "bin", "dev", "etc", "lib", "lib32", "lib64", "proc", "sbin", "tmp", "usr", python}
    assert set(etc) == {"ld.so.cache", "passwd"}
    assert set(rooms) == {"attack", "scratch"}


def test_environment_is_what_was_given(judge: RemoteJudge, level: str) -> None:
    code = "import os, json; print(json.dumps(dict(os.environ)))"
    jail = judge.start(["{python}", "-I", "-S", "-c", code], level, env={"ROOM": "{attack}", "LC_ALL": "C.UTF-8"})
    assert jail.wait(20)["exit_code"] == 0
    found = json.loads(jail.log())
    jail.close()
    assert set(found) - {"PWD", "LC_CTYPE"} == {"HOME", "TMPDIR", "PATH", "ROOM", "LC_ALL"}
    assert found["ROOM"].endswith("/attack")


def test_passed_descriptor_arrives_under_its_number_and_no_other(judge: RemoteJudge, level: str) -> None:
    code = (
        "import os, sys; print(os.read(int(sys.argv[1]), 20).decode());"
        "print(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:-1])"
    )
    number = judge.target["fd"]
    jail = judge.start(["{python}", "-I", "-S", "-c", code, str(number)], level, pass_fds=[number])
    assert jail.wait(20)["exit_code"] == 0, jail.log()
    lines = jail.log().splitlines()
    jail.close()
    judge.ask("rewind")
    assert lines == ["another grade", f"[0, 1, 2, {number}]"]


@pytest.mark.parametrize("name", ["scratch", "site", "python"])
def test_reserved_room_is_refused(judge: RemoteJudge, name: str) -> None:
    with pytest.raises(RemoteError, match=f"ValueError: a room cannot be called {name}"):
        judge.start(["{python}"], "none", rooms={name: "/tmp"})
