"""`assay gpu`: a real command under a real lease, and whatever may be killed of the three processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelassay.devices import lease, lease_status

_ASSAY = [sys.executable, "-m", "kernelassay", "gpu"]
_TIMEOUT_S = 60
RECOVERY_S = 2.0


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Leases of one test alone."""
    place = Path(tempfile.mkdtemp(prefix="kernelassay-test-"))
    monkeypatch.setenv("KERNELASSAY_LEASES", str(place))
    monkeypatch.delenv("KERNELASSAY_LEASE", raising=False)
    yield place
    shutil.rmtree(place)


def _gpu(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_ASSAY, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, **options
    )


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `assay gpu` with a shell script that prints its pid first."""
    made: list[subprocess.Popen[str]] = []

    def begin(script: str, *options: str) -> subprocess.Popen[str]:
        command = [*_ASSAY, *options, "--", "sh", "-c", f"echo $$; {script}"]
        made.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return made[-1]

    yield begin
    for process in made:
        process.kill()
        process.communicate()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def _until(true: Callable[[], bool], within_s: float = _TIMEOUT_S) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _free() -> bool:
    return not lease_status("cpu").held


def test_output_input_and_exit_code_are_the_commands() -> None:
    done = _gpu("--", "sh", "-c", "cat; echo err >&2; exit 7", input="from here")
    assert (done.returncode, done.stdout, done.stderr) == (7, "from here", "err\n")
    assert [event.event for event in lease_status("cpu").events] == ["wait", "start", "end"]


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["sh", "-c", "kill -9 $$"], 137, ""),
        (["no-such-command"], 127, "assay gpu: no-such-command: No such file or directory\n"),
        (["/etc/passwd"], 126, "assay gpu: /etc/passwd: Permission denied\n"),
        (["echo", "--json", "--help"], 0, ""),
    ],
)
def test_exit_codes_are_those_of_a_shell(command: list[str], code: int, said: str) -> None:
    done = _gpu("--", *command)
    assert (done.returncode, done.stderr) == (code, said)
    assert done.stdout == ("--json --help\n" if code == 0 else "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "error: no command to run"),
        (["--limit", "0", "--", "true"], "error: --limit 0: a positive number of seconds"),
        (["--limit", "nan", "--", "true"], "error: --limit nan: a positive number of seconds"),
        (["--device", "a/b", "--", "true"], "error: no device can be called 'a/b'"),
        (["status", "--device", "a/b"], "error: no device can be called 'a/b'"),
    ],
)
def test_what_the_caller_got_wrong(arguments: list[str], said: str) -> None:
    done = _gpu(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(said) and "\nnext: assay " in done.stderr


def test_json_is_alone_on_standard_output() -> None:
    done = _gpu("--json", "--device", "GPU-1", "--", "sh", "-c", "echo out; exit 3")
    assert done.returncode == 3 and done.stderr == "out\n"
    document = json.loads(done.stdout)
    assert document | {"held_s": 0, "waited_s": 0} == {
        "device": "GPU-1", "token": 1, "nested": False, "waited_s": 0, "held_s": 0, "limit_s": 3600.0,
        "ended": "exit", "code": 3, "exit_code": 3,
    }  # fmt: skip
    assert 0 < document["held_s"] < _TIMEOUT_S


def test_the_limit_asks_first_and_then_ends_everything() -> None:
    begun = time.monotonic()
    done = _gpu("--limit", "0.3", "--json", "--", "sh", "-c", 'trap "echo asked; exit 3" TERM; sleep 60 & wait')
    assert done.returncode == 124 and time.monotonic() - begun < 5
    assert done.stderr.startswith("asked\nerror: the command held cpu for its limit of 0.3 s and was ended\n")
    assert "\nnext: assay gpu --device cpu --limit 0.6 -- sh -c " in done.stderr
    assert json.loads(done.stdout)["ended"] == "limit"
    assert lease_status("cpu").events[-1].how == "limit"


@pytest.mark.slow
def test_the_limit_ends_what_is_deaf_and_what_hides(start: Start) -> None:
    hidden = "setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.1; done' &"
    process = start(f"trap '' TERM; {hidden} while :; do sleep 0.1; done", "--limit", "0.3")
    pids = [int(_line(process)), int(_line(process))]
    assert process.wait(_TIMEOUT_S) == 124
    assert all(_gone(pid) for pid in pids) and _free()


def test_what_a_command_leaves_behind_ends_with_it(start: Start) -> None:
    process = start("setsid sleep 60 & echo $!")
    pids = [int(_line(process)), int(_line(process))]
    assert process.wait(_TIMEOUT_S) == 0
    assert all(_gone(pid) for pid in pids) and _free()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGTERM, signal.SIGHUP))]
)
def test_signals_reach_the_command(start: Start, number: signal.Signals) -> None:
    process = start(f"trap 'echo got; exit 9' {number.name[3:]}; echo ready; while :; do sleep 0.05; done")
    _line(process)
    assert _line(process) == "ready"
    process.send_signal(number)
    assert _line(process) == "got"
    assert process.wait(_TIMEOUT_S) == 9 and _free()


def test_an_interrupted_waiter_leaves_the_queue(start: Start) -> None:
    with lease("cpu"):
        waiter = start("true")
        environment = {**os.environ, "KERNELASSAY_LEASE": ""}
        other = subprocess.Popen([*_ASSAY, "--", "true"], env=environment, stderr=subprocess.PIPE, text=True)
        assert waiter.wait(_TIMEOUT_S) == 0  # a child of the holder
        _until(lambda: lease_status("cpu").waiters == (other.pid,))
        other.send_signal(signal.SIGINT)
        assert "interrupted by SIGINT" in other.communicate(timeout=_TIMEOUT_S)[1]
        assert other.returncode == 130
        assert lease_status("cpu").events[-1].event == "left"


def test_kill_9_of_assay_ends_the_command_and_frees_the_device(start: Start) -> None:
    process = start("setsid sleep 60 & echo $!; sleep 60")
    pids = [int(_line(process)), int(_line(process))]
    assert not _free()
    process.kill()
    _until(lambda: _free() and all(_gone(pid) for pid in pids), RECOVERY_S)
    assert _gpu("--", "true").returncode == 0
    events = lease_status("cpu").events
    assert [f"{event.event} {event.how or ''}".strip() for event in events[:5]] == [
        "wait", "start", "wait", "end died", "start",
    ]  # fmt: skip
    assert lease_status("cpu").violations == ()


@pytest.mark.slow
def test_kill_9_of_the_guard_ends_the_command_too(start: Start) -> None:
    process = start("setsid sleep 60 & echo $!; sleep 60")
    pids = [int(_line(process)), int(_line(process))]
    guard = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
    os.kill(guard, signal.SIGKILL)
    assert process.wait(_TIMEOUT_S) == 5
    assert process.stderr is not None and "the guard of the command was killed" in process.stderr.read()
    assert all(_gone(pid) for pid in pids) and _free()


@pytest.mark.slow
def test_kill_9_of_both_ends_the_command_itself(start: Start) -> None:
    process = start("exec sleep 60")
    command = int(_line(process))
    guard = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
    for number in (signal.SIGSTOP, signal.SIGKILL):
        os.kill(guard, number)
        os.kill(process.pid, number)
    _until(lambda: _free() and _gone(command), RECOVERY_S)


def test_a_command_may_ask_for_what_it_has() -> None:
    inner = [*_ASSAY, "--json", "--", "true"]
    done = _gpu("--", *inner)
    assert done.returncode == 0
    assert json.loads(done.stdout)["nested"] is True
    assert len(lease_status("cpu").events) == 3


def test_status_shows_holder_waiters_and_journal(start: Start) -> None:
    holder = start("sleep 60", "--limit", "77")
    _line(holder)
    waiter = start("true", "--quiet")
    _until(lambda: lease_status("cpu").waiters == (waiter.pid,))
    text = _gpu("status").stdout
    assert text.startswith(f"cpu: held by pid {holder.pid} ")
    assert "limit 77 s; last sign of life" in text and f"waiting, place 1: pid {waiter.pid}" in text
    document = json.loads(_gpu("status", "--json").stdout)
    assert document["held"] and document["owner"]["pid"] == holder.pid and document["waiters"] == [waiter.pid]
    assert [event["event"] for event in document["journal"]] == ["wait", "start", "wait"]
    holder.kill()
    assert waiter.wait(_TIMEOUT_S) == 0
    assert _gpu("status").stdout.startswith("cpu: free\n")


@pytest.mark.slow
def test_a_waiter_says_so_after_two_seconds(start: Start) -> None:
    holder = start("sleep 60")
    _line(holder)
    waiter = start("true")
    assert waiter.stderr is not None
    line = waiter.stderr.readline()
    assert line.startswith("· waiting for cpu") and f"pid {holder.pid}" in line
    holder.kill()
    assert waiter.wait(_TIMEOUT_S) == 0
