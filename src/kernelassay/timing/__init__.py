"""Times that hold: the plan, the reduction of raw samples, floors and the physics gate, the comparison of two.

Everything but the protocol is a pure function of data; only the protocol reads a clock and talks to a worker.
"""

from kernelassay.timing._awake import awake
from kernelassay.timing._claims import BLATANT_SHARE, FORGED_SHARE, claimed_share
from kernelassay.timing._compare import (
    Context,
    Pair,
    Relation,
    ShapeComparison,
    VersusResult,
    abba,
    compare,
)
from kernelassay.timing._displace import Displacer
from kernelassay.timing._physics import Gate, Peaks, Work, cpu_peaks, floor, gate, work
from kernelassay.timing._plan import MIN_ROUNDS, Mode, next_round, plan_shape, repeat_plan
from kernelassay.timing._protocol import ProcessRun, compare_calls, run_nulls, run_process, set_bytes
from kernelassay.timing._reduce import Decision, Reduction, geomean_score, reduce_grade, reduce_shape
from kernelassay.timing._samples import ProcessSamples, ShapeSamples
from kernelassay.timing._statistics import processes_needed

__all__ = [
    "BLATANT_SHARE",
    "FORGED_SHARE",
    "MIN_ROUNDS",
    "Context",
    "Decision",
    "Displacer",
    "Gate",
    "Mode",
    "Pair",
    "Peaks",
    "ProcessRun",
    "ProcessSamples",
    "Reduction",
    "Relation",
    "ShapeComparison",
    "ShapeSamples",
    "VersusResult",
    "Work",
    "abba",
    "awake",
    "claimed_share",
    "compare",
    "compare_calls",
    "cpu_peaks",
    "floor",
    "gate",
    "geomean_score",
    "next_round",
    "plan_shape",
    "processes_needed",
    "reduce_grade",
    "reduce_shape",
    "repeat_plan",
    "run_nulls",
    "run_process",
    "set_bytes",
    "work",
]
