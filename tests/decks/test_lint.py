"""Lint catches a deck that would let a wrong kernel pass or a right one fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernelassay.decks import LintReport, lint, load, problem_names

Toy = Callable[..., Path]


def run(full: bool = False) -> LintReport:
    return lint(load("toy/scale"), full=full)


def test_a_sound_deck_passes(toy: Toy) -> None:
    toy()
    report = run()
    assert report.ok
    assert report.errors == ()
    assert (report.nulls.rejected, report.nulls.total) == (6, 6)
    assert report.nulls.not_applicable == ("identity",)
    assert (report.mutants.rejected, report.mutants.total) == (2, 2)
    assert (report.legal.passed, report.legal.total) == (1, 1)


def test_the_printed_form(toy: Toy) -> None:
    toy()
    plain = json.loads(json.dumps(run().model_dump(mode="json")))
    assert set(plain) >= {"name", "nulls", "mutants", "legal"}
    assert plain["name"] == "toy/scale"
    assert {key: plain["nulls"][key] for key in ("rejected", "total")} == {"rejected": 6, "total": 6}
    assert {key: plain["mutants"][key] for key in ("rejected", "total")} == {"rejected": 2, "total": 2}
    assert {key: plain["legal"][key] for key in ("passed", "total")} == {"passed": 1, "total": 1}
    assert plain["ok"] is True
    assert plain["content_hash"] == load("toy/scale").content_hash


def test_the_named_case_comes_first_and_the_first_rejection_is_enough(toy: Toy) -> None:
    toy()
    dropped = run().mutants.results[0]
    assert (dropped.case, dropped.cases, dropped.rejecting) == ("onehot", 1, 1)
    full = run(full=True).mutants.results[0]
    assert (full.cases, full.rejecting) == (4, 4)  # two graded cases, two small shapes
    assert full.usage is not None
    assert full.usage > 30
    assert not full.thin


def test_thin_mutants_are_marked(toy: Toy) -> None:
    toy(reference=[("1.02", "1.013")])
    results = {result.name: result for result in run(full=True).mutants.results}
    assert results["gain"].thin
    assert not results["last_k_dropped"].thin
    assert not any(result.thin for result in run().mutants.results)


@pytest.mark.parametrize(
    "tolerance", ["{rms: 0.06, group: 0.15, element: 0.4}", "{rms: 0.03, group: 0.06, element: 0.1}"]
)
def test_a_loose_tolerance_lets_a_mutant_live(toy: Toy, tolerance: str) -> None:
    toy(yaml=[("{rms: 0.006, group: 0.015, element: 0.04}", tolerance)])
    report = run()
    assert not report.ok
    assert [survivor.name for survivor in report.mutants.survivors] == ["gain"]
    nearest = report.mutants.survivors[0]
    assert nearest.usage is not None
    assert 0.1 < nearest.usage < 1.0
    assert nearest.case in ("nominal", "onehot")
    assert nearest.shape.startswith("small-")


def test_a_mutant_that_is_the_reference_survives(toy: Toy) -> None:
    toy(reference=[("1.02 * ", "")])
    report = run()
    assert not report.ok
    assert (report.mutants.rejected, report.mutants.total) == (1, 2)


def test_a_tight_tolerance_fails_an_honest_pipeline(toy: Toy) -> None:
    toy(yaml=[("{rms: 0.006, group: 0.015, element: 0.04}", "{rms: 0.001, group: 0.002, element: 0.002}")])
    report = run()
    assert not report.ok
    assert (report.legal.passed, report.legal.total) == (0, 1)
    assert report.legal.results[0].message.startswith("normalised.")
    assert report.mutants.rejected == report.mutants.total


def test_an_honest_pipeline_must_keep_its_distance(toy: Toy) -> None:
    """bf16 rounding uses 0.0017 of the rms: it passes at 0.00175, and another seed fails."""
    toy(yaml=[("{rms: 0.006, group: 0.015, element: 0.04}", "{rms: 0.0018, group: 0.015, element: 0.04}")])
    result = run().legal.results[0]
    assert not result.passed
    assert result.usage is not None
    assert result.usage > 0.95


def test_a_null_that_passes_is_named(toy: Toy) -> None:
    """With x constant every draw has one answer, so the stale one is right."""
    toy(
        yaml=[("dims: [m, n], rows: 1", "dims: [m, n], rows: 0")],
        reference=[('torch.randn(shape["m"], shape["k"], generator=generator)', 'torch.ones(shape["m"], shape["k"])')],
    )
    report = run()
    assert not report.ok
    assert [survivor.name for survivor in report.nulls.survivors] == ["stale_first_answer"]
    assert any("two seeds are equal" in error for error in report.errors)


def test_identity_counts_where_it_applies(toy: Toy) -> None:
    toy(
        yaml=[("k: 32, n: 16", "k: 32, n: 32"), ("k: 24, n: 6", "k: 24, n: 24")],
        reference=[('torch.randn(shape["k"], shape["n"], generator=generator)', 'torch.eye(shape["k"])')],
    )
    report = run()
    assert report.nulls.total == 7
    assert [survivor.name for survivor in report.nulls.survivors] == ["copy_of_input", "identity"]


@pytest.mark.parametrize(
    ("edits", "what"),
    [
        ([("1.02 *", "torch.randn(()) *")], "global generator"),
        ([('"gain": gain', '"gain": lambda weights, inputs: {"y": inputs["x"]}')], "fails by its form"),
        ([('(1.02 * (inputs["x"] @ weights["w"])).bfloat16()', '1.02 * (inputs["x"] @ weights["w"])')], "float32"),
        ([("return (x @ self.w).bfloat16()", "return (x @ self.w)[:, :1].bfloat16()")], "eager reference fails"),
        ([("return (x @ self.w).bfloat16()", "return (x @ self.w)")], "eager reference fails"),
        ([('inputs["x"].double() @', '-inputs["x"].double() @')], "eager reference fails"),
        ([('{"y": (1.02 *', '{"y": inputs["x"].zero_()[:, :1] + (1.02 *')], "edits the tensors"),
        ([("x.zero_()", "x[:] = 0.0; weights['w'].zero_()")], "identically zero"),
        (
            [
                (
                    '{"x": torch.randn(shape["m"], shape["k"], generator=generator)}',
                    '{"x": torch.randn(shape["m"], shape["k"])}',
                )
            ],
            "two draws from one seed differ",
        ),
    ],
)
def test_what_a_deck_promises(toy: Toy, edits: list[tuple[str, str]], what: str) -> None:
    toy(reference=edits)
    report = run()
    assert not report.ok
    assert any(what in error for error in report.errors), report.errors


def test_no_small_shape_no_publication(toy: Toy) -> None:
    toy(yaml=[("tier: small", "tier: full")])
    report = run()
    assert not report.ok
    assert report.nulls.rejected == report.nulls.total == 0
    assert report.legal.passed == 0


def test_lint_repeats_itself_and_leaves_the_global_generator(toy: Toy) -> None:
    toy()
    state = torch.random.get_rng_state()
    first = run(full=True).model_dump(exclude={"seconds"})
    torch.rand(3)
    assert run(full=True).model_dump(exclude={"seconds"}) == first
    torch.random.set_rng_state(state)


def test_weights_follow_from_their_sizes_alone(toy: Toy) -> None:
    """Draws share the weights of shapes of one size, so a deck that makes others there is refused."""
    toy(
        yaml=[("{key: small-5x24x6, tier: small, values: {m: 5, k: 24, n: 6}}",
               "{key: small-5x32x16, tier: small, values: {m: 5, k: 32, n: 16}}")],
        reference=[('torch.randn(shape["k"]', 'shape["m"] * torch.randn(shape["k"]')],
    )  # fmt: skip
    report = run()
    assert any("make_weights gives other weights" in error for error in report.errors), report.errors


def test_progress_is_told(toy: Toy) -> None:
    toy()
    steps: list[tuple[str, int, int]] = []
    lint(load("toy/scale"), progress=lambda what, done, total: steps.append((what, done, total)))
    assert [done for _, done, _ in steps] == list(range(1, steps[-1][2] + 1))
    assert steps[-1][0] == "mutant gain"


def test_topk_is_linted_in_seconds() -> None:
    assert "ops/topk" in problem_names()
    report = lint(load("ops/topk"))
    assert report.ok
    assert (report.mutants.rejected, report.mutants.total) == (23, 23)
    assert report.nulls.not_applicable == ("identity",)
    assert report.seconds < 20
