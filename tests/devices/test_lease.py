"""One lease per device, among real processes that are really killed."""

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
from contextlib import ExitStack
from pathlib import Path

import pytest

from kernelassay.devices import DeviceError, LeaseError, Waiting, lease, lease_status, violations
from kernelassay.devices._lease_files import PLACES, folder_path
from kernelassay.records import LeaseEvent
from tests.strangers import as_user

STRANGER = 54_321
RECOVERY_S = 2.0
"""What is promised between the end of a holder, by whatever cause, and the next start."""
_WAIT_S = 30

_HOLDER = """
import sys
from kernelassay.devices import lease
def tell(waiting):
    print("wait", waiting.position, waiting.owner and waiting.owner.pid, flush=True)
with lease(sys.argv[1], on_wait=tell) as held:
    print("held", held.token, held.nested, held.waited_s, flush=True)
    sys.stdin.readline()
print("over", held.held_s, flush=True)
"""


class Process:
    """A process that asks for a device and keeps it until told."""

    def __init__(self, *before: str, **environment: str) -> None:
        command = [*before, sys.executable, "-c", _HOLDER, "gpu"]
        self.popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "KERNELASSAY_LEASE": "", **environment},
        )

    def hears(self, word: str) -> list[str]:
        """The next line; it must begin with `word`. A waiter's repeated reports are passed over."""
        assert self.popen.stdout is not None
        while True:
            line = self.popen.stdout.readline().split()
            if line[:1] != ["wait"] or word == "wait":
                assert line[:1] == [word], line
                return line[1:]

    def release(self) -> None:
        """Let it give the device back."""
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()
        self.hears("over")
        assert self.popen.wait(_WAIT_S) == 0

    def kill(self) -> None:
        """As the kernel would when memory runs out."""
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(_WAIT_S)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of leases of its own, which is not made yet, in a place that all users may write to."""
    place = Path(tempfile.mkdtemp(prefix="kernelassay-test-"))
    place.chmod(0o1777)
    monkeypatch.setenv("KERNELASSAY_LEASES", str(place / "leases"))
    yield place / "leases"
    shutil.rmtree(place)


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Process]]:
    """Start processes that are gone when the test is."""
    with ExitStack() as stack:

        def made(*before: str, **environment: str) -> Process:
            process = Process(*before, **environment)
            stack.callback(process.popen.__exit__, None, None, None)
            stack.callback(process.popen.kill)
            return process

        yield made


def _journal() -> list[str]:
    return [f"{event.event} {event.how or ''}".strip() for event in lease_status("gpu").events]


# ── alone ────────────────────────────────────────────────────────────────────────────────────────


def test_a_lease_says_how_long_and_leaves_no_ticket(folder: Path) -> None:
    with lease("GPU-8c3f:0") as first:
        assert lease_status("GPU-8c3f:0").owner is not None
        assert os.environ["KERNELASSAY_LEASE"] == f"GPU-8c3f:0={first.token}"
        time.sleep(0.05)
    with lease("GPU-8c3f:0") as second:
        pass
    assert second.token == first.token + 1
    assert first.held_s is not None and 0.05 <= first.held_s < 5 and first.waited_s < 1
    assert "KERNELASSAY_LEASE" not in os.environ
    status = lease_status("GPU-8c3f:0")
    assert (status.held, status.owner, status.note, status.waiters) == (False, None, "free", ())
    assert [event.event for event in status.events] == ["wait", "start", "end"] * 2
    assert sorted(path.name for path in folder.iterdir()) == [
        "GPU-8c3f:0.journal",
        "GPU-8c3f:0.lock",
        "GPU-8c3f:0.queue",
    ]


def test_two_devices_know_nothing_of_each_other(folder: Path) -> None:
    with lease("a") as a, lease("b") as b:
        assert not a.nested and not b.nested
        with lease("a") as again:
            assert again.nested and again.token == a.token
        assert lease_status("a").held


def test_the_number_survives_a_damaged_counter(start: Callable[..., Process], folder: Path) -> None:
    with lease("gpu") as first:
        (folder / "gpu.queue").write_bytes(b"\xffnothing")
        waiter = start()
        waiter.hears("wait")
    assert waiter.hears("held")[0] == str(first.token + 1)
    (folder / "gpu.queue").write_bytes(b"")
    last = start()
    last.hears("wait")
    waiter.release()
    assert last.hears("held")[0] == str(first.token + 2)
    last.release()
    (folder / "gpu.queue").write_bytes(b"%020d\n" % 40)
    with lease("gpu") as jumped:
        assert jumped.token == 41


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "a\nb", "x" * 101])
def test_what_is_no_device(folder: Path, name: str) -> None:
    with pytest.raises(DeviceError, match=r"no device can be called .*next: assay doctor"), lease(name):
        pass
    assert not folder.exists()


# ── among others ─────────────────────────────────────────────────────────────────────────────────


def test_a_waiter_hears_whom_it_waits_for(start: Callable[..., Process]) -> None:
    holder = start()
    holder.hears("held")
    told: list[Waiting] = []

    class Enough(Exception):
        pass

    def tell(waiting: Waiting) -> None:
        told.append(waiting)
        if len(told) == 2:
            raise Enough

    with pytest.raises(Enough), lease("gpu", on_wait=tell):
        pass
    assert [waiting.position for waiting in told] == [1, 1]
    assert told[0].owner is not None and told[0].owner.pid == holder.popen.pid
    assert told[0].seconds < 1 <= told[1].seconds < 5
    assert f"pid {holder.popen.pid} has had gpu" in str(told[0])
    status = lease_status("gpu")
    assert status.note.startswith(f"held by pid {holder.popen.pid} ") and status.waiters == ()
    assert status.events[-1].event == "left" and status.events[-1].seconds is not None
    holder.release()
    assert lease_status("gpu").violations == ()


def test_first_come_first_served_past_the_dead(start: Callable[..., Process]) -> None:
    holder = start()
    holder.hears("held")
    waiters = []
    for position in (1, 2, 3):
        waiters.append(start())
        assert waiters[-1].hears("wait")[:2] == [str(position), str(holder.popen.pid)]
    first, second, third = waiters
    assert lease_status("gpu").waiters == tuple(process.popen.pid for process in waiters)
    second.kill()
    assert lease_status("gpu").waiters == (first.popen.pid, third.popen.pid)
    first.kill()
    assert lease_status("gpu").held
    holder.release()
    assert float(third.hears("held")[2]) > 0
    third.release()
    assert lease_status("gpu").violations == ()


def test_a_killed_holder_frees_the_device_and_its_record_is_only_told(start: Callable[..., Process]) -> None:
    holder, waiter = start(), None
    token = holder.hears("held")[0]
    holder.kill()
    status = lease_status("gpu")
    assert not status.held and status.owner is not None and status.owner.pid == holder.popen.pid
    assert f"free: the record of pid {holder.popen.pid}" in status.note and "stale" in status.note
    begun = time.monotonic()
    with lease("gpu") as held:
        assert time.monotonic() - begun < RECOVERY_S
        assert held.token == int(token) + 1
        waiter = start()
        waiter.hears("wait")
    assert float(waiter.hears("held")[2]) > 0
    waiter.release()
    assert _journal() == ["wait", "start", "wait", "end died", "start", "wait", "end released", "start", "end released"]
    assert lease_status("gpu").violations == ()


def test_a_fork_neither_keeps_nor_ends_the_lease(folder: Path) -> None:
    source = (
        "import os, time\n"
        "from kernelassay.devices import lease\n"
        "with lease('gpu'):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid(); time.sleep(60); os._exit(0)\n"
        "    if os.fork() == 0:\n"
        "        raise SystemExit  # leaves the block in the fork\n"
        "    os.wait()\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
        try:
            assert lease_status("gpu").held
            process.kill()
            process.wait(_WAIT_S)
            assert Path(f"/proc/{child}").exists()
            begun = time.monotonic()
            with lease("gpu"):
                assert time.monotonic() - begun < RECOVERY_S
        finally:
            os.kill(child, signal.SIGKILL)


# ── children, real and pretended ─────────────────────────────────────────────────────────────────


def test_a_child_has_what_its_parent_has(start: Callable[..., Process]) -> None:
    with lease("gpu") as held:
        proof = os.environ["KERNELASSAY_LEASE"]
        child = start(KERNELASSAY_LEASE=proof)
        assert child.hears("held")[:2] == [str(held.token), "True"]
        grandchild = start("sh", "-c", '"$@"; exit $?', "sh", KERNELASSAY_LEASE=proof)
        assert grandchild.hears("held")[1] == "True"
        child.release()
        grandchild.release()
        assert lease_status("gpu").held
    assert _journal() == ["wait", "start", "end released"]


def test_the_variable_alone_does_not_help(start: Callable[..., Process]) -> None:
    holder = start()
    token = holder.hears("held")[0]
    forger = start(KERNELASSAY_LEASE=f"gpu={token}")
    assert forger.hears("wait")[0] == "1"
    holder.release()
    assert forger.hears("held")[:2] == [str(int(token) + 1), "False"]
    forger.release()


def test_a_record_that_names_the_forgers_parent_does_not_help(start: Callable[..., Process], folder: Path) -> None:
    holder = start()
    token = holder.hears("held")[0]
    record = json.loads((folder / "gpu.lock").read_text())
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    (folder / "gpu.lock").write_text(json.dumps(record | {"pid": os.getpid(), "started": int(stat[19])}))
    assert lease_status("gpu").owner is not None
    forger = start(KERNELASSAY_LEASE=f"gpu={token}")
    assert forger.hears("wait")[0] == "1"  # the kernel names another process as the one that took the lock
    holder.release()
    forger.hears("held")
    forger.release()


def test_what_a_dead_parent_had_is_worth_nothing(start: Callable[..., Process]) -> None:
    with lease("gpu") as held:
        token = held.token
    late = start(KERNELASSAY_LEASE=f"gpu={token}")
    assert late.hears("held")[:2] == [str(token + 1), "False"]
    late.release()


# ── the folder, and other users ──────────────────────────────────────────────────────────────────


def test_two_users_share_a_device(start: Callable[..., Process], folder: Path) -> None:
    stranger = start(*as_user(STRANGER))
    stranger.hears("held")
    assert folder.stat().st_uid == STRANGER and folder.stat().st_mode & 0o7777 == 0o1777
    with pytest.raises(RuntimeError, match="enough"), lease("gpu", on_wait=_enough):
        pass
    stranger.kill()
    with lease("gpu") as held:
        assert not held.nested
        second = start(*as_user(STRANGER + 1))
        assert second.hears("wait")[:2] == ["1", str(os.getpid())]
    assert second.hears("held")[1] == "False"
    dead = start(*as_user(STRANGER))
    dead.hears("wait")
    third = start(*as_user(STRANGER + 2))
    assert third.hears("wait")[0] == "2"
    dead.kill()
    second.release()
    third.hears("held")  # past a ticket that it may not remove
    third.release()
    status = lease_status("gpu")
    assert status.violations == () and status.waiters == ()


def _enough(waiting: Waiting) -> None:
    raise RuntimeError("enough")


def _as_stranger(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*as_user(STRANGER), sys.executable, "-c", command],
        capture_output=True, text=True, check=False, timeout=_WAIT_S,
    )  # fmt: skip


_ASSAY = "import sys; from kernelassay.cli import main; sys.exit(main({}))"


def test_a_folder_that_cannot_be_written_says_so(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    done = _as_stranger(_ASSAY.format(["gpu", "--", "true"]))
    assert done.returncode == 5
    assert f"{folder}/cpu.queue: Permission denied" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("next: KERNELASSAY_LEASES=")
    folder.rmdir()
    folder.parent.chmod(0o755)
    done = _as_stranger(_ASSAY.format(["gpu", "--", "true"]))
    assert done.returncode == 5 and f"the leases' folder {folder}: Permission denied" in done.stderr


def test_no_link_is_followed(folder: Path, tmp_path: Path) -> None:
    folder.symlink_to(tmp_path)
    with pytest.raises(LeaseError, match="is a link or no folder"), lease("gpu"):
        pass
    folder.unlink()
    folder.mkdir(mode=0o1777)
    target = tmp_path / "precious"
    target.write_text("precious")
    for plant in (Path.symlink_to, Path.hardlink_to):
        for kind in ("lock", "journal", "queue"):
            (folder / f"gpu.{kind}").unlink(missing_ok=True)
            plant(folder / f"gpu.{kind}", target)
            with pytest.raises(LeaseError, match="next: rm"), lease("gpu"):
                pass
            (folder / f"gpu.{kind}").unlink()
    (folder / "gpu.lock").unlink()
    os.mkfifo(folder / "gpu.lock")
    with pytest.raises(LeaseError, match="no plain file"), lease("gpu"):
        pass
    assert target.read_text() == "precious"


def test_a_private_folder_stays_private(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    with lease("gpu"):
        pass
    assert folder.stat().st_mode & 0o7777 == 0o700


def test_a_line_that_cannot_be_written_leaves_no_ticket(folder: Path) -> None:
    with lease("gpu"):
        pass
    (folder / "gpu.journal").unlink()
    (folder / "gpu.journal").symlink_to("/dev/full")
    with pytest.raises(LeaseError, match="a link lies in the place"), lease("gpu"):
        pass
    (folder / "gpu.journal").unlink()
    assert lease_status("gpu").waiters == ()
    with lease("gpu") as held:
        assert held.waited_s < 1


def test_a_folder_in_which_anybody_may_remove_is_refused(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(LeaseError, match=r"not sticky.*next: chmod 1777"), lease("gpu"):
        pass


def test_all_users_choose_the_same_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELASSAY_LEASES")
    ask = "from kernelassay.devices._lease_files import folder_path; print(folder_path())"
    assert _as_stranger(ask).stdout == f"{folder_path()}\n"
    assert folder_path().parent in PLACES


# ── the journal ──────────────────────────────────────────────────────────────────────────────────


def _events(*words: str) -> list[LeaseEvent]:
    events = []
    for number, word in enumerate(words):
        event, token, *how = word.split()
        row = {"event": event, "device": "gpu", "token": int(token), "pid": 1, "uid": 0, "wall": 1.0}
        events.append(LeaseEvent.from_plain(row | {"monotonic": float(number), "how": how[0] if how else None}))
    return events


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["wait 1", "wait 2", "start 1", "start 2"], "2 (pid 1) began while 1 (pid 1) held"),
        (["wait 1", "wait 2", "start 2", "end 2 released", "start 1"], "1 began after 2, which came later"),
        (["wait 1", "start 1", "end 1 released", "end 1 released"], "1 ended, which did not hold"),
        (["wait 2", "wait 1"], "ticket 1 was drawn after a later one"),
        (["start 1"], "1 began without a ticket"),
    ],
)
def test_a_breach_is_seen(words: list[str], complaint: str) -> None:
    assert violations(_events(*words)) == [complaint]


def test_deaths_at_any_point_are_no_breach() -> None:
    gone = ["wait 1", "start 1", "wait 2", "wait 3", "end 1 died", "start 3", "end 3 released"]
    assert violations(_events(*gone, "wait 4", "end 3 died", "start 4", "end 4 limit")) == []


def test_a_line_that_a_kill_cut_short_swallows_no_other(folder: Path) -> None:
    with lease("gpu"):
        pass
    with (folder / "gpu.journal").open("a") as file:
        file.write('\n{"event":"wait","device":"g')
    with lease("gpu"):
        pass
    status = lease_status("gpu")
    assert status.unreadable == 1 and status.violations == ()
    assert len(status.events) == 6


# ── the crowd ────────────────────────────────────────────────────────────────────────────────────


def _crowd(folder: Path, processes: int, turns: int, kills: int, seed: int) -> None:
    script = Path(__file__).with_name("crowd.py")
    arguments = [str(number) for number in (processes, turns, kills, seed)]
    done = subprocess.run(
        [sys.executable, script, folder.parent, *arguments], capture_output=True, text=True, check=True, timeout=100
    )
    told = json.loads(done.stdout)
    assert told["codes"] == [0] * processes, done.stderr  # all survivors had all their turns, each time alone
    status = lease_status("GPU-0000")
    assert status.violations == () and not status.held and status.waiters == ()
    starts = [event for event in status.events if event.event == "start"]
    assert len(starts) >= processes * turns
    killed = {int(pid): at for pid, at in told["killed"].items()}
    assert len(killed) == kills
    died = [event for event in status.events if event.how == "died"]
    assert {event.pid for event in died} <= set(killed)
    recoveries = []
    for event in died:
        following = [s.monotonic for s in starts if s.monotonic > killed[event.pid] and s.token > event.token]
        recoveries += [min(following) - killed[event.pid]] if following else []
    assert recoveries and max(recoveries) < RECOVERY_S, recoveries


def test_a_small_crowd_with_a_killer(folder: Path) -> None:
    _crowd(folder, processes=8, turns=4, kills=12, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_thirty_two_processes_with_a_killer(folder: Path, seed: int) -> None:
    _crowd(folder, processes=32, turns=6, kills=60, seed=seed)
