"""One live worker, seen from the judge: start it, call it, read raw results, account for its end."""

from kernelassay.session._check import Checked, Fault, check_case, judge_call
from kernelassay.session._peek import PeekError, read_memory
from kernelassay.session._rig import Batch, CallResult, OutputFact, Rig, Round
from kernelassay.session._session import Job, Quiet, Session
from kernelassay.session._slab import DeviceMemoryError, Slab, same_bytes, torch_dtype
from kernelassay.session._trouble import Trouble, one_line, readable

__all__ = [
    "Batch",
    "CallResult",
    "Checked",
    "DeviceMemoryError",
    "Fault",
    "Job",
    "OutputFact",
    "PeekError",
    "Quiet",
    "Rig",
    "Round",
    "Session",
    "Slab",
    "Trouble",
    "check_case",
    "judge_call",
    "one_line",
    "read_memory",
    "readable",
    "same_bytes",
    "torch_dtype",
]
