"""Snapshots of a GPU around half a second of work of this process, and what `quiet` says to them; prints JSON.

python3 bench/device/telemetry.py NAME
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict

WORK_S = 0.5


def main() -> int:
    """Warm the device up, then read it before, during and after work."""
    from kernelassay.devices import detect, quiet, telemetry

    state = detect(sys.argv[1]).gpu
    if state is None:
        print(f"{sys.argv[1]} is no GPU", file=sys.stderr)
        return 2
    os.environ["CUDA_VISIBLE_DEVICES"] = state.uuid
    import torch

    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def work() -> None:
        end = time.monotonic() + WORK_S
        while time.monotonic() < end:
            for _ in range(20):
                torch.mm(matrix, matrix)
            torch.cuda.synchronize()

    work()
    for _ in range(20):  # still running when the device is read
        torch.mm(matrix, matrix)
    before = telemetry(state.uuid)
    work()
    for _ in range(20):
        torch.mm(matrix, matrix)
    after = telemetry(state.uuid)
    torch.cuda.synchronize()
    found = quiet(before, after, {os.getpid()})
    shots = {"before": before.model_dump(mode="json"), "after": after.model_dump(mode="json")}
    seen = any(process.pid == os.getpid() for process in after.processes or ())
    print(json.dumps({"pid": os.getpid(), "sees_itself": seen, **shots, "quiet": asdict(found)}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
