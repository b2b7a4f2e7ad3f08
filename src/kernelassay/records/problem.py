"""A problem: one operation with everything the judge needs to know about it, as data."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from kernelassay.records._base import Record
from kernelassay.records.formula import Formula, evaluate


class Role(StrEnum):
    """What a tensor is to the operation; it decides which caches are honest."""

    INPUT = "input"
    """Must be read again on each call."""
    WEIGHT = "weight"
    """May be repacked, but a change made through the documented route must be seen."""
    STATE = "state"
    """Mutated in place by contract."""
    OUTPUT = "output"
    """Returned; fresh on each call."""


class Entry(StrEnum):
    """How the operation is driven."""

    FORWARD = "forward"
    """Stateless: inputs in, outputs out."""
    STEP = "step"
    """State in, state out."""
    ROLLOUT = "rollout"
    """A loop of steps inside one call."""


class Edition(StrEnum):
    """How a problem's files stand to the frozen content of its version."""

    FROZEN = "frozen"
    """The very content that the version was frozen with."""
    EDITED = "edited"
    """Another one: a grade of it compares with no other grade of that version."""
    UNFROZEN = "unfrozen"
    """The version was never frozen."""


class Tier(StrEnum):
    """Which shapes a grade runs."""

    FULL = "full"
    """Timed on a GPU."""
    FULL_PLUS = "full+"
    """Checked on a GPU, not timed."""
    SMALL = "small"
    """For the CPU, CI and deck lint."""


class Comparator(StrEnum):
    """The rule by which outputs are compared."""

    NORMALISED = "normalised"
    """Three ratios relative to the result's own scale."""
    SELECTION = "selection"
    """Exact values, distinct indices, ties free."""
    ALONG_TRACE = "along_trace"
    """The oracle follows the submission's own discrete decisions and judges each by its margin."""


class TensorSpec(Record):
    """One named tensor of the operation."""

    name: str
    role: Role
    dtype: str
    """Torch's name without the prefix: `float32`, `int64`, `bfloat16`, `float8_e4m3fn`, …"""
    dims: tuple[Formula, ...]
    """One formula over the shape keys per axis."""
    rows: int | None = Field(default=None, ge=0)
    """Outputs under `normalised`: how many leading axes make a row; None for no row groups."""


class Shape(Record):
    """One set of values for the constructor's arguments."""

    key: str
    """Unique in its problem: `small-1x4096x64`."""
    tier: Tier
    values: dict[str, int]
    """Constructor arguments in order."""
    launch_bound: bool = False
    """The floor lies below 10 µs on the reference device: read ms first, fraction second."""


class Tolerance(Record):
    """The three ratios of comparator `normalised` (`rms`, `group`, `element`), each relative to the result."""

    rms: float = Field(gt=0)
    group: float = Field(gt=0)
    element: float = Field(gt=0)


class CaseSpec(Record):
    """One way to make or edit the inputs."""

    name: str
    graded: bool = True
    """False: measured and reported, never decisive."""
    note: str = ""


class MutantSpec(Record):
    """The reference with one semantic part dropped or changed; every one must be rejected."""

    name: str
    case: str | None = None
    """The case that lint tries first."""
    expect: float | None = None
    """Largest usage, or number of rejecting cases, that the specification gives; None where it gives none."""
    note: str = ""


class Cost(Record):
    """The true work of one call, each needed byte once."""

    flops: Formula
    bytes: Formula
    precision: str
    """The peak that `flops` is measured against: `bf16`, `fp16`, `fp8`, `fp32`, `none` where nothing counts."""


class Rules(Record):
    """What a submission may be made of."""

    languages: tuple[str, ...]
    forbidden: tuple[str, ...] = ()
    """Resolved names, `torch.topk`, …; never grepped."""
    prepare: bool = False
    """Whether the problem has weights that `prepare()` may repack."""


class Problem(Record):
    """One operation: contract, shapes, tolerance, cases, rules, cost model."""

    name: str = Field(pattern=r"^[a-z0-9_]+/[a-z0-9_]+$")
    """`deck/problem`."""
    version: int = Field(ge=1)
    title: str
    summary: str
    entry: Entry
    tensors: tuple[TensorSpec, ...]
    """In the order of the call's arguments, then of its results; state tensors are arguments."""
    scalars: tuple[str, ...] = ()
    """Shape keys whose values the call takes after its tensors, in order."""
    shapes: tuple[Shape, ...]
    comparator: Comparator
    tolerance: dict[str, Tolerance] = {}
    """Per output, for `normalised` and the numeric part of `along_trace`."""
    margins: dict[str, float] = {}
    """Named bounds of `along_trace`."""
    cases: tuple[CaseSpec, ...]
    legal: tuple[str, ...]
    mutants: tuple[MutantSpec, ...]
    cost: Cost
    rules: Rules
    baselines: tuple[str, ...] = ()
    notes: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for what, names in {
            "tensor": [t.name for t in self.tensors],
            "shape": [s.key for s in self.shapes],
            "case": [c.name for c in self.cases],
            "mutant": [m.name for m in self.mutants],
            "legal pipeline": list(self.legal),
        }.items():
            twice = sorted({n for n in names if names.count(n) > 1})
            if twice:
                raise ValueError(f"{what} named twice: {', '.join(twice)}")
        cases = {c.name for c in self.cases}
        if "nominal" not in cases:
            raise ValueError("every problem has a case 'nominal'")
        for mutant in self.mutants:
            if mutant.case is not None and mutant.case not in cases:
                raise ValueError(f"mutant {mutant.name!r} names the unknown case {mutant.case!r}")
        outputs = {t.name for t in self.tensors if t.role is Role.OUTPUT}
        if not outputs:
            raise ValueError("a problem has at least one output")
        if self.comparator is Comparator.NORMALISED and outputs != set(self.tolerance):
            raise ValueError("comparator 'normalised' needs one tolerance per output, no more and no less")
        for shape in self.shapes:
            if unknown := set(self.scalars) - set(shape.values):
                raise ValueError(f"shape {shape.key!r} lacks {', '.join(sorted(unknown))}, which the call takes")
            for tensor in self.tensors:
                for dim in tensor.dims:
                    size = evaluate(dim, shape.values)
                    if size != int(size) or size < 0:
                        raise ValueError(f"shape {shape.key!r}: axis {dim!r} of {tensor.name!r} is {size}")
            for formula in (self.cost.flops, self.cost.bytes):
                evaluate(formula, shape.values)
        return self

    def role(self, *roles: Role) -> tuple[TensorSpec, ...]:
        """The tensors with one of these roles, in declared order."""
        return tuple(t for t in self.tensors if t.role in roles)

    def tier(self, tier: Tier) -> tuple[Shape, ...]:
        """The shapes of a tier, in declared order."""
        return tuple(s for s in self.shapes if s.tier is tier)

    def shape(self, key: str) -> Shape:
        """The shape called `key`.

        Raises:
            KeyError: there is none.
        """
        for shape in self.shapes:
            if shape.key == key:
                return shape
        raise KeyError(key)


def extent(tensor: TensorSpec, shape: Shape) -> tuple[int, ...]:
    """Concrete size of each axis of `tensor` at `shape`."""
    return tuple(int(evaluate(dim, shape.values)) for dim in tensor.dims)
