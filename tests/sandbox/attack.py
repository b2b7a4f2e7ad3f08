"""What a hostile submission tries, one function per attempt. Standard library only: it runs inside the jail.

`attack.py passive TARGET_JSON` makes every attempt that ends by itself and prints {name: what was gained, or null}.
"""

# ruff: noqa: PTH100, PTH102, PTH106, PTH108, PTH118, PTH120, PTH123, PTH208, SIM115

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time
from typing import Any

Target = dict[str, Any]
libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def memory_by_proc(target: Target) -> bool:
    with open(f"/proc/{target['pid']}/mem", "rb", buffering=0) as file:
        file.seek(target["address"])
        return bool(file.read(len(target["secret"])).decode() == target["secret"])


def memory_by_system_call(target: Target) -> bool:
    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

    size = len(target["secret"])
    buffer = ctypes.create_string_buffer(size)
    here, there = Vector(ctypes.addressof(buffer), size), Vector(target["address"], size)
    _checked(libc.process_vm_readv(target["pid"], ctypes.byref(here), 1, ctypes.byref(there), 1, 0))
    return bool(buffer.raw.decode() == target["secret"])


def trace(target: Target) -> bool:
    seize, detach = 0x4206, 17
    _checked(libc.ptrace(seize, target["pid"], None, None))
    os.kill(target["pid"], signal.SIGSTOP)
    os.waitpid(target["pid"], 0x40000000)
    _checked(libc.ptrace(detach, target["pid"], None, None))
    os.kill(target["pid"], signal.SIGCONT)
    return True


def environment(target: Target) -> bool:
    with open(f"/proc/{target['pid']}/environ", "rb") as file:
        return b"ASSAY_TEST_SECRET" in file.read()


def descriptor(target: Target) -> bool:
    with open(f"/proc/{target['pid']}/fd/{target['fd']}", "rb") as file:
        return file.read() == b"another grade"


def private_file(target: Target) -> bool:
    with open(target["private"]) as file:
        return file.read() == "another grade"


def public_file(target: Target) -> bool:
    with open(target["public"]) as file:
        return file.read() == "another submission"


def home(target: Target) -> bool:
    return bool(os.listdir(target["home"]))


def tcp(target: Target) -> bool:
    return bool(socket.create_connection(("127.0.0.1", target["tcp"]), timeout=2))


def udp(target: Target) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        return channel.sendto(b"x", ("127.0.0.1", target["udp"])) == 1


def abstract_socket(target: Target) -> bool:
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect("\0" + target["abstract"])
        return True


def named_socket(target: Target) -> bool:
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(target["named"])
        return True


def write_outside(target: Target) -> bool:
    with open(f"{target['open']}/planted-{os.getpid()}", "x"):
        return True


def write_system(target: Target) -> bool:
    for folder in ("/", "/usr", "/usr/lib", "/etc", "/dev", "/home", "/var/tmp", "/run", "/tmp", "/dev/shm"):
        if os.path.realpath(folder) == os.path.realpath(os.environ.get("TMPDIR", "")) or folder == target.get("own"):
            continue
        try:
            with open(f"{folder}/assay-planted", "x"):
                os.unlink(f"{folder}/assay-planted")
                return True
        except OSError:
            continue
    return False


def write_room(target: Target) -> bool:
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "planted.txt"), "x") as file:
        os.unlink(file.name)
        return True


def signal_judge(target: Target) -> bool:
    os.kill(target["pid"], signal.SIGCONT)
    return True


def signal_warden(target: Target) -> bool:
    os.kill(target["warden"], signal.SIGCONT)
    return True


def new_namespace(target: Target) -> bool:
    _checked(libc.unshare(0x10000000))
    return True


def mount(target: Target) -> bool:
    """On a folder of our own, so that a success harms nobody."""
    os.mkdir("mounted")
    try:
        _checked(libc.mount(b"none", b"mounted", b"tmpfs", 0, None))
        _checked(libc.umount2(b"mounted", 2))
        return True
    finally:
        os.rmdir("mounted")


