"""One live worker, seen from the judge: start it, call it, read raw results, account for its end."""

from kernelassay.session._session import CallResult, Job, OutputFact, Quiet, Rig, Session
from kernelassay.session._slab import Slab, same_bytes, torch_dtype
from kernelassay.session._trouble import Trouble

__all__ = [
    "CallResult",
    "Job",
    "OutputFact",
    "Quiet",
    "Rig",
    "Session",
    "Slab",
    "Trouble",
    "same_bytes",
    "torch_dtype",
]
