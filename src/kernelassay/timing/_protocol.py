"""The two clocks on a CPU, as ordered steps. The judge's own clock counts; the worker's is a claim.

Inner clock, per sample: the judge writes new contents into the one slot and into a decoy; the worker reads a buffer
of `flush_bytes`, calls once on the decoy (code and allocator are warm then, the slot's data cold, as in the outer
clock), and times one call on the slot.

Outer clock, per round of K calls: one call on a decoy brings the code back that other work displaced; the worker binds
K calls; it is frozen; the judge writes K sets that nobody has seen, evicts them from all caches, stamps t0 and thaws
it. When the worker says it is done it is frozen again; t1 is stamped when it stands still, and the judge reads all
results in random order out of its memory. What such a round costs without calls, from t0 until it is said to be done,
is measured with a worker that holds no submission, before one exists. Nothing that a submission executes is
subtracted, nor the freezing, which it could use to finish late.

Between these rounds, at secret places, stand rounds that are not timed: the problem's other cases, written, frozen
and read in the same way. A path that is right for nominal inputs only, kept for calls that look timed, is met there.

Every call of both clocks is kept for comparison, which begins after the last round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from kernelassay.decks import CaseTensors, LoadedProblem, draw
from kernelassay.records import Case, Role, Round, ShapePlan
from kernelassay.session import Batch, CallResult, Checked, Rig, judge_call, same_bytes
from kernelassay.session import Round as Made
from kernelassay.timing._plan import next_round

Cases = Iterator[Case]
"""Nominal cases on seeds that nobody has seen, one per call."""

Untimed = Mapping[int, Sequence[Sequence[Case]]]
"""After how many timed rounds → rounds of other cases that are made there, at most K_max calls each."""

Drawn = tuple[Case, CaseTensors]

KEEP_BYTES = 192 << 20
"""Inputs of one shape and process that are kept until comparison: some hundred sets of a large shape would fill the
memory, and drawing small ones twice doubles the judge's work. [rule]"""


@dataclass(frozen=True)
class TimedCall:
    """One call of a clock, with its results, before comparison."""

    case: Case
    tensors: CaseTensors | None
    """What it was called with; None where keeping that of every call would take too much memory: it is drawn again."""
    result: CallResult
    """Its `arguments` hold only what the call may change or did change: state, and inputs that were mutated."""


@dataclass
class ProcessRun:
    """What one process gave for one shape."""

    inner_us: list[float] = field(default_factory=list)
    rounds: list[tuple[int, float]] = field(default_factory=list)
    claims: list[float] = field(default_factory=list)
    """What the worker says the calls of each round took together, microseconds."""
    calls: list[TimedCall] = field(default_factory=list)
    kept_bytes: int = 0

    def keep(self, drawn: Sequence[Drawn], results: Sequence[CallResult]) -> None:
        """Keep calls for comparison; inputs that came back as they went are dropped when they get too many."""
        for (case, tensors), call in zip(drawn, results, strict=True):
            changed: dict[str, Tensor] = {
                name: value for name, value in call.arguments.items() if not same_bytes(value, tensors.inputs[name])
            }
            size = sum(value.numel() * value.element_size() for value in tensors.inputs.values())
            room = self.kept_bytes + size <= KEEP_BYTES
            self.kept_bytes += size if room else 0
            result = CallResult(call.facts, call.outputs, changed, call.inner_us)
            self.calls.append(TimedCall(case, tensors if room else None, result))


def run_nulls(
    rig: Rig, plan: ShapePlan, tensors: CaseTensors, displace: Callable[[int, int], None]
) -> list[tuple[int, float]]:
    """w(K): rounds of a worker without a submission, `null_rounds` per rung, as (K, µs).

    Until the worker says that it is done: freezing is not subtracted, so a submission that says so early, and
    finishes while it is being frozen, gains nothing by it.
    """
    batch = Batch(rig, plan.k_max)

    def made(k: int) -> float:
        rig.call(tensors.inputs)
        return batch.round([tensors.inputs] * k, frozen=displace).done_us

    return [(k, made(k)) for _ in range(plan.null_rounds) for k in plan.rungs]


def run_process(
    loaded: LoadedProblem,
    rig: Rig,
    plan: ShapePlan,
    process: int,
    cases: Cases,
    displace: Callable[[int, int], None],
    untimed: Untimed | None = None,
) -> ProcessRun:
    """Both clocks in one process of the submission; `untimed` rounds of other cases stand among those of the outer.

    Raises:
        kernelassay.session.Trouble: a call did not return.
    """
    run = ProcessRun()
    _inner(loaded, rig, plan, cases, run)
    _outer(loaded, rig, plan, process, cases, displace, untimed or {}, run)
    return run


def _inner(loaded: LoadedProblem, rig: Rig, plan: ShapePlan, cases: Cases, run: ProcessRun) -> None:
    batch = Batch(rig, 2)
    for _ in range(plan.inner_samples):
        drawn = [_drawn(loaded, rig, next(cases)) for _ in range(2)]
        made = batch.round([t.inputs for _, t in drawn], same_objects=True, flush_bytes=plan.flush_bytes)
        run.inner_us.append(made.calls[1].inner_us)
        run.keep(drawn, made.calls)


def _outer(
    loaded: LoadedProblem,
    rig: Rig,
    plan: ShapePlan,
    process: int,
    cases: Cases,
    displace: Callable[[int, int], None],
    untimed: Untimed,
    run: ProcessRun,
) -> None:
    batch = Batch(rig, plan.k_max)
    begun = time.monotonic()
    done: list[Round] = []

    def make(chosen: Sequence[Case]) -> Made:
        decoy, drawn = _drawn(loaded, rig, next(cases)), [_drawn(loaded, rig, case) for case in chosen]
        run.keep([decoy], [rig.call(decoy[1].inputs)])
        made = batch.round([t.inputs for _, t in drawn], frozen=displace)
        run.keep(drawn, made.calls)
        return made

    while (k := next_round(plan, process, done, time.monotonic() - begun)) is not None:
        for others in untimed.get(len(done), ()):
            make(others)
        made = make([next(cases) for _ in range(k)])
        done.append(Round(k=k, total_us=made.elapsed_us))
        run.rounds.append((k, made.elapsed_us))
        run.claims.append(sum(call.inner_us for call in made.calls))


def _drawn(loaded: LoadedProblem, rig: Rig, case: Case) -> Drawn:
    return case, draw(loaded, rig.shape, case.case, case.seed, case.weights_seed)


def compare_calls(loaded: LoadedProblem, rig: Rig, calls: list[TimedCall]) -> Iterator[Checked]:
    """Compare every kept call with the oracle, on the judge's own inputs."""
    for call in calls:
        tensors = call.tensors or _drawn(loaded, rig, call.case)[1]
        arguments = dict(tensors.inputs) | call.result.arguments
        result = CallResult(call.result.facts, call.result.outputs, arguments, call.result.inner_us)
        yield judge_call(loaded, rig, call.case, tensors, result)


def set_bytes(loaded: LoadedProblem, tensors: CaseTensors) -> tuple[int, int]:
    """Bytes of one set of inputs and state, and of all weights."""
    names = [t.name for t in loaded.problem.role(Role.INPUT, Role.STATE)]
    sizes = [tensors.inputs[name].numel() * tensors.inputs[name].element_size() for name in names]
    return sum(sizes), sum(w.numel() * w.element_size() for w in tensors.weights.values())
