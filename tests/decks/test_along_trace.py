"""Comparator `along_trace` on a small walk: choose the largest of three, move by the choice, report its score."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernelassay.decks import CaseTensors, Comparison, DeckError, LoadedProblem, attribute, compare, draw, expect, load
from kernelassay.records import Tier

YAML = """\
name: toy/walk
version: 1
title: Walk
summary: choose, move, score
entry: step
tensors:
  - {name: x, role: input, dtype: float32, dims: [n, "3"]}
  - {name: pos, role: state, dtype: int64, dims: [n]}
  - {name: choice, role: output, dtype: uint8, dims: [n]}
  - {name: score, role: output, dtype: float32, dims: [n]}
shapes: [{key: small-200, tier: small, values: {n: 200}}]
comparator: along_trace
tolerance: {score: {rms: 0.01, group: 1.0, element: 0.1}}
margins: {choice: 0.05, choice_share: 0.02, choice_share_from: 100, score_floor: 0.5}
cases: [{name: nominal}]
legal: [fp32]
mutants: [{name: smallest}, {name: stays}, {name: gain}]
cost: {flops: n, bytes: 16*n, precision: none}
rules: {languages: [any]}
"""

REFERENCE = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()

    def step(self, x, pos):
        choice = x.argmax(1)
        pos += choice
        return choice.to(torch.uint8), x.amax(1)


def make_weights(shape, generator):
    return {}


def make_inputs(shape, generator):
    return {"x": torch.randn(shape["n"], 3, generator=generator), "pos": torch.arange(shape["n"])}


def answer(inputs, choice, score):
    return {"choice": choice.to(torch.uint8), "score": score, "pos": inputs["pos"] + choice}


def oracle(weights, inputs):
    return answer(inputs, inputs["x"].argmax(1), inputs["x"].amax(1).double())


def along_trace(weights, inputs, actual, *, shape):
    x = inputs["x"].double()
    choice = actual["choice"].long().clamp(max=2)
    chosen = x.gather(1, choice[:, None])[:, 0]
    return {
        "exact": {"pos": {"expected": inputs["pos"] + choice}},
        "decisions": {"choice": {
            "legal": actual["choice"] < 3, "shortfall": x.amax(1) - chosen, "unit": x.std(), "counted": x.sum(1) > -99,
        }},
        "numbers": {"score": {"expected": chosen}},
    }


def fp32(weights, inputs):
    return answer(inputs, inputs["x"].argmax(1), inputs["x"].amax(1))


def smallest(weights, inputs):
    return answer(inputs, inputs["x"].argmin(1), inputs["x"].amin(1))


def stays(weights, inputs):
    return {**fp32(weights, inputs), "pos": inputs["pos"].clone()}


def gain(weights, inputs):
    return answer(inputs, inputs["x"].argmax(1), 1.05 * inputs["x"].amax(1))


CASES = {"nominal": lambda w, i, s, g: None}
LEGAL = {"fp32": fp32}
MUTANTS = {"smallest": smallest, "stays": stays, "gain": gain}
"""

Walk = Callable[..., LoadedProblem]


@pytest.fixture
def walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Walk:
    """The deck above with textual replacements; each old text must occur."""

    def make(*edits: tuple[str, str]) -> LoadedProblem:
        folder = tmp_path / "decks" / "toy" / "walk"
        folder.mkdir(parents=True)
        texts = {"problem.yaml": YAML, "reference.py": REFERENCE, "prompt.md": "Walk."}
        for old, new in edits:
            assert any(old in text for text in texts.values()), old
            texts = {name: text.replace(old, new) for name, text in texts.items()}
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        monkeypatch.setenv("KERNELASSAY_DECKS", str(tmp_path / "decks"))
        return load("toy/walk")

    return make


