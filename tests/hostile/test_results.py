"""What a call may return: a plain, fresh, contiguous tensor with the right values, and nothing else."""

from __future__ import annotations

import pytest

from kernelassay.decks import draw, load
from kernelassay.records import Case, Manifest, Status, Verdict
from kernelassay.sandbox import Sandbox
from kernelassay.session import Job, Rig, Session, judge_call
from tests.hostile.arena import LIMITS, PROBLEM, Arena, python

SUBCLASS = "class Lazy(torch.Tensor):\n    pass"

RESULTS = {
    "nan": ("v, i = honest(x)\nreturn v * float('nan'), i", "wrong", "check.selection.values"),
    "dtype": ("v, i = honest(x)\nreturn v.double(), i", "wrong", "check.outputs.dtype"),
    "shape": ("v, i = honest(x)\nreturn v[:, :-1].contiguous(), i", "wrong", "check.outputs.shape"),
    "flat": ("v, i = honest(x)\nreturn v.reshape(-1), i", "wrong", "check.outputs.shape"),
    "strides": ("v, i = honest(x)\nreturn v.t().contiguous().t(), i", "wrong", "check.outputs.strides"),
    "zero stride": ("v, i = honest(x)\nreturn v[:1].expand(4, 8), i", "wrong", "check.outputs.strides"),
    "meta device": ("v, i = honest(x)\nreturn v.to('meta'), i", "wrong", "check.outputs.device"),
    "sparse": ("v, i = honest(x)\nreturn v.to_sparse(), i", "wrong", "check.outputs.strides"),
    "nested": ("v, i = honest(x)\nreturn torch.nested.nested_tensor([v]), i", "contract", "contract.plain_tensor"),
    "too few": ("return honest(x)[0]", "wrong", "check.outputs.count"),
    "too many": ("v, i = honest(x)\nreturn v, i, i", "wrong", "check.outputs.count"),
    "huge list": ("return [honest(x)[0]] * 1000000", "wrong", "check.outputs.count"),
    "none": ("return None", "wrong", "check.outputs.count"),
    "two nones": ("return None, None", "contract", "contract.plain_tensor"),
    "numpy": ("v, i = honest(x)\nreturn v.numpy(), i.numpy()", "contract", "contract.plain_tensor"),
    "subclass": ("v, i = honest(x)\nreturn v.as_subclass(Lazy), i", "contract", "contract.plain_tensor"),
    "parameter": (
        "v, i = honest(x)\nreturn torch.nn.Parameter(v, requires_grad=False), i",
        "contract",
        "contract.plain_tensor",
    ),
    "lazy neg": ("v, i = honest(x)\nreturn (-v)._neg_view(), i", "contract", "contract.lazy_view"),
    "lazy conj": (
        "v, i = honest(x)\nreturn torch._conj(torch.complex(v, v)), i",
        "wrong",
        "check.outputs.dtype",
    ),
    "aliases the input": (
        "v, i = honest(x)\nx.view(-1)[: v.numel()] = v.view(-1)\nreturn x.view(-1)[: v.numel()].view(v.shape), i",
        "contract",
        "contract.aliases_input",
    ),
    "mutates the input": ("r = honest(x)\nx += 1\nreturn r", "contract", "contract.inputs_mutated"),
    "mutates by pointer": (
        "r = honest(x)\nctypes.memset(x.data_ptr() + 4 * 700, 0xAB, 1)\nreturn r",
        "contract",
        "contract.inputs_mutated",
    ),
    "far indices": ("v, i = honest(x)\nreturn v, i + (1 << 40)", "wrong", "check.selection.indices_range"),
    "negative indices": ("v, i = honest(x)\nreturn v, i - 256", "wrong", "check.selection.indices_range"),
    "one index": ("v, i = honest(x)\nreturn v, i * 0", "wrong", "check.selection.indices_distinct"),
}
GRADED = ("nan", "aliases the input")
"""By the whole judge in the fast half; the rest of it in the slow one."""
GRADED_TOO = ("lazy neg", "meta device", "sparse", "huge list", "subclass", "parameter", "far indices", "none")


@pytest.mark.parametrize("name", [*GRADED, *(pytest.param(n, marks=pytest.mark.slow) for n in GRADED_TOO)])
def test_graded(arena: Arena, name: str) -> None:
    body, status, rule = RESULTS[name]
    grade = arena.grade(python(body, SUBCLASS))
    assert grade.status is Status(status), grade.reasons
    assert grade.verdict is Verdict.INCORRECT
    assert rule in {f.rule for f in grade.findings}
    assert all(f.reproduce for f in grade.findings)


def test_every_one_is_found_on_one_live_worker(arena: Arena) -> None:
    """All of them in turn by one process, with honest calls between them: no result spoils the next."""
    bodies = [body for body, _, _ in RESULTS.values()]
    functions = "\n\n".join(
        f"def f{number}(x):\n" + "\n".join("    " + line for line in body.split("\n"))
        for number, body in enumerate([*bodies, "return honest(x)"])
    )
    files = python("return globals()[f'f{int(x[0, 0]) - 1000}'](x)", f"{SUBCLASS}\n\n{functions}")
    loaded = load(PROBLEM)
    shape = loaded.problem.shapes[0]
    job = Job(loaded.problem, arena.submission(files), Manifest(), None, LIMITS, threads=1)
    case = Case(shape=shape.key, case="nominal", seed=1)
    told: dict[str, tuple[Status, set[str]]] = {}
    with Session(Sandbox(), job) as session:
        session.load()
        rig = Rig(session, shape)
        for number, name in enumerate(RESULTS):
            for code in (number, len(RESULTS)):
                tensors = draw(loaded, shape, "nominal", 1 + number, 0)
                tensors.inputs["x"][0, 0] = 1000 + code
                checked = judge_call(loaded, rig, case, tensors, rig.call(tensors.inputs))
                if code == number:
                    told[name] = checked.result.status, {f.rule for f in checked.faults}
                else:
                    assert checked.result.status is Status.CORRECT, f"the honest call after {name!r}"
    arena.assert_nothing_left()
    assert {n: told[n][0] for n in told} == {n: Status(status) for n, (_, status, _) in RESULTS.items()}
    assert {n: rule in told[n][1] for n, (_, _, rule) in RESULTS.items()} == dict.fromkeys(RESULTS, True), told
