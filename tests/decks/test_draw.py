"""A case is a function of its seeds, and is what problem.yaml declares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernelassay.decks import CaseTensors, DeckError, LoadedProblem, draw, expect, load
from kernelassay.decks.generators import spawn

Toy = Callable[..., Path]
NO_EDIT = '"nominal": lambda w, i, s, g: None'


def nominal(loaded: LoadedProblem, seed: int = 1, weights_seed: int = 2) -> CaseTensors:
    return draw(loaded, loaded.problem.shapes[0], "nominal", seed, weights_seed)


def test_same_seeds_same_case(toy: Toy) -> None:
    toy()
    loaded = load("toy/scale")
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    first = nominal(loaded)
    assert torch.equal(state, torch.random.get_rng_state())
    torch.manual_seed(99)
    second = nominal(loaded)
    assert torch.equal(first.inputs["x"], second.inputs["x"])
    assert torch.equal(first.weights["w"], second.weights["w"])


def test_each_seed_rules_its_own_tensors(toy: Toy) -> None:
    toy()
    loaded = load("toy/scale")
    base, inputs, weights = nominal(loaded), nominal(loaded, seed=3), nominal(loaded, weights_seed=3)
    assert not torch.equal(base.inputs["x"], inputs.inputs["x"])
    assert torch.equal(base.weights["w"], inputs.weights["w"])
    assert torch.equal(base.inputs["x"], weights.inputs["x"])
    assert not torch.equal(base.weights["w"], weights.weights["w"])


def test_clone_shares_no_memory(toy: Toy) -> None:
    toy()
    case = nominal(load("toy/scale"))
    copy = case.clone()
    copy.inputs["x"].zero_()
    copy.weights["w"].zero_()
    assert case.inputs["x"].any()
    assert case.weights["w"].any()


def test_unknown_case(toy: Toy) -> None:
    toy()
    loaded = load("toy/scale")
    with pytest.raises(DeckError, match=r"no case 'nominl'.*nominal, onehot"):
        draw(loaded, loaded.problem.shapes[0], "nominl", 1, 1)


@pytest.mark.parametrize(
    ("edits", "what"),
    [
        ([('{"x": torch.randn', '{"z": torch.randn')], r"gives \['z'\]"),
        ([('shape["k"], generator=generator)}', 'shape["k"], generator=generator).double()}')], "float64"),
        ([('{"x": torch.randn(shape["m"]', '{"x": torch.randn(shape["n"]')], r"shape \(16, 32\)"),
        ([('return {"w"', 'return {"b": torch.ones(1), "w"')], r"gives \['b', 'w'\]"),
        ([('return {"x"', 'return [1]; {"x"')], "no dict of tensors"),
        ([('return {"x"', 'raise KeyError("gone"); {"x"')], "line 19: make_inputs raised KeyError"),
        ([(NO_EDIT, '"nominal": lambda w, i, s, g: i.update(x=i["x"][:, :3])')], "shape"),
        ([(NO_EDIT, '"nominal": lambda w, i, s, g: i["q"]')], r"CASES\['nominal'\] raised KeyError"),
        ([(NO_EDIT, '"nominal": lambda w, i, s, g: i.update(x=i["x"].T.contiguous().T)')], "contiguous"),
    ],
)
def test_what_is_drawn_must_be_what_is_declared(toy: Toy, edits: list[tuple[str, str]], what: str) -> None:
    toy(reference=edits)
    with pytest.raises(DeckError, match=what) as caught:
        nominal(load("toy/scale"))
    assert str(caught.value).endswith("assay deck lint toy/scale")


@pytest.mark.parametrize(
    ("new", "what"),
    [
        ('{"z": inputs["x"]}', r"gives \['z'\]"),
        ('{"y": inputs["x"].double()}', r"shape \(8, 32\)"),
        ("None", "no dict"),
        ('{"y": inputs["x"] @ inputs["x"]}', "oracle raised RuntimeError"),
    ],
)
def test_the_oracle_must_answer_every_output(toy: Toy, new: str, what: str) -> None:
    toy(reference=[('{"y": inputs["x"].double() @ weights["w"].double()}', new)])
    loaded = load("toy/scale")
    with pytest.raises(DeckError, match=what):
        expect(loaded, nominal(loaded))


def test_lack_of_memory_is_not_the_decks_fault(toy: Toy) -> None:
    toy(reference=[('return {"x"', 'raise MemoryError; {"x"')])
    with pytest.raises(MemoryError):
        nominal(load("toy/scale"))


def test_functions_receive_the_shape_only_if_they_ask(toy: Toy) -> None:
    toy(
        reference=[
            ("def oracle(weights, inputs):", "def oracle(weights, inputs, shape):"),
            ('inputs["x"].double() @', 'shape["k"] * inputs["x"].double() @'),
        ]
    )
    loaded = load("toy/scale")
    case = nominal(loaded)
    plain = case.inputs["x"].double() @ case.weights["w"].double()
    assert torch.equal(expect(loaded, case)["y"], (32 * case.inputs["x"].double()) @ case.weights["w"].double())
    assert not torch.equal(expect(loaded, case)["y"], plain)
    fp32 = loaded.reference.legal["fp32"](case.weights, case.inputs, case.shape)
    assert fp32["y"].dtype is torch.bfloat16


def test_spawn_is_reproducible_and_its_children_differ() -> None:
    def numbers(seed: int) -> list[float]:
        parent = torch.Generator().manual_seed(seed)
        return [float(torch.rand(1, generator=child)) for child in spawn(parent, 5)]

    assert numbers(1) == numbers(1)
    assert len(set(numbers(1)) | set(numbers(2))) == 10
    assert spawn(torch.Generator(), 0) == []
