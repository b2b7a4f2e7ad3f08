"""A small deck of its own, so that a test can break one thing in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

YAML = """\
name: toy/scale
version: 1
title: Scaled product
summary: y = (x·w)·s
entry: forward
tensors:
  - {name: x, role: input, dtype: float32, dims: [m, k]}
  - {name: w, role: weight, dtype: float32, dims: [k, n]}
  - {name: y, role: output, dtype: bfloat16, dims: [m, n], rows: 1}
shapes:
  - {key: small-8x32x16, tier: small, values: {m: 8, k: 32, n: 16}}
  - {key: small-5x24x6, tier: small, values: {m: 5, k: 24, n: 6}}
comparator: normalised
tolerance:
  y: {rms: 0.006, group: 0.015, element: 0.04}
cases:
  - {name: nominal}
  - {name: onehot}
  - {name: loose, graded: false}
legal: [fp32]
mutants:
  - {name: last_k_dropped, case: onehot, expect: 30}
  - {name: gain, expect: 4}
cost: {flops: 2*m*n*k, bytes: 4*m*k + 4*k*n + 2*m*n, precision: fp32}
rules: {languages: [any], prepare: true}
"""

REFERENCE = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, m, k, n):
        super().__init__()
        self.w = nn.Parameter(torch.empty(k, n))

    def forward(self, x):
        return (x @ self.w).bfloat16()


def make_weights(shape, generator):
    return {"w": torch.randn(shape["k"], shape["n"], generator=generator)}


def make_inputs(shape, generator):
    return {"x": torch.randn(shape["m"], shape["k"], generator=generator)}


def oracle(weights, inputs):
    return {"y": inputs["x"].double() @ weights["w"].double()}


def onehot(weights, inputs, shape, generator):
    x = inputs["x"]
    x.zero_()
    x[:, -1] = 1.0


def fp32(weights, inputs):
    return {"y": (inputs["x"] @ weights["w"]).bfloat16()}


def last_k_dropped(weights, inputs):
    return {"y": (inputs["x"][:, :-1] @ weights["w"][:-1]).bfloat16()}


def gain(weights, inputs):
    return {"y": (1.02 * (inputs["x"] @ weights["w"])).bfloat16()}


CASES = {"nominal": lambda w, i, s, g: None, "onehot": onehot, "loose": lambda w, i, s, g: None}
LEGAL = {"fp32": fp32}
MUTANTS = {"last_k_dropped": last_k_dropped, "gain": gain}
"""

Toy = Callable[..., Path]


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """Write the deck `toy/scale` with textual replacements and make it the only one; returns its folder.

    `toy(yaml=[(old, new)], reference=[(old, new)])`: each old text must occur.
    """

    def write(
        yaml: list[tuple[str, str]] | None = None,
        reference: list[tuple[str, str]] | None = None,
        prompt: str = "Do it.",
    ) -> Path:
        folder = tmp_path / "decks" / "toy" / "scale"
        folder.mkdir(parents=True, exist_ok=True)
        for name, text, edits in (("problem.yaml", YAML, yaml), ("reference.py", REFERENCE, reference)):
            for old, new in edits or []:
                assert old in text
                text = text.replace(old, new)
            (folder / name).write_text(text, encoding="utf-8")
        (folder / "prompt.md").write_text(prompt, encoding="utf-8")
        monkeypatch.setenv("KERNELASSAY_DECKS", str(tmp_path / "decks"))
        return folder

    return write
