"""Times that hold: the plan, the reduction of raw samples, floors and the physics gate, the comparison of two.

Pure functions of data: no clock is read here and nothing is executed. The protocol that produces the samples lives
with the judge.
"""

from kernelassay.timing._compare import (
    Context,
    Pair,
    Relation,
    ShapeComparison,
    VersusResult,
    abba,
    compare,
)
from kernelassay.timing._physics import Gate, Peaks, Work, cpu_peaks, floor, gate, work
from kernelassay.timing._plan import MIN_ROUNDS, next_round, plan_shape, repeat_plan
from kernelassay.timing._reduce import Decision, Reduction, geomean_score, reduce_grade, reduce_shape
from kernelassay.timing._samples import ProcessSamples, ShapeSamples
from kernelassay.timing._statistics import processes_needed

__all__ = [
    "MIN_ROUNDS",
    "Context",
    "Decision",
    "Gate",
    "Pair",
    "Peaks",
    "ProcessSamples",
    "Reduction",
    "Relation",
    "ShapeComparison",
    "ShapeSamples",
    "VersusResult",
    "Work",
    "abba",
    "compare",
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
    "work",
]
