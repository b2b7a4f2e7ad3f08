"""Choosing a level that works, and starting jails at it. A level counts as working only when a jail ran in it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

from kernelassay.records import Isolation, Limits
from kernelassay.sandbox import _groups, _pieces, _stage, _uids, _warden
from kernelassay.sandbox._model import Jail, Level, LevelReport, SandboxError, Swept
from kernelassay.sandbox._plan import specification
from kernelassay.sandbox._process import JailedProcess
from kernelassay.sandbox._warden import confine, frames
from kernelassay.sandbox._warden.reap import members, remove_tree, settle

_PROBE_TIMEOUT_S = 20.0
_USERNS_SYSCTLS = {
    "/proc/sys/kernel/unprivileged_userns_clone": ("0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    "/proc/sys/user/max_user_namespaces": ("0", "sysctl -w user.max_user_namespaces=15000"),
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (or an AppArmor profile with `userns,` for bwrap)",
    ),
}
"""File, the value that forbids user namespaces, and the command that allows them (Debian, any, Ubuntu 24.04)."""


class Sandbox:
    """Starts jails at one level of confinement."""

    isolation: Isolation
    """How whatever is started here is confined, as a record."""

    def __init__(self, level: Level | None = None) -> None:
        """`level` None takes the strongest that works.

        Raises:
            SandboxError: the level, or every level, does not work here.
        """
        reasons: list[str] = []
        for candidate in Level if level is None else (level,):
            report = _report(candidate)
            if report.works:
                self.level = candidate
                self.isolation = _isolation(candidate, tuple(reasons))
                return
            reasons += [f"{candidate}: {reason}" for reason in report.reasons]
        how = "; ".join(_report(level or Level.NAMESPACES).how_to)
        raise SandboxError(
            f"sandbox: {'no level' if level is None else f'level {level}'} works here: {'; '.join(reasons)}. "
            f"{how + '; then' if how else 'To see why,'} run `assay doctor`"
        )

    def start(self, jail: Jail) -> JailedProcess:
        """Start the command and return when it runs in its jail.

        Raises:
            SandboxError: the machine cannot do it; says what to change.
            ValueError: the jail's description contradicts itself.
        """
        return _start(jail, self.level)


def available() -> tuple[LevelReport, ...]:
    """Every level, strongest first, each really tried (once per process)."""
    return tuple(_report(level) for level in Level)


def end_with_parent() -> None:
    """Let this process be killed when the one that started it ends, however that ends."""
    confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL)


def harden_judge() -> None:
    """Make this process unreadable for others of its uid: no ptrace, no /proc/PID/mem, no core file.

    Jails can still be started: exec makes each child readable for itself again.
    """
    confine.prctl(confine.PR_SET_DUMPABLE, 0)


def sweep() -> Swept:
    """Remove what judges left that were killed together with their wardens. Live ones are never touched."""
    stages, groups, killed, failed = [], [], [], []
    for dead in _stage.dead():
        lease = _uids.abandoned(dead.uid) if dead.uid is not None and os.geteuid() == 0 else None
        uid = lease.uid if lease else None
        killed += sorted(members(None, dead.cgroups, uid))
        failed += [f"process {pid}" for pid in settle(None, dead.cgroups, uid, lambda: None)]
        there = [folder for folder in dead.cgroups.folders if os.path.isdir(folder)]
        left = dead.cgroups.remove()
        groups += [folder for folder in there if folder not in left]
        failed += left + remove_tree(str(dead.folder))
        stages.append(str(dead.folder))
        os.close(dead.lock)
        if lease:
            lease.release()
    return Swept(tuple(stages), tuple(groups), tuple(killed), tuple(failed))


def _start(jail: Jail, level: Level) -> JailedProcess:
    with ExitStack() as undo:
        lease = _uids.lease() if _may_drop() else None
        uid = lease.uid if lease else None
        if lease:
            undo.callback(lease.release)
        stage = _stage.create(uid)
        undo.callback(stage.discard)
        cgroups = _groups.plan(stage.name, jail.limits)
        stage.record(cgroups, uid)
        spec = specification(jail, level, stage, uid, _may_mount(), cgroups)
        ours, theirs = socket.socketpair()
        undo.callback(ours.close)
        with theirs:
            warden = _warden_process(theirs, stage.lock, lease.lock if lease else None, jail.pass_fds)
        process = JailedProcess(warden, ours, stage, lease, cgroups)
        undo.pop_all()  # from here on the process cleans up after itself
    with suppress(frames.Closed):
        frames.send(ours, spec)
    process._await_start()
    return process


def _warden_process(
    channel: socket.socket, stage_lock: int, uid_lock: int | None, pass_fds: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    locks = [stage_lock, *([uid_lock] if uid_lock is not None else [])]  # held by the warden until it has cleaned up
    return subprocess.Popen(
        [
            str(_pieces.python()),
            "-I",
            "-S",
            str(Path(_warden.__file__).with_name("__main__.py")),
            str(channel.fileno()),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(channel.fileno(), *locks, *pass_fds),
        start_new_session=True,
        cwd="/",
        env={"LC_ALL": "C.UTF-8"},
    )


@cache
def _may_drop() -> bool:
    """Whether this process can give a jail a uid of its own."""
    return os.geteuid() == 0 and _capable(6) and _capable(7) and _uids.possible()


@cache
def _may_mount() -> bool:
    return os.geteuid() == 0 and _capable(21)


def _capable(number: int) -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def _isolation(level: Level, reasons: tuple[str, ...]) -> Isolation:
    by_kernel = _groups.plan("any", Limits()).limits_memory
    return Isolation(
        level=level.value,
        reasons=reasons,
        memory="cgroup" if by_kernel else "watchdog",
        uid_dropped=_may_drop(),
    )


@cache
def _report(level: Level) -> LevelReport:
    """Try one level with an interpreter that does nothing."""
    probe = Jail(
        ("{python}", "-I", "-S", "-c", "pass"), {}, {}, Limits(memory_bytes=1 << 28), runtime=False, tools=False
    )
    try:
        with _start(probe, level) as process:
            ending = process.wait(_PROBE_TIMEOUT_S)
            text = process.log().decode(errors="replace").strip()
    except SandboxError as error:
        return LevelReport(level, False, (str(error),), _how_to(level))
    if ending is None or ending.exit_code != 0:
        return LevelReport(
            level, False, (f"the interpreter did not run in it ({ending}): {text[-500:]}",), _how_to(level)
        )
    return LevelReport(level, True, _weaknesses(level))


def _weaknesses(level: Level) -> tuple[str, ...]:
    abi = confine.landlock_abi()
    if level is Level.LANDLOCK and not _may_drop():
        weak = ["modes and times of your own files are not protected (started as root they are)"]
        if abi < 6:
            weak.append(f"Landlock ABI {abi} lets a submission signal your other processes (6 forbids it)")
        return tuple(weak)
    if level is Level.NONE:
        return ("nothing is confined but memory, processes, output and files",)
    return ()


def _how_to(level: Level) -> tuple[str, ...]:
    if level is Level.NAMESPACES:
        return tuple(how for file, (bad, how) in _USERNS_SYSCTLS.items() if _content(file) == bad) or (
            "allow user namespaces for this process (in a container: --security-opt seccomp=unconfined "
            "--security-opt apparmor=unconfined --security-opt systempaths=unconfined)",
        )
    if level is Level.LANDLOCK:
        return ("boot a kernel ≥ 5.13 with `landlock` in its lsm= list", "apt install libseccomp2")
    return ()


def _content(file: str) -> str:
    try:
        return Path(file).read_text().strip()
    except OSError:
        return ""
