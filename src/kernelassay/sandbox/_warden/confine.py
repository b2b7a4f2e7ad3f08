"""What a process does to itself before it becomes the command: rlimits, uid, Landlock, seccomp, by raw system calls.

Runs in a forked child of the warden; every failure is an OSError that names the step.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct

_libc = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
CLONE_NEWNS = 0x00020000
MNT_DETACH = 2
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 1, 2, 4, 32, 4096, 16384, 1 << 19

# The three Landlock calls have the same numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
_FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | (1 << 14) | (1 << 15)
_RIGHTS_OF_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_NET_RIGHTS = 0b11
"""TCP bind and connect, from ABI 4."""
_SCOPES = 0b11
"""Abstract Unix sockets and signals, from ABI 6."""


def _checked(result: int, step: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{step}: {os.strerror(number)}")
    return result


def prctl(option: int, value: int = 0, third: int = 0) -> None:
    """Change one property of this process.

    Raises:
        OSError: with the option's number.
    """
    zero = ctypes.c_ulong(0)
    _checked(_libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(third), zero, zero), f"prctl {option}")


def private_mounts() -> None:
    """Enter a mount namespace of our own; unmounts outside still reach it, nothing of it gets out.

    Raises:
        OSError: not permitted here.
    """
    _checked(_libc.unshare(CLONE_NEWNS), "unshare mounts")
    _checked(_libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_SLAVE), None), "make mounts private")


def bind_read_only(source: str, target: str) -> None:
    """Show `source` at the existing `target`, read-only, set-user-id ignored.

    Raises:
        OSError: naming both.
    """
    step = f"bind {source} to {target}"
    paths = os.fsencode(source), os.fsencode(target)
    _checked(_libc.mount(*paths, None, ctypes.c_ulong(MS_BIND), None), step)
    kept = os.statvfs(source).f_flag & (os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME)  # same bits as MS_*
    flags = ctypes.c_ulong(MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | kept)
    _checked(_libc.mount(None, paths[1], None, flags, None), f"{step} read-only")


def unbind(target: str) -> None:
    """Take a bind away again, so that what removes `target`'s folder can neither fail on it nor enter it."""
    _libc.umount2(os.fsencode(target), MNT_DETACH)


def set_limits(limits: dict[int, int]) -> None:
    """Soft and hard rlimits, never above the hard limit that is already there."""
    for which, value in limits.items():
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))


def drop(uid: int, gid: int) -> None:
    """Become an unprivileged uid for good: no group, no capability left.

    Raises:
        OSError: not permitted, or something is left.
    """
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)  # clears the permitted, effective and ambient sets
    with open("/proc/self/status") as file:
        left = {line.split(":")[0]: int(line.split()[1], 16) for line in file if line.startswith("Cap")}
    if left["CapPrm"] or left["CapEff"] or left["CapAmb"]:
        raise OSError(f"capabilities are left after the change to uid {uid}: {left}")


def forget_capabilities() -> None:
    """For a root that may not change its uid: nothing that is executed from here on gets a capability."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # beyond the last one, or none was there to begin with


def no_new_privileges() -> None:
    """Set-user-id programs give nothing any more."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent(parent: int) -> None:
    """SIGKILL when the forking thread of `parent` ends. Call after the uid changed (a change clears it).

    Raises:
        OSError: the parent is gone already.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise OSError("the warden ended while the jail was being started")


def landlock_abi() -> int:
    """Version of Landlock; 0 when the kernel has none or it is switched off."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))))


def landlock(rules: list[tuple[str, int]]) -> None:
    """Allow what `rules` lists (path, rights), deny every other file, TCP, foreign signals and abstract sockets.

    Rights that the kernel does not know are left out of the handled set; a path that does not exist is skipped.

    Raises:
        OSError: Landlock is missing or refuses.
    """
    abi = landlock_abi()
    if not abi:
        raise OSError("Landlock is not enabled in this kernel")
    handled = _RIGHTS_OF_ABI[min(abi, max(_RIGHTS_OF_ABI))]
    attributes = struct.pack("=QQQ", handled, _NET_RIGHTS if abi >= 4 else 0, _SCOPES if abi >= 6 else 0)
    attributes = attributes[: 8 if abi < 4 else 16 if abi < 6 else 24]
    size = ctypes.c_size_t(len(attributes))
    ruleset = _checked(_libc.syscall(_CREATE_RULESET, attributes, size, ctypes.c_uint32(0)), "landlock ruleset")
    for path, rights in rules:
        _allow(ruleset, path, rights & handled)
    _checked(_libc.syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0)), "landlock restrict")
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return
    try:
        if not os.path.isdir(path):
            rights &= _FILE_RIGHTS
        rule = struct.pack("=Qi", rights, descriptor)
        _checked(
            _libc.syscall(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint32(0)),
            f"landlock rule for {path}",
        )
    finally:
        os.close(descriptor)


def seccomp(program: bytes) -> None:
    """Install a classic BPF filter (`struct sock_filter[]`) for good.

    Raises:
        OSError: the kernel refuses it.
    """

    class Filter(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))

    argument = Filter(len(program) // 8, program)
    zero = ctypes.c_ulong(0)
    mode = ctypes.c_ulong(2)
    _checked(_libc.prctl(PR_SET_SECCOMP, mode, ctypes.byref(argument), zero, zero), "seccomp filter")
