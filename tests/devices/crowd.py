"""A crowd of processes that want one device, and a killer among them. Run by path; prints one JSON line.

    python crowd.py FOLDER PROCESSES TURNS KILLS SEED

Each process wants the device TURNS times, and on until the last kill is done. KILLS times some process, the holder
every other time, gets SIGKILL and a fresh one takes its place. A lock of another kind than the lease's own witnesses
exclusion beside the journal.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from kernelassay.devices import lease
from kernelassay.devices._lease_files import LeaseFiles

DEVICE = "GPU-0000"
FAILED = 3
ENOUGH = "enough"
LONGEST_S = 0.004


def want(turns: int, seed: int, witness: Path) -> int:
    """One process of the crowd; FAILED when it was not alone."""
    rng = random.Random(seed)
    enough, turn = witness.with_name(ENOUGH), 0
    while turn < turns or not enough.exists():
        turn += 1
        with lease(DEVICE), witness.open("r+") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return FAILED
            time.sleep(rng.random() * LONGEST_S)
        time.sleep(rng.random() * LONGEST_S)
    return 0


def spawn(turns: int, seed: int, witness: Path) -> int:
    """A forked process that wants the device."""
    pid = os.fork()
    if pid == 0:
        code = FAILED + 1
        try:
            code = want(turns, seed, witness)
        finally:
            os._exit(code)
    return pid


def _holder(candidates: list[int]) -> int | None:
    """The one that has the device right now, stopped; None when it was too quick."""
    with LeaseFiles(DEVICE) as files:
        owner = files.owner()
        if owner is None or owner.pid not in candidates:
            return None
        os.kill(owner.pid, signal.SIGSTOP)
        again = files.owner()
        if again is not None and again.token == owner.token and files.locked():
            return owner.pid
        os.kill(owner.pid, signal.SIGCONT)
        return None


def main(folder: Path, processes: int, turns: int, kills: int, seed: int) -> None:
    """Let them compete until all are done."""
    rng = random.Random(seed)
    witness = folder / "witness"
    witness.touch()
    alive = {spawn(turns, rng.randrange(1 << 30), witness) for _ in range(processes)}
    killed: dict[int, float] = {}
    codes = []
    while alive:
        time.sleep(rng.random() * 0.02)
        candidates = sorted(alive - set(killed))
        victim = _holder(candidates) if kills % 2 else rng.choice(candidates) if candidates else None
        if kills and victim is not None:
            kills -= 1
            killed[victim] = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            alive.add(spawn(turns, rng.randrange(1 << 30), witness))
        if not kills:
            witness.with_name(ENOUGH).touch()
        while alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            alive.remove(pid)
            if pid not in killed:
                codes.append(os.waitstatus_to_exitcode(status))
    print(json.dumps({"codes": codes, "killed": killed}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
