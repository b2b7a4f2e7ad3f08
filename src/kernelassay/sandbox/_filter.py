"""The seccomp filters, made with libseccomp in the judge and handed to the kernel as finished programs.

In a namespace jail the filter only shortens the list of kernel interfaces; at level landlock it also stands in for
the missing network, IPC and PID namespaces.
"""

from __future__ import annotations

import errno
import tempfile
from functools import cache

from kernelassay.sandbox._model import SandboxError

_NEVER = (
    *("bpf", "perf_event_open", "userfaultfd", "keyctl", "add_key", "request_key", "kexec_load", "kexec_file_load"),
    *("io_uring_setup", "io_uring_enter", "io_uring_register", "init_module", "finit_module", "delete_module"),
    *("mount", "umount2", "pivot_root", "move_mount", "open_tree", "fsopen", "fsmount", "fsconfig", "fspick"),
    *("mount_setattr", "swapon", "swapoff", "reboot", "acct", "quotactl", "setns", "unshare", "open_by_handle_at"),
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd"),
)
"""What no kernel needs: other processes' memory, mounts, new namespaces, and the interfaces that bugs live in."""
_HOST_IPC = (
    *("socket", "connect", "bind", "shmget", "shmat", "msgget", "semget", "mq_open"),
    *("setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr"),
)
"""Ways to the host that Landlock does not close (sockets by path, System V memory that outlives its maker)."""
_NEW_NAMESPACES = 0x7E020080
"""CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_SOCK_TYPE_MASK, _SOCK_DGRAM = 0xF, 2


@cache
def program(host_ipc: bool) -> bytes:
    """A classic BPF program that answers EPERM to what a submission has no business with.

    `host_ipc`: also refuse the ways to the host that a namespace jail does not have.

    Raises:
        SandboxError: libseccomp is not installed.
    """
    try:
        import pyseccomp as seccomp  # loads libseccomp.so.2: an error without it
    except (ImportError, OSError, RuntimeError) as error:
        raise SandboxError(
            f"sandbox: libseccomp cannot be used ({error}); install libseccomp2, then run `assay doctor`"
        ) from error
    refuse = seccomp.ERRNO(errno.EPERM)
    made = seccomp.SyscallFilter(seccomp.ALLOW)
    for name in (*_NEVER, *(_HOST_IPC if host_ipc else ())):
        if _known(seccomp, name):
            made.add_rule(refuse, name)
    for bit in (1 << position for position in range(32) if _NEW_NAMESPACES >> position & 1):
        made.add_rule(refuse, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, bit, bit))
    made.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")  # its flags lie in memory; the C library falls back to clone
    if host_ipc:  # a datagram socket of a pair could still be pointed at a path of the host
        made.add_rule(refuse, "socketpair", seccomp.Arg(1, seccomp.MASKED_EQ, _SOCK_TYPE_MASK, _SOCK_DGRAM))
    with tempfile.TemporaryFile() as file:
        made.export_bpf(file)
        file.seek(0)
        return file.read()


def _known(seccomp: object, name: str) -> bool:
    try:
        return int(seccomp.resolve_syscall(seccomp.Arch.NATIVE, name)) != -1  # type: ignore[attr-defined]
    except (ValueError, OSError, RuntimeError):
        return False
