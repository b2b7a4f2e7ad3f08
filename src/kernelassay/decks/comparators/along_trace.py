"""Comparator `along_trace`: the oracle follows the submission's own discrete decisions and judges each by its margin.

A trajectory of decisions is chaotic: one near-tie decided the other way changes all that comes after it. So nothing is
compared with the oracle's own trajectory. `reference.py` brings facts, this module brings the rules.

**Facts.** `along_trace(weights, inputs, actual, *, shape)` of `reference.py` gets the inputs and state as they were
before the call and what the call returned (outputs, and the final state under its own names), re-runs the oracle along
the decisions in `actual`, and returns up to three tables. Sizes and dtypes of `actual` are right when it is called,
values may be anything. Names are those of outputs and state, or further ones for parts of them.

- `exact[name] = {expected, where?, actual?}`: numbers that are not free, `where` (bool) limits them (old rows of a
  cache, say);
- `decisions[name] = {shortfall, unit, legal?, counted?}`: by how much each chosen alternative is worse than the best by
  the oracle, ≥ 0; the scale it is measured in (anything that broadcasts against it); which choices are possible at all;
  which decisions enter the share (one question asked again and again counts once, or one near-tie fills the quota);
- `numbers[name] = {expected, actual?, scale?, rows?, columns?}`: float results along the trace; `scale` (one number) is
  what they typically measure, for results that may be small by chance; `rows` (leading axes of a row) as in
  `problem.yaml` unless given, columns are groups only where `columns` is true.

`actual` is needed where the name is no output or state. Every output and every state tensor stands in some table.

**Rules**, each a share of its bound; the usage is the largest.

- `along_trace.exact`: equal element by element; no tolerance.
- `along_trace.illegal`: every choice is a possible one; no tolerance.
- `along_trace.margin`: shortfall ≤ `margins[name]` · unit for every decision.
- `along_trace.share`: counted decisions with any shortfall ≤ `margins[name + "_share"]` of those counted, where the
  trace holds at least `margins[name + "_share_from"]` decisions; both optional.
- `normalised.*`: numbers against `tolerance[name]` as in comparator `normalised`; their scales are at
  least `scale` and `margins[name + "_floor"]`; below `margins[name + "_rms_from"]` elements the rms is that of one or
  two results and no statistic, so only groups and elements are held to their bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernelassay.decks._error import DeckError
from kernelassay.decks._problem import CaseTensors, LoadedProblem
from kernelassay.decks.comparators import normalised
from kernelassay.decks.comparators._common import Comparison, Likeness, Mismatch, located, precheck, refused, where_in
from kernelassay.records import Role, TensorSpec

SHARE, SHARE_FROM, FLOOR, RMS_FROM = "_share", "_share_from", "_floor", "_rms_from"
"""Suffixes of the keys of `margins`."""
SAME_ANSWER = 0.98
"""Share of equal elements, and cosine of residuals, from which a mutant gave the submission's answer: near-ties
separate two runs of one algorithm in under one environment of a hundred."""
SAME_NORM = 0.05
"""How far the norms of two residuals that are called the same may differ."""
_TABLES = {
    "exact": ({"expected"}, {"where", "actual"}),
    "decisions": ({"shortfall", "unit"}, {"legal", "counted"}),
    "numbers": ({"expected"}, {"actual", "scale", "rows", "columns"}),
}
"""Table → fields that must stand in each entry, fields that may."""


@dataclass(frozen=True)
class Evidence:
    """The facts of one case, checked for form."""

    exact: dict[str, dict[str, Tensor]]
    decisions: dict[str, dict[str, Tensor]]
    numbers: dict[str, dict[str, Tensor]]
    specs: dict[str, TensorSpec]
    """Per entry of `numbers`: its name and rows."""
    columns: frozenset[str]
    """Entries of `numbers` whose columns are groups."""


@dataclass
class _Verdict:
    """Collects broken rules."""

    usage: float = 0.0
    mismatches: list[Mismatch] = field(default_factory=list)
    masks: dict[str, Tensor] = field(default_factory=dict)

    def use(self, usage: float) -> None:
        self.usage = max(self.usage, math.inf if math.isnan(usage) else usage)

    def add(self, mismatches: list[Mismatch], mask: Tensor, usage: float) -> None:
        self.use(usage)
        if mismatches:
            self.mismatches += mismatches
            name = mismatches[0].output
            before = self.masks.get(name)
            self.masks[name] = mask if before is None or before.shape != mask.shape else before | mask


def compare(
    loaded: LoadedProblem, tensors: CaseTensors, expected: dict[str, Tensor], actual: dict[str, Tensor]
) -> Comparison:
    """Judge one case along its own trace; of `expected` only the names are used.

    Raises:
        DeckError: the oracle leaves out state, or the facts do not have the form above.
    """
    judged = loaded.problem.role(Role.OUTPUT, Role.STATE)
    unjudged = [spec.name for spec in judged if spec.name not in expected]
    if unjudged:
        raise _broken(loaded, f"oracle gives no {', '.join(unjudged)}; state is judged under {loaded.problem.name}")
    found = precheck(loaded, tensors, expected, actual)
    if found:
        return refused(found)
    evidence = gather(loaded, tensors, actual)
    verdict = _Verdict()
    for name, facts in evidence.exact.items():
        _exact(verdict, name, facts, facts.get("actual", actual.get(name)))
    for name, facts in evidence.decisions.items():
        _decisions(verdict, loaded.problem.margins, name, facts, actual.get(name))
    for name, facts in evidence.numbers.items():
        _numbers(verdict, loaded, evidence, name, facts.get("actual", actual.get(name)))
    return Comparison(usage=verdict.usage, mismatches=tuple(verdict.mismatches), where=where_in(verdict.masks))


def gather(loaded: LoadedProblem, tensors: CaseTensors, actual: dict[str, Tensor]) -> Evidence:
    """Ask the problem for its facts and check their form.

    Raises:
        DeckError: naming the table and the entry that is wrong.
    """
    make = loaded.reference.along_trace
    if make is None:
        raise _broken(loaded, "comparator 'along_trace' needs a function along_trace(weights, inputs, actual, shape)")
    tables = make(tensors.weights, tensors.inputs, actual, tensors.shape)
    unknown = sorted(set(tables) - set(_TABLES))
    if unknown:
        raise _broken(loaded, f"along_trace gives the unknown table {unknown[0]!r}")
    parts = {table: _checked(loaded, table, tables.get(table, {})) for table in _TABLES}
    specs, columns = {}, set()
    declared = {spec.name: spec for spec in loaded.problem.tensors}
    for name, facts in parts["numbers"].items():
        rows = facts.pop("rows", declared[name].rows if name in declared else None)
        if facts.pop("columns", False):
            columns.add(name)
        specs[name] = TensorSpec(name=name, role=Role.OUTPUT, dtype="float64", dims=(), rows=rows)
        if name not in loaded.problem.tolerance:
            raise _broken(loaded, f"numbers[{name!r}] has no tolerance in problem.yaml")
    evidence = Evidence(parts["exact"], parts["decisions"], parts["numbers"], specs, frozenset(columns))
    _fits(loaded, evidence, actual)
    return evidence


def _checked(loaded: LoadedProblem, table: str, entries: object) -> dict[str, dict[str, Any]]:
    needed, optional = _TABLES[table]
    if not isinstance(entries, Mapping):
        raise _broken(loaded, f"along_trace: {table} is no dict")
    result = {}
    for name, facts in entries.items():
        if not isinstance(facts, Mapping) or not needed <= set(facts) <= needed | optional:
            raise _broken(loaded, f"{table}[{name!r}] needs {sorted(needed)} and may have {sorted(optional)}")
        plain = [key for key in facts if key not in ("rows", "columns") and not isinstance(facts[key], Tensor)]
        if plain:
            raise _broken(loaded, f"{table}[{name!r}][{plain[0]!r}] is no tensor")
        result[str(name)] = dict(facts)
    return result


def _fits(loaded: LoadedProblem, evidence: Evidence, actual: dict[str, Tensor]) -> None:
    for table, entries in (("exact", evidence.exact), ("numbers", evidence.numbers)):
        for name, facts in entries.items():
            result = facts.get("actual", actual.get(name))
            if result is None or result.shape != facts["expected"].shape:
                raise _broken(loaded, f"{table}[{name!r}]['expected'] has not the size of its result")
    margins = loaded.problem.margins
    for name, facts in evidence.decisions.items():
        if name not in margins:
            raise _broken(loaded, f"decisions[{name!r}] has no bound in `margins` of problem.yaml")
        if not bool((facts["shortfall"] >= 0).all() and (facts["unit"] > 0).all()):
            raise _broken(loaded, f"decisions[{name!r}]: a shortfall is ≥ 0 and its unit > 0")
    covered = {*evidence.exact, *evidence.decisions, *evidence.numbers}
    forgotten = [s.name for s in loaded.problem.role(Role.OUTPUT, Role.STATE) if s.name not in covered]
    if forgotten:
        raise _broken(loaded, f"along_trace says nothing of {', '.join(forgotten)}")


def _exact(verdict: _Verdict, name: str, facts: dict[str, Tensor], result: Tensor | None) -> None:
    assert result is not None  # gather has looked
    expected = facts["expected"]
    wrong = result != expected.to(result.dtype)
    if "where" in facts:
        wrong = wrong & facts["where"]
    if bool(wrong.any()):
        text = f"{int(wrong.sum())} of {wrong.numel()} elements of {name}, which is exact along the trace, differ"
        verdict.add([located("along_trace.exact", name, text, wrong, expected, result)], wrong, math.inf)


def _numbers(verdict: _Verdict, loaded: LoadedProblem, evidence: Evidence, name: str, result: Tensor | None) -> None:
    assert result is not None  # gather has looked
    facts, margins = evidence.numbers[name], loaded.problem.margins
    tolerance = loaded.problem.tolerance[name]
    if result.numel() < margins.get(name + RMS_FROM, 0):
        tolerance = tolerance.model_copy(update={"rms": math.inf})
    scale = float(facts["scale"]) if "scale" in facts else 0.0
    mismatches, mask, usage = normalised.within(
        evidence.specs[name],
        tolerance,
        facts["expected"],
        result,
        grouped_columns=name in evidence.columns,
        floor=max(scale, margins.get(name + FLOOR, 0.0)),
    )
    verdict.add(mismatches, mask, usage)


def _decisions(
    verdict: _Verdict, margins: Mapping[str, float], name: str, facts: dict[str, Tensor], trace: Tensor | None
) -> None:
    """`trace` is shown beside a broken rule where it has the size of the decisions."""
    shortfall = facts["shortfall"] / facts["unit"]
    shown = trace if trace is not None and trace.shape == shortfall.shape else shortfall
    illegal = ~facts["legal"] if "legal" in facts else torch.zeros_like(shortfall, dtype=torch.bool)
    if bool(illegal.any()):
        text = f"{int(illegal.sum())} of {illegal.numel()} choices in {name} do not exist"
        at = located("along_trace.illegal", name, text, illegal, shown, shown)
        verdict.add([Mismatch(at.rule, name, text, at.index, "a possible choice", at.actual)], illegal, math.inf)
    bound = margins[name]
    over = (shortfall > bound) & ~illegal
    worst = float(shortfall.max()) if shortfall.numel() else 0.0
    verdict.use(worst / bound)
    if bool(over.any()):
        text = (
            f"{int(over.sum())} of {over.numel()} decisions in {name} are worse than the best by more than a near-tie: "
            f"up to {worst:.3g} of the scale, {bound:g} is allowed"
        )
        at = located("along_trace.margin", name, text, over, shortfall, shown)
        best = f"a choice within {bound:g} of the best (this one lacks {at.expected})"
        verdict.add([Mismatch(at.rule, name, text, at.index, best, at.actual)], over, worst / bound)
    share = margins.get(name + SHARE)
    if share is not None and shortfall.numel() >= margins.get(name + SHARE_FROM, 0):
        counted = facts.get("counted", torch.ones_like(illegal))
        flips = (shortfall > 0) & counted
        part = float(flips.sum()) / max(1, int(counted.sum()))
        verdict.use(part / share)
        if part > share:
            text = f"{part:.3%} of the decisions in {name} are not the best one, {share:.3%} is allowed"
            verdict.add([Mismatch("along_trace.share", name, text)], flips, part / share)


def attribute(
    loaded: LoadedProblem, tensors: CaseTensors, expected: dict[str, Tensor], actual: dict[str, Tensor]
) -> Likeness | None:
    """The first mutant that breaks the submission's rules with the submission's answer; None if there is none.

    The answer is the same if integers (trace, state) agree in 98 % of their elements and, where numbers broke a rule,
    their residuals, each along its own trace, have a cosine of 0.98 and norms within 5 %.
    """
    mine = compare(loaded, tensors, expected, actual)
    if mine.passed or any(mismatch.rule.startswith("output.") for mismatch in mine.mismatches):
        return None
    rules = {(mismatch.rule, mismatch.output) for mismatch in mine.mismatches}
    numbers = sorted({output for rule, output in rules if rule.startswith("normalised.")})
    residual = _residual(gather(loaded, tensors, actual), actual, numbers)
    for name, mutant in loaded.reference.mutants.items():
        answer = mutant(tensors.weights, tensors.inputs, tensors.shape)
        if not _same_integers(answer, actual):
            continue
        theirs = compare(loaded, tensors, expected, answer)
        if {(mismatch.rule, mismatch.output) for mismatch in theirs.mismatches} != rules:
            continue
        if not numbers:
            return Likeness(name)
        cosine = _cosine(residual, _residual(gather(loaded, tensors, answer), answer, numbers))
        if cosine is not None and cosine >= SAME_ANSWER:
            return Likeness(name, cosine)
    return None


def _same_integers(answer: dict[str, Tensor], actual: dict[str, Tensor]) -> bool:
    if {name: part.shape for name, part in answer.items()} != {name: part.shape for name, part in actual.items()}:
        return False
    whole = [name for name, part in actual.items() if not part.dtype.is_floating_point]
    return all(float((answer[name] == actual[name]).double().mean()) >= SAME_ANSWER for name in whole)


def _residual(evidence: Evidence, answer: dict[str, Tensor], names: list[str]) -> Tensor:
    """Residuals of several numbers end to end, each over its own rms."""
    parts = [torch.zeros(0, dtype=torch.float64)]
    for name in names:
        facts = evidence.numbers[name]
        r = facts["expected"].to(torch.float64)
        y = facts.get("actual", answer.get(name))
        assert y is not None  # gather has looked
        parts.append((y.to(torch.float64) - r).flatten() / (float(r.square().mean().sqrt()) or 1.0))
    return torch.cat(parts)


def _cosine(left: Tensor, right: Tensor) -> float | None:
    """Of two residuals whose norms are alike; None where they are not."""
    a, b = float(left.norm()), float(right.norm())
    if left.shape != right.shape or not (math.isfinite(a) and math.isfinite(b) and a > 0 and b > 0):
        return None
    return float(left @ right) / (a * b) if abs(a / b - 1) <= SAME_NORM else None


def _broken(loaded: LoadedProblem, text: str) -> DeckError:
    return DeckError(
        f"{loaded.folder / 'reference.py'}: {text}; correct it, then run: assay deck lint {loaded.problem.name}"
    )
