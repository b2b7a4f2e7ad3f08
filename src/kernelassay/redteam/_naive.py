"""Asks a naive judge what it thinks of an exploit, in a throw-away jail: never in this process.

The naive judge is a script of the tests. It imports the submission into its own process, compares on the tensors
that the submission held, and reads Python's clock: what many public judges do.
"""

from __future__ import annotations

import json
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from kernelassay.decks import LoadedProblem
from kernelassay.judge import build_submission
from kernelassay.records import Limits
from kernelassay.redteam._corpus import CorpusError
from kernelassay.sandbox import Jail, Sandbox

NAIVE_JUDGE = Path("tests/redteam/naive_judge.py")
"""Below the repository."""
TIMEOUT_S = 120.0
PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class NaiveOpinion:
    """What the naive judge said."""

    accepted: bool
    median_us: float | None
    said: str
    """Its last words, for a reader."""


def ask_naive_judge(sandbox: Sandbox, loaded: LoadedProblem, submission: Path, folder: Path) -> NaiveOpinion:
    """Let the naive judge grade `submission`; `folder` is an empty place for its copy.

    Raises:
        CorpusError: the script is not there.
        kernelassay.sandbox.SandboxError: the jail could not be started.
    """
    script = PACKAGE.parents[1] / NAIVE_JUDGE
    if not script.is_file():
        raise CorpusError(
            f"no naive judge at {str(script)!r}; a full run needs the repository\nnext: assay redteam run"
        )
    ready = build_submission(sandbox, submission, folder, Limits())
    jail = Jail(
        argv=(
            "{python}",
            "-I",
            "-S",
            "-B",
            "{naive}/naive_judge.py",
            *("--path", "{site}:{venv}:{source}"),
            *("--submission", "{submission}"),
            *("--problem", loaded.problem.name),
            *("--seeds", "11,22,33"),
        ),
        rooms={
            "naive": script.parent,
            "venv": Path(sysconfig.get_path("purelib")),
            "source": PACKAGE.parent,
            "submission": ready,
            "decks": loaded.folder.parents[1],
        },
        env={
            "HOME": "{scratch}",
            "TMPDIR": "{scratch}",
            "OMP_NUM_THREADS": "1",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
        },
        limits=Limits(),
    )
    with sandbox.start(jail) as process:
        ending = process.wait(TIMEOUT_S)
        process.kill()
        text = process.log().decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    said = lines[-1] if lines else "nothing"
    if ending is None or ending.exit_code != 0:
        return NaiveOpinion(False, None, said)
    try:
        opinion = json.loads(said)
        median = opinion.get("median_us")
        return NaiveOpinion(opinion["accepted"] is True, float(median) if median is not None else None, said)
    except (ValueError, KeyError, TypeError, AttributeError):
        return NaiveOpinion(False, None, said)
