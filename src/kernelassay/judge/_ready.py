"""A submission taken in and built, ready to be loaded, for those who look at it in another way than by grading it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from kernelassay.judge._build import build
from kernelassay.judge._intake import UsageError, take_in
from kernelassay.records import Limits
from kernelassay.sandbox import Sandbox


def build_submission(sandbox: Sandbox, submission: Path, folder: Path, limits: Limits) -> Path:
    """Copy `submission` to the new folder `folder` and put its library there; returns `folder`.

    Raises:
        UsageError: intake refuses it, or it does not compile.
        kernelassay.sandbox.SandboxError: this machine cannot confine or build.
    """
    taken = take_in(submission, folder)
    if taken.refused is not None:
        raise UsageError(f"{str(submission)!r} is refused: {taken.refused}\nnext: assay grade {submission}")
    with tempfile.TemporaryDirectory(prefix="kernelassay-source-") as name:
        source = Path(name) / "source"
        shutil.copytree(folder, source)
        source.parent.chmod(0o755)
        built = build(sandbox, source, taken.submission.manifest, folder, limits)
    if built.trouble is not None:
        raise UsageError(f"{str(submission)!r} does not build: {built.trouble.title}\nnext: assay grade {submission}")
    return folder
