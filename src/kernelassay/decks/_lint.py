"""Lint: may a problem be published?

The rule: every null and every mutant must be rejected, every legal pipeline must pass, on the cases of tier small. A
tolerance that lets a mutant through is a broken tolerance, and one that a legal pipeline barely meets is a lottery.

A mutant meets the case that `problem.yaml` names first, then the others, and is done with at the first rejection;
`full` runs every case and reports the maxima. Seeds are constants: the same deck always gives the same report.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from kernelassay.decks._draw import draw, expect
from kernelassay.decks._eager import run_model
from kernelassay.decks._nulls import NULLS, NullContext, as_declared, torch_dtype
from kernelassay.decks._problem import CaseTensors, LoadedProblem
from kernelassay.decks._reference import Pipeline
from kernelassay.decks._report import (
    LegalCount,
    LegalResult,
    LintReport,
    MutantCount,
    MutantResult,
    NullCount,
    Survivor,
)
from kernelassay.decks.comparators import Comparison, Mismatch, compare
from kernelassay.records import Comparator, Role, Shape, Tier

LINT_SEED = 20260101
"""Every seed of lint derives from this number, the shape's key and the case's name."""
LEGAL_CEILING = 0.95
"""Usage that a legal pipeline may reach: one that lands closer to 1 fails on some other seed."""
THIN = 3.0
"""Usage below which a rejected mutant is called thin."""
CACHE_BYTES = 512 << 20
"""Drawn cases that are kept: problems are meant to fit 400 MB at tier small, torch included."""

Progress = Callable[[str, int, int], None]
"""`(what, done, total)`."""


def lint(loaded: LoadedProblem, *, full: bool = False, progress: Progress | None = None) -> LintReport:
    """Run nulls, legal pipelines and mutants over the small cases.

    Args:
        loaded: the problem.
        full: run every case for every mutant and report maxima and counts.
        progress: told after each step.

    Raises:
        DeckError: the deck's code raises, or draws something other than it declares.
    """
    return _Lint(loaded, full, progress).run()


class _Lint:
    def __init__(self, loaded: LoadedProblem, full: bool, progress: Progress | None) -> None:
        self.loaded = loaded
        self.full = full
        self.progress = progress
        self.shapes = loaded.problem.tier(Tier.SMALL)
        self.cases = [case.name for case in loaded.problem.cases if case.graded]
        self.errors: list[str] = []
        self.cache: dict[tuple[str, str], tuple[CaseTensors, dict[str, Tensor]]] = {}
        self.cached_bytes = 0
        self.done = 0
        self.total = 2 + len(loaded.problem.legal) + len(loaded.problem.mutants)

    def run(self) -> LintReport:
        started = time.monotonic()
        state = torch.random.get_rng_state()
        if not self.shapes:
            self.error("no shape of tier small, so nothing can be checked on a CPU")
        self.promises()
        self.step("promises")
        nulls = self.nulls()
        self.step("nulls")
        legal = self.legal()
        mutants = self.mutants()
        if not torch.equal(state, torch.random.get_rng_state()):
            torch.random.set_rng_state(state)
            self.error("reference.py draws from the global generator; use the one that is passed in")
        return LintReport(
            name=self.loaded.problem.name,
            content_hash=self.loaded.content_hash,
            nulls=nulls,
            mutants=mutants,
            legal=legal,
            errors=tuple(self.errors),
            full=self.full,
            seconds=round(time.monotonic() - started, 3),
        )

    def step(self, what: str) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(what, self.done, self.total)

    def error(self, text: str) -> None:
        if text not in self.errors:
            self.errors.append(text)

    # --- cases ---

    def draw(self, shape: Shape, case: str, salt: str = "") -> CaseTensors:
        return draw(self.loaded, shape, case, _seed(f"{shape.key}/{case}{salt}"), _seed("weights"))

    def case(self, shape: Shape, case: str) -> tuple[CaseTensors, dict[str, Tensor]]:
        """A drawn case with its answer, from the cache when it is there."""
        key = (shape.key, case)
        if key not in self.cache:
            tensors = self.draw(shape, case)
            answer = expect(self.loaded, tensors)
            if self.loaded.problem.comparator is Comparator.NORMALISED:
                for spec in self.loaded.problem.role(Role.OUTPUT):
                    if answer[spec.name].numel() and not bool(answer[spec.name].any()):
                        self.error(f"{spec.name} is identically zero in case {case!r} at {shape.key!r}")
            parts = (*tensors.weights.values(), *tensors.inputs.values(), *answer.values())
            self.cached_bytes += sum(part.numel() * part.element_size() for part in parts)
            if self.cached_bytes > CACHE_BYTES:
                self.cache.clear()
                self.cached_bytes = 0
            self.cache[key] = (tensors, answer)
        return self.cache[key]

    def apply(self, what: str, pipeline: Pipeline, shape: Shape, case: str) -> tuple[Comparison, dict[str, Tensor]]:
        """Run a pipeline on a case and compare; notes an edited input."""
        tensors, answer = self.case(shape, case)
        given = [*tensors.weights.values(), *tensors.inputs.values()]
        versions = [tensor._version for tensor in given]
        result = pipeline(tensors.weights, tensors.inputs, shape)
        if versions != [tensor._version for tensor in given]:
            self.error(f"{what} edits the tensors that it is given")
            del self.cache[(shape.key, case)]
            tensors, answer = self.case(shape, case)
        return compare(self.loaded, tensors, answer, result), result

    def order(self, first: str | None) -> Iterator[tuple[Shape, str]]:
        """Every small case, those called `first` before the others."""
        head = [name for name in self.cases if name == first]
        for case in (*head, *(name for name in self.cases if name != first)):
            for shape in self.shapes:
                yield shape, case

    # --- what a deck promises ---

    def promises(self) -> None:
        """Draws are a function of the seed; the oracle's answer and the eager reference pass."""
        for shape in self.shapes:
            tensors, answer = self.case(shape, "nominal")
            again = self.draw(shape, "nominal")
            if not _same(tensors, again):
                self.error(f"two draws from one seed differ at {shape.key!r}")
            if not self.same_weights(tensors):
                self.error(
                    f"make_weights gives other weights at {shape.key!r} than at another shape with weights of these "
                    "sizes, or than before: they follow from the seed and what sizes them"
                )
            if _same(tensors, self.draw(shape, "nominal", "/other"), inputs_only=True):
                self.error(f"draws from two seeds are equal at {shape.key!r}")
            if not _same(tensors, again) or not torch.equal(_flat(answer), _flat(expect(self.loaded, tensors))):
                self.error(f"the oracle answers one case in two ways at {shape.key!r}")
            rounded = compare(self.loaded, tensors, answer, as_declared(self.loaded, answer))
            if not rounded.passed:
                self.error(f"the oracle's own answer fails at {shape.key!r}: {_why(rounded)}")
            eager = compare(self.loaded, tensors, answer, run_model(self.loaded, tensors, answer))
            if not eager.passed:
                self.error(f"the eager reference fails at {shape.key!r}: {_why(eager)}")

    def same_weights(self, tensors: CaseTensors) -> bool:
        """Whether the problem's own function, asked directly, gives the weights that `draw` may have kept."""
        generator = torch.Generator(device="cpu").manual_seed(tensors.weights_seed)
        weights = self.loaded.reference.make_weights(tensors.shape, generator)
        return torch.equal(_flat({name: weights[name] for name in tensors.weights}), _flat(tensors.weights))

    # --- nulls ---

    def nulls(self) -> NullCount:
        survivors: list[Survivor] = []
        skipped: list[str] = []
        stale = {
            shape.key: as_declared(self.loaded, expect(self.loaded, self.draw(shape, "nominal", "/other")))
            for shape in self.shapes
        }
        for name, null in NULLS.items():
            for shape in self.shapes:
                tensors, answer = self.case(shape, "nominal")
                right = as_declared(self.loaded, answer)
                result = null(NullContext(self.loaded, tensors, right, stale[shape.key]))
                if result is None:
                    skipped.append(name)
                    break
                comparison = compare(self.loaded, tensors, answer, result)
                if comparison.passed:
                    survivors.append(
                        Survivor(name=name, case="nominal", shape=shape.key, usage=_finite(comparison.usage))
                    )
                    break
        total = len(NULLS) - len(skipped) if self.shapes else 0
        return NullCount(
            rejected=total - len(survivors), total=total, survivors=tuple(survivors), not_applicable=tuple(skipped)
        )

    # --- legal ---

    def legal(self) -> LegalCount:
        results = []
        for name, pipeline in self.loaded.reference.legal.items():
            results.append(self.legal_one(name, pipeline))
            self.step(f"legal {name}")
        return LegalCount(passed=sum(result.passed for result in results), total=len(results), results=tuple(results))

    def legal_one(self, name: str, pipeline: Pipeline) -> LegalResult:
        peak, case_name, shape_key, message = -1.0, "", "", "no case was run"
        passed = bool(self.shapes)
        for shape, case in self.order(None):
            comparison, _ = self.apply(f"LEGAL[{name!r}]", pipeline, shape, case)
            here = comparison.passed and comparison.usage <= LEGAL_CEILING
            if comparison.usage > peak or (passed and not here):
                peak, case_name, shape_key = comparison.usage, case, shape.key
                message = "" if here else _why(comparison)
            passed = passed and here
        usage = _finite(peak) if case_name else None
        return LegalResult(name=name, passed=passed, usage=usage, case=case_name, shape=shape_key, message=message)

    # --- mutants ---

    def mutants(self) -> MutantCount:
        results, survivors = [], []
        for spec in self.loaded.problem.mutants:
            result, nearest = self.mutant(spec.name, spec.case, spec.expect)
            results.append(result)
            if nearest is not None:
                survivors.append(nearest)
            self.step(f"mutant {spec.name}")
        rejected = sum(result.case is not None for result in results)
        return MutantCount(rejected=rejected, total=len(results), survivors=tuple(survivors), results=tuple(results))

    def mutant(self, name: str, named: str | None, expected: float | None) -> tuple[MutantResult, Survivor | None]:
        pipeline = self.loaded.reference.mutants[name]
        peak, peak_case, peak_shape = -1.0, None, None
        first: tuple[str, str, str] | None = None
        rejecting = cases = 0
        for shape, case in self.order(named):
            comparison, result = self.apply(f"MUTANTS[{name!r}]", pipeline, shape, case)
            self.check_form(name, comparison, result)
            cases += 1
            if comparison.usage > peak:
                peak, peak_case, peak_shape = comparison.usage, case, shape.key
            if not comparison.passed:
                rejecting += 1
                first = first or (case, shape.key, comparison.mismatches[0].rule)
                if not self.full:
                    break
        nearest = None
        if first is None and peak_case is not None and peak_shape is not None:
            nearest = Survivor(name=name, case=peak_case, shape=peak_shape, usage=_finite(peak))
        return (
            MutantResult(
                name=name,
                case=first[0] if first else None,
                shape=first[1] if first else None,
                rule=first[2] if first else None,
                usage=_finite(peak) if cases else None,
                usage_case=peak_case,
                rejecting=rejecting,
                cases=cases,
                expect=expected,
                thin=self.full and first is not None and peak < THIN,
            ),
            nearest,
        )

    def check_form(self, name: str, comparison: Comparison, result: dict[str, Tensor]) -> None:
        """A mutant must fail by its numbers; one that returns the wrong form proves nothing about the tolerance."""
        for mismatch in comparison.mismatches:
            if mismatch.rule in ("output.missing", "output.shape", "output.unknown"):
                self.error(f"MUTANTS[{name!r}] fails by its form, not by its numbers: {mismatch.message}")
        for spec in self.loaded.problem.role(Role.OUTPUT, Role.STATE):
            tensor = result.get(spec.name)
            if tensor is not None and torch_dtype(spec).is_floating_point and tensor.dtype != torch_dtype(spec):
                self.error(f"MUTANTS[{name!r}] returns {spec.name} as {tensor.dtype}, not as {spec.dtype}")


def _seed(text: str) -> int:
    digest = hashlib.sha256(f"{LINT_SEED}/{text}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _finite(usage: float) -> float | None:
    return usage if math.isfinite(usage) else None


def _why(comparison: Comparison) -> str:
    if comparison.mismatches:
        first: Mismatch = comparison.mismatches[0]
        at = f" at {first.index}: expected {first.expected}, got {first.actual}" if first.index is not None else ""
        return f"{first.rule}: {first.message}{at}"
    return f"usage {comparison.usage:.3g}, {LEGAL_CEILING:g} is allowed"


def _flat(answer: dict[str, Tensor]) -> Tensor:
    parts = [tensor.contiguous().flatten().view(torch.uint8) for tensor in answer.values()]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)


def _same(left: CaseTensors, right: CaseTensors, inputs_only: bool = False) -> bool:
    """Bitwise equality."""
    mine = left.inputs if inputs_only else {**left.inputs, **left.weights}
    theirs = right.inputs if inputs_only else {**right.inputs, **right.weights}
    return torch.equal(_flat(mine), _flat(theirs))
