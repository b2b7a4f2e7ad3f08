"""From what happened to findings: one per rule, at its first case, with the command that shows it again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from kernelassay.decks import Likeness
from kernelassay.judge._diagnose import Diagnosis
from kernelassay.probes import Evidence, finding_of
from kernelassay.records import Case, Finding, Force, Measurement, Recipe, Timing, Verdict
from kernelassay.session import Checked, Trouble

MAX_FINDINGS = 20
"""Rules that one grade reports; a submission that breaks more is wrong in any case."""


def reproduce_command(grade_id: str, finding_id: str) -> str:
    """The command that replays a finding."""
    return shlex.join(["assay", "reproduce", f"{grade_id}/{finding_id}"])


def findings_of(
    grade_id: str,
    checked: Sequence[Checked],
    trouble: tuple[Trouble, Recipe] | None,
    diagnosis: Diagnosis | None,
    evidence: Sequence[tuple[str, Evidence]] = (),
) -> tuple[Finding, ...]:
    """Findings of the checks, in the order of the cases, then of the probes, then of what ended the worker early."""
    by_rule: dict[str, list[tuple[Checked, int]]] = {}
    for one in checked:
        for number, fault in enumerate(one.faults):
            by_rule.setdefault(fault.rule, []).append((one, number))
    out: list[Finding] = []
    for rule, hits in list(by_rule.items())[:MAX_FINDINGS]:
        one, number = hits[0]
        fault = one.faults[number]
        finding_id = f"f{len(out) + 1}"
        cases = len({(c.result.case.shape, c.result.case.case) for c, _ in hits})
        measured = (Measurement(name="cases", value=cases), Measurement(name="of", value=len(checked)))
        out.append(
            Finding(
                id=finding_id,
                rule=rule,
                force=Force.CONVICTS,
                charge=Verdict.INCORRECT,
                title=f"{fault.title} (case {one.result.case.case} on {one.result.case.shape})",
                detail=one.where,
                expected=fault.expected,
                actual=fault.actual,
                location=fault.location,
                measured=measured + (diagnosis.measurements() if diagnosis and not out else ()),
                recipe=recipe_of(one.result.case),
                reproduce=reproduce_command(grade_id, finding_id),
            )
        )
    if diagnosis is not None and diagnosis.like is not None and out:
        out.append(_of_likeness(f"f{len(out) + 1}", diagnosis.like, out[0]))
    for probe, one_more in evidence:
        finding_id = f"f{len(out) + 1}"
        out.append(finding_of(one_more, probe, finding_id, reproduce_command(grade_id, finding_id)))
    if trouble is not None:
        out.append(_of_trouble(grade_id, f"f{len(out) + 1}", *trouble))
    return tuple(out)


def clock_findings(timing: Timing, known: int) -> tuple[Finding, ...]:
    """What the clocks' checks say that a reader of the grade should see; the timing's state alone decides with it."""
    out: list[Finding] = []
    for shape in timing.shapes:
        for check in shape.checks:
            if check.finding and f"clock.{check.name}" not in {f.rule for f in out}:
                out.append(
                    Finding(
                        id=f"f{known + len(out) + 1}",
                        rule=f"clock.{check.name}",
                        force=Force.INFORMS,
                        title=f"{check.reason} (shape {shape.shape})",
                        detail=check.next_step,
                        measured=check.measured,
                    )
                )
    return tuple(out)


def _of_likeness(finding_id: str, like: Likeness, first: Finding) -> Finding:
    """Whose error the first finding's is."""
    cosine = "" if like.cosine is None else f" (S = {like.cosine:.4f})"
    return Finding(
        id=finding_id,
        rule="residual.mutant",
        force=Force.INFORMS,
        title=f"the error is that of {like.mutant}{cosine}: the reference with one part dropped or changed",
        detail=f"{first.id}, {first.title}: compared with every mutant of the problem; assay deck show lists them",
        measured=() if like.cosine is None else (Measurement(name="S", value=like.cosine),),
    )


def recipe_of(case: Case) -> Recipe:
    """How to run one case again."""
    return Recipe(stage="case", shape=case.shape, case=case.case, seed=case.seed, weights_seed=case.weights_seed)


def _of_trouble(grade_id: str, finding_id: str, trouble: Trouble, recipe: Recipe) -> Finding:
    return Finding(
        id=finding_id,
        rule=trouble.rule,
        force=Force.CONVICTS,
        charge=Verdict.REWARD_HACK if trouble.forged else Verdict.INCORRECT,
        title=trouble.title,
        detail=trouble.detail,
        expected=trouble.expected,
        actual=trouble.actual or trouble.title,
        recipe=recipe,
        reproduce=reproduce_command(grade_id, finding_id),
    )