def capability(target: Target) -> bool:
    with open("/proc/self/status") as file:
        lines = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    return any(int(lines[name], 16) for name in ("CapPrm", "CapEff", "CapAmb")) or lines["NoNewPrivs"] != "1"


def descriptors(target: Target) -> bool:
    own = {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2}
    return bool([number for number in own if _open(number)])


def _open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def shared_memory(target: Target) -> bool:
    private, create = 0, 0o1000
    number = _checked(libc.shmget(private, 4096, create | 0o600))
    libc.shmctl(number, 0, None)
    return True


def other_processes(target: Target) -> bool:
    return len([name for name in os.listdir("/proc") if name.isdigit()]) > 3


ATTEMPTS = (
    memory_by_proc,
    memory_by_system_call,
    trace,
    environment,
    descriptor,
    private_file,
    public_file,
    home,
    tcp,
    udp,
    abstract_socket,
    named_socket,
    write_outside,
    write_system,
    write_room,
    signal_judge,
    signal_warden,
    capability,
    descriptors,
    mount,
    new_namespace,
    shared_memory,
    other_processes,
)


def passive(target: Target) -> None:
    gained = {}
    for attempt in ATTEMPTS:
        if attempt is signal_warden and "warden" not in target:
            continue
        try:
            gained[attempt.__name__] = bool(attempt(target))
        except (OSError, KeyError) as error:
            gained[attempt.__name__] = False
            print(f"# {attempt.__name__}: {error}")
    print(json.dumps(gained))


def _stubborn() -> None:
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            continue


def daemon(token: str) -> None:
    """Leave a process behind: two forks, a session of its own, every signal ignored."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            _stubborn()
            os.write(writing, b"x")
            os.execv("/proc/self/exe", ["/proc/self/exe", "-I", "-S", "-c", "import time; time.sleep(600)", token])
        os._exit(0)
    os.read(reading, 1)
    print("left", flush=True)


def daemon_and_stay(token: str) -> None:
    daemon(token)
    time.sleep(600)


def bomb(token: str) -> None:
    """A fork bomb whose every process leaves its parent, takes a session of its own and ignores signals."""
    _stubborn()
    while True:
        try:
            if os.fork() == 0:
                os.setsid()
        except OSError:
            time.sleep(0.001)


def hoard(token: str) -> None:
    """Touch 100 GB."""
    held = []
    for _ in range(100 << 30 >> 26):
        held.append(bytearray(b"\1") * (1 << 26))


def hoard_unmapped(token: str) -> None:
    """Memory that no process maps: an anonymous file that is only written to."""
    block = bytes(1 << 20)
    files = []
    while True:
        files.append(os.memfd_create("hoard"))
        for _ in range(16):
            os.write(files[-1], block)


def shout(token: str) -> None:
    block = b"x" * 65536
    while True:
        os.write(1, block)


def litter(token: str) -> None:
    """Many small files, until the disk is full."""
    for number in range(1 << 40):
        with open(f"file-{number}", "wb") as file:
            file.write(bytes(1 << 20))


def litter_hidden(token: str) -> None:
    """The same without a name."""
    held = []
    for number in range(1 << 40):
        held.append(open(f"file-{number}", "wb"))
        os.unlink(f"file-{number}")
        held[-1].write(bytes(1 << 20))
        held[-1].flush()


def hang(token: str) -> None:
    _stubborn()
    print("up", flush=True)
    while True:
        time.sleep(1)


def count(token: str) -> None:
    """Show that it runs by a counter in scratch, from a child of its own too."""
    os.fork()
    name = f"count-{os.getppid() == 0 or os.fork() == 0}"
    number = 0
    while True:
        number += 1
        with open(f"{name}-{os.getpid()}", "w") as file:
            file.write(str(number))
        time.sleep(0.002)


if __name__ == "__main__":
    if sys.argv[1] == "passive":
        passive(json.loads(sys.argv[2]))
    else:
        globals()[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else "")