class Bench:
    """One drawn case, and a right answer to spoil."""

    def __init__(self, loaded: LoadedProblem) -> None:
        self.loaded = loaded
        self.tensors: CaseTensors = draw(loaded, loaded.problem.tier(Tier.SMALL)[0], "nominal", 1, 2)
        self.expected = expect(loaded, self.tensors)
        self.x = self.tensors.inputs["x"]

    def right(self) -> dict[str, Tensor]:
        return self.loaded.reference.legal["fp32"](self.tensors.weights, self.tensors.inputs, self.tensors.shape)

    def follow(self, choice: Tensor) -> dict[str, Tensor]:
        """A consistent answer with these choices."""
        score = self.x.gather(1, choice[:, None])[:, 0]
        return {"choice": choice.to(torch.uint8), "score": score, "pos": self.tensors.inputs["pos"] + choice}

    def compare(self, actual: dict[str, Tensor]) -> Comparison:
        return compare(self.loaded, self.tensors, self.expected, actual)

    def rules(self, actual: dict[str, Tensor]) -> set[str]:
        return {mismatch.rule for mismatch in self.compare(actual).mismatches}

    def second(self, rows: Tensor, gap: float) -> Tensor:
        """Choices where `rows` take the second best, which is made to lie `gap` units below the best."""
        order = self.x.argsort(1, descending=True)
        best, next_ = order[rows, 0], order[rows, 1]
        self.x[rows, next_] = self.x[rows, best] - gap * float(self.x.double().std())
        choice = order[:, 0].clone()
        choice[rows] = next_
        return choice


def test_right_answer_passes(walk: Walk) -> None:
    bench = Bench(walk())
    assert bench.compare(bench.right()).passed and bench.compare(bench.right()).usage < 1e-3


def test_a_near_tie_decided_the_other_way_passes_though_everything_after_it_differs(walk: Walk) -> None:
    bench = Bench(walk())
    actual = bench.follow(bench.second(torch.tensor([7]), 0.02))
    assert not torch.equal(actual["pos"], bench.expected["pos"])
    result = bench.compare(actual)
    assert result.passed and 0.35 < result.usage < 0.45  # 0.02 of 0.05


def test_a_wrong_decision_is_found_by_its_margin(walk: Walk) -> None:
    bench = Bench(walk())
    result = bench.compare(bench.follow(bench.second(torch.tensor([7]), 0.1)))
    (mismatch,) = result.mismatches
    assert mismatch.rule == "along_trace.margin" and mismatch.index == (7,) and 1.9 < result.usage < 2.1


def test_too_many_near_ties_are_found_by_their_share(walk: Walk) -> None:
    bench = Bench(walk())
    choice = bench.second(torch.arange(0, 10), 0.001)
    result = bench.compare(bench.follow(choice))
    assert [m.rule for m in result.mismatches] == ["along_trace.share"] and result.usage == pytest.approx(2.5)


@pytest.mark.parametrize("edit", [("share_from: 100", "share_from: 201"), ("sum(1) > -99", "sum(1) > 99")])
def test_share_needs_enough_counted_decisions(walk: Walk, edit: tuple[str, str]) -> None:
    bench = Bench(walk(edit))
    assert bench.compare(bench.follow(bench.second(torch.arange(0, 10), 0.001))).passed


def test_choices_that_do_not_exist(walk: Walk) -> None:
    bench = Bench(walk())
    actual = bench.right()
    actual["choice"][3] = 255
    result = bench.compare(actual)
    assert "along_trace.illegal" in {m.rule for m in result.mismatches} and result.usage == math.inf


def test_state_is_exact(walk: Walk) -> None:
    bench = Bench(walk())
    actual = bench.right()
    actual["pos"][5] += 1
    result = bench.compare(actual)
    (mismatch,) = result.mismatches
    assert (mismatch.rule, mismatch.output, mismatch.index) == ("along_trace.exact", "pos", (5,))
    assert result.usage == math.inf and "5" in result.where


@pytest.mark.parametrize("spoil", ["pos", "choice", "score"])
def test_every_output_and_state_must_be_there(walk: Walk, spoil: str) -> None:
    bench = Bench(walk())
    actual = bench.right()
    del actual[spoil]
    assert bench.rules(actual) == {"output.missing"}


def test_numbers_by_tolerance_and_nan(walk: Walk) -> None:
    bench = Bench(walk())
    actual = bench.right()
    actual["score"] *= 1.02
    assert "normalised.rms" in bench.rules(actual)
    actual["score"] *= math.nan
    assert bench.rules(actual) == {"output.nonfinite"}


def test_floor_is_the_least_scale(walk: Walk) -> None:
    bench = Bench(walk())
    bench.x.mul_(1e-3).add_(0.0)  # scores of about 1e-3
    actual = bench.follow(bench.x.argmax(1))
    actual["score"] += 0.004  # more than the scores themselves, 0.8 of 0.01 · 0.5
    assert bench.compare(actual).usage == pytest.approx(0.8, rel=0.01)
    actual["score"] += 0.004
    assert "normalised.rms" in bench.rules(actual)


