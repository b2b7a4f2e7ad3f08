"""The judge: intake, build, check, decide, record. Everything that decides happens in this process."""

from kernelassay.judge._intake import UsageError
from kernelassay.judge._pipeline import grade
from kernelassay.judge._ready import build_submission
from kernelassay.judge._reproduce import Reproduction, reproduce
from kernelassay.judge._request import Graded, GradeRequest, Progress, default_home
from kernelassay.judge._store import load_grade
from kernelassay.judge._versus import Versus, VersusRequest, versus
from kernelassay.judge.verdict import exit_code

__all__ = [
    "GradeRequest",
    "Graded",
    "Progress",
    "Reproduction",
    "UsageError",
    "Versus",
    "VersusRequest",
    "build_submission",
    "default_home",
    "exit_code",
    "grade",
    "load_grade",
    "reproduce",
    "versus",
]
