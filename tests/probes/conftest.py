"""Two toy decks, a jail, and a bench on which one probe looks at one tiny submission."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kernelassay.decks import LoadedProblem, load
from kernelassay.judge._plan import derive
from kernelassay.probes import PROBES, Outcome, Subject
from kernelassay.records import Limits, Manifest
from kernelassay.sandbox import Sandbox
from kernelassay.session import Job, Rig, Session

LINEAR = "toy/linear"
STEP = "toy/step"
SECRET = b"a secret of the tests"

_COMMON = """\
version: 1
title: Toy
summary: A product of matrices, small enough that a probe costs nothing but its worker.
comparator: normalised
tolerance: {y: {rms: 0.001, group: 0.01, element: 0.05}}
cases: [{name: nominal}, {name: tall}]
legal: []
mutants: []
cost: {flops: 2*m*n*k, bytes: 4*m*k + 4*k*n + 4*m*n, precision: fp32}
shapes: [{key: small, tier: small, values: {m: 4, k: 6, n: 5}}]
"""
_PROBLEMS = {
    LINEAR: """\
entry: forward
tensors:
  - {name: x, role: input, dtype: float32, dims: [m, k]}
  - {name: w, role: weight, dtype: float32, dims: [k, n]}
  - {name: b, role: weight, dtype: float32, dims: [n]}
  - {name: y, role: output, dtype: float32, dims: [m, n], rows: 1}
rules: {languages: [any], prepare: true}
""",
    STEP: """\
entry: step
tensors:
  - {name: x, role: input, dtype: float32, dims: [m, k]}
  - {name: s, role: state, dtype: int64, dims: [m]}
  - {name: y, role: output, dtype: float32, dims: [m, k], rows: 1}
rules: {languages: [any]}
""",
}
_REFERENCES = {
    LINEAR: """
def make_weights(shape, generator):
    return {"w": torch.randn(shape["k"], shape["n"], generator=generator),
            "b": torch.randn(shape["n"], generator=generator)}

def make_inputs(shape, generator):
    return {"x": torch.randn(shape["m"], shape["k"], generator=generator)}

def oracle(weights, inputs):
    return {"y": inputs["x"].double() @ weights["w"].double() + weights["b"].double()}
""",
    STEP: """
def make_weights(shape, generator):
    return {}

def make_inputs(shape, generator):
    return {"x": torch.randn(shape["m"], shape["k"], generator=generator),
            "s": torch.randint(1, 100, (shape["m"],), generator=generator)}

def oracle(weights, inputs):
    return {"y": inputs["x"].double() * inputs["s"].double()[:, None], "s": 3 * inputs["s"] + 1}
""",
}
_REST = """
class Model(nn.Module):
    def __init__(self, m, k, n):
        super().__init__()

def tall(weights, inputs, shape, generator):
    inputs["x"].mul_(1000)

CASES, LEGAL, MUTANTS = {"nominal": lambda w, i, s, g: None, "tall": tall}, {}, {}
"""


def write_decks(root: Path) -> None:
    """Both toy decks below `root`."""
    for name, problem in _PROBLEMS.items():
        folder = root / name
        folder.mkdir(parents=True)
        (folder / "problem.yaml").write_text(f"name: {name}\n{_COMMON}{problem}")
        (folder / "reference.py").write_text(f"import torch\nfrom torch import nn\n{_REFERENCES[name]}{_REST}")
        (folder / "prompt.md").write_text("Do it.\n")


@dataclass
class Bench:
    """Puts submissions into workers and lets probes look at them."""

    sandbox: Sandbox
    folder: Path
    problems: dict[str, LoadedProblem]
    count: int = field(default=0)

    def job(self, problem: str, source: str) -> Job:
        """A worker's job for a submission of one file."""
        self.count += 1
        folder = self.folder / f"submission-{self.count}"
        folder.mkdir()
        folder.chmod(0o755)
        (folder / "solution.py").write_text(source)
        loaded = self.problems[problem]
        return Job(loaded.problem, folder, Manifest(), None, Limits(load_s=30.0, memory_bytes=2 << 30), threads=1)

    @contextmanager
    def subject(self, problem: str, job: Job) -> Iterator[Subject]:
        """A live worker as probes see it."""
        loaded = self.problems[problem]
        with Session(self.sandbox, job) as session:
            session.start()
            before = session.globals()
            session.load()
            yield self.on(loaded, session, job, before)

    def on(self, loaded: LoadedProblem, session: Session, job: Job, before: dict[str, str]) -> Subject:
        """A new model in a live worker."""

        @contextmanager
        def fresh() -> Iterator[Session]:
            with Session(self.sandbox, job) as other:
                other.load()
                yield other

        def retire() -> None:
            session.close()

        def seed(purpose: str) -> int:
            return derive(SECRET, purpose)

        rig = Rig(session, loaded.problem.shapes[0])
        return Subject(loaded, rig, fresh, seed, retire, before)

    def examine(self, probe: str, problem: str, source: str) -> Outcome:
        """What one probe says of one submission, in a worker of its own."""
        with self.subject(problem, self.job(problem, source)) as subject:
            return PROBES[probe][1](subject)


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("probes")
    folder.chmod(0o755)
    write_decks(folder / "decks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELASSAY_DECKS", str(folder / "decks"))
        problems = {name: load(name) for name in (LINEAR, STEP)}
        yield Bench(Sandbox(), folder, problems)