def test_scale_of_the_facts_is_another_least_scale(walk: Walk) -> None:
    bench = Bench(walk(('{"expected": chosen}', '{"expected": chosen, "scale": chosen.abs().max() * 0 + 50}')))
    actual = bench.right()
    actual["score"] += 0.4  # 0.8 of 0.01 · 50
    assert bench.compare(actual).usage == pytest.approx(0.8, rel=0.01)


@pytest.mark.parametrize(("least", "broken"), [(200, {"normalised.rms"}), (201, set())])
def test_rms_needs_enough_elements(walk: Walk, least: int, broken: set[str]) -> None:
    bench = Bench(walk(("score_floor: 0.5", f"score_floor: 0.5, score_rms_from: {least}")))
    actual = bench.right()
    actual["score"] *= 1.02
    assert bench.rules(actual) == broken


def test_where_limits_what_is_exact(walk: Walk) -> None:
    bench = Bench(walk(('{"expected": inputs["pos"] + choice}',
                        '{"expected": inputs["pos"] + choice, "where": inputs["pos"] < 100}')))  # fmt: skip
    actual = bench.right()
    actual["pos"][150] = 0
    assert bench.compare(actual).passed
    actual["pos"][50] = 0
    assert bench.rules(actual) == {"along_trace.exact"}


def test_parts_with_names_rows_and_columns_of_their_own(walk: Walk) -> None:
    table = (
        '"numbers": {"score": {"expected": chosen}, "table": {"expected": chosen.view(20, 10), '
        '"actual": actual["score"].view(20, 10), "rows": 1, "columns": True}}'
    )
    bench = Bench(walk(('"numbers": {"score": {"expected": chosen}}', table),
                       ("tolerance: {", "tolerance: {table: {rms: 1.0, group: 0.1, element: 9.0}, "),
                       ("rms: 0.01, group: 1.0, element: 0.1", "rms: 9.0, group: 9.0, element: 9.0")))  # fmt: skip
    actual = bench.right()
    assert bench.compare(actual).passed
    actual["score"].view(20, 10)[:, 4] *= 1.2
    (mismatch,) = bench.compare(actual).mismatches
    assert (mismatch.rule, mismatch.output) == ("normalised.group", "table") and "column 4" in mismatch.message


BROKEN = {
    "no function": (("def along_trace(", "def another("), "needs a function along_trace"),
    "unknown table": (('"exact": {"pos"', '"exactly": {"pos"'), "unknown table 'exactly'"),
    "forgotten state": (('"exact": {"pos": {"expected": inputs["pos"] + choice}},', ""), "says nothing of pos"),
    "forgotten oracle state": (
        ('    return answer(inputs, inputs["x"].argmax(1), inputs["x"].amax(1).double())',
         '    return {"choice": inputs["x"].argmax(1).to(torch.uint8), "score": inputs["x"].amax(1).double()}'),
        "oracle gives no pos",
    ),
    "unknown field": (('"unit": x.std()', '"units": x.std()'), "decisions['choice'] needs"),
    "no tensor": (('"unit": x.std()', '"unit": 1.0'), "is no tensor"),
    "negative": (('"shortfall": x.amax(1) - chosen', '"shortfall": chosen - x.amax(1)'), "shortfall is ≥ 0"),
    "no bound": (("margins: {choice: 0.05, ", "margins: {"), "no bound"),
    "no tolerance": (("tolerance: {score: {rms: 0.01, group: 1.0, element: 0.1}}", "tolerance: {}"), "no tolerance"),
    "another size": (('{"expected": chosen}', '{"expected": chosen[1:]}'), "has not the size"),
    "raises": (("x = inputs[\"x\"].double()\n", "x = inputs[\"y\"].double()\n"), "along_trace raised KeyError"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_deck_that_breaks_the_interface_is_named(walk: Walk, name: str) -> None:
    edit, message = BROKEN[name]
    bench = Bench(walk(edit))
    actual = bench.follow(bench.second(torch.tensor([7]), 0.02))
    with pytest.raises(DeckError, match="assay deck lint toy/walk") as caught:
        bench.compare(actual)
    assert message in str(caught.value)


def test_attribution_names_the_mutant(walk: Walk) -> None:
    bench = Bench(walk())
    for name, mutant in bench.loaded.reference.mutants.items():
        actual = mutant(bench.tensors.weights, bench.tensors.inputs, bench.tensors.shape)
        assert getattr(attribute(bench.loaded, bench.tensors, bench.expected, actual), "mutant", None) == name
    assert attribute(bench.loaded, bench.tensors, bench.expected, bench.right()) is None
    other = bench.right()
    other["score"] *= 0.9
    assert attribute(bench.loaded, bench.tensors, bench.expected, other) is None
