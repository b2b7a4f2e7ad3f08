"""Start, limit and reap one untrusted process.

A jail is described as data (`Jail`), started by a `Sandbox` at the strongest level that works, and ended by
`JailedProcess.close`, after which nothing of it exists any more. A judge that is killed leaves nothing either: a
trusted warden process between it and the jail cleans up, and `sweep` removes what even the warden's death leaves.
"""

from kernelassay.sandbox._model import Ending, Jail, Level, LevelReport, SandboxError, ScratchError, Swept
from kernelassay.sandbox._pieces import gpu_environment
from kernelassay.sandbox._process import JailedProcess
from kernelassay.sandbox._sandbox import Sandbox, available, end_with_parent, harden_judge, sweep

__all__ = [
    "Ending",
    "Jail",
    "JailedProcess",
    "Level",
    "LevelReport",
    "Sandbox",
    "SandboxError",
    "ScratchError",
    "Swept",
    "available",
    "end_with_parent",
    "gpu_environment",
    "harden_judge",
    "sweep",
]
