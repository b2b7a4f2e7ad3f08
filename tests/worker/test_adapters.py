"""Four entry forms, one internal ABI: the same question gives the same answer through each of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelassay.worker import adapters
from kernelassay.worker.main import describe
from kernelassay.worker.slab import Slab
from tests.hostile.arena import HONEST_C

X = torch.tensor([[3.0, 1.0, 2.0, 0.0], [0.0, 5.0, 4.0, 6.0]])
OUTPUTS = [
    {"name": "values", "dtype": "float32", "shape": [2, 2], "offset": 0},
    {"name": "indices", "dtype": "int64", "shape": [2, 2], "offset": 4096},
]
SHAPE = {"batch": 2, "n": 4, "k": 2}
FORMS = {
    "model": "import torch\nclass Model(torch.nn.Module):\n    def __init__(self, batch, n, k):\n"
    "        super().__init__(); self.k = k\n    def forward(self, x): return torch.topk(x, self.k)\n",
    "custom_kernel": "import torch\ndef custom_kernel(data): return tuple(torch.topk(data[0], 2))\n",
    "run": "import torch\ndef run(x, values, indices):\n    values[:], indices[:] = torch.topk(x, 2)\n",
}


def module(tmp_path: Path, text: str) -> Any:
    (tmp_path / "solution.py").write_text(text)
    before = list(sys.path)
    try:
        return adapters.import_submission(tmp_path, "solution.py")
    finally:
        sys.path[:] = before
        sys.modules.pop(adapters.MODULE_NAME, None)


def adapter(kind: str, found: Any) -> adapters.Adapter:
    if kind == "model":
        return adapters.ModelAdapter(found, "forward", SHAPE, [])
    if kind == "custom_kernel":
        return adapters.CustomKernelAdapter(found)
    return adapters.RunAdapter(found, OUTPUTS)


def right(results: tuple[Any, ...]) -> bool:
    values, indices = torch.topk(X, 2)
    return bool(torch.equal(results[0], values) and torch.equal(results[1], indices))


@pytest.mark.parametrize("kind", FORMS)
def test_python_forms(tmp_path: Path, kind: str) -> None:
    found = module(tmp_path, FORMS[kind])
    assert adapters.kind_of(found) == kind
    made = adapter(kind, found)
    assert not made.prepare()
    assert right(made.bind({"x": X}, [])())


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    code = HONEST_C + 'extern "C" int topk(const void *const *in, void *const *out, const int64_t *shape) {'
    (folder / "k.cpp").write_text(code + "return shape[2] == 2 ? honest(in, out, shape) : 3; }")
    subprocess.run(["c++", "-shared", "-fPIC", "-o", folder / "k.so", folder / "k.cpp"], check=True)
    return folder / "k.so"


def test_native_form(library: Path) -> None:
    made = adapters.NativeAdapter(library, "topk", OUTPUTS, SHAPE)
    assert right(made.bind({"x": X}, [])())
    with pytest.raises(adapters.NativeError, match="topk returned 3"):
        adapters.NativeAdapter(library, "topk", OUTPUTS, SHAPE | {"k": 1}).bind({"x": X}, [])()


@pytest.mark.parametrize("symbol", ["nonsense", "__class__", "_handle"])
def test_native_symbols_that_are_none(library: Path, symbol: str) -> None:
    with pytest.raises(adapters.EntryMissing):
        adapters.NativeAdapter(library, symbol, OUTPUTS, SHAPE)


def test_outputs_are_poisoned_before_each_binding() -> None:
    values, indices = adapters.poisoned(OUTPUTS)
    assert values.isnan().all()
    assert (indices == -1).all()


def test_a_module_without_an_entry(tmp_path: Path) -> None:
    with pytest.raises(adapters.EntryMissing, match="none of"):
        adapters.kind_of(module(tmp_path, "x = 1"))
    with pytest.raises(adapters.EntryMissing, match="no file"):
        adapters.import_submission(tmp_path, "other.py")
    with pytest.raises(adapters.EntryMissing, match="no method 'step'"):
        adapters.ModelAdapter(module(tmp_path, FORMS["model"]), "step", SHAPE, [])


class Sub(torch.Tensor):
    pass


def test_descriptions(tmp_path: Path) -> None:
    fd = os.memfd_create("x")
    os.ftruncate(fd, 4096)
    slab = Slab(fd, 4096, 4096, 4096, [{"name": "x", "dtype": "float32", "shape": [2, 4], "offset": 0}])
    own = slab.views()["x"]
    assert describe(own, slab)["aliases_input"]
    assert describe(own[1, 2:], slab)["aliases_input"]
    fresh = describe(X, slab)
    assert (fresh["type"], fresh["dtype"], fresh["shape"], fresh["strides"], fresh["device"]) == (
        "torch.Tensor",
        "float32",
        [2, 4],
        [4, 1],
        "cpu",
    )
    assert fresh["contiguous"]
    assert not fresh["aliases_input"]
    assert not describe(X.t(), slab)["contiguous"]
    assert describe(X._neg_view(), slab)["lazy"]
    assert describe(X.to("meta"), slab)["device"] == "meta"
    assert describe(X.to_sparse(), slab)["strides"] is None
    for other in (X.as_subclass(Sub), torch.nested.nested_tensor([X]), X.numpy(), None, 1):
        assert describe(other, slab)["type"] != "torch.Tensor"
