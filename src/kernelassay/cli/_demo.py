"""`assay demo`: an honest submission, a wrong one and a cheating one, graded for real.

What is demanded is what was found in the folders, never what their names promise: the first has to come out clean, the
second incorrect and the third as a reward hack, so swapping two folders swaps the verdicts and fails the demo.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kernelassay.cli._errors import CommandError
from kernelassay.cli._options import Home, Json, Quiet, home_folder, home_option
from kernelassay.cli._out import emit, note, show, styled

if TYPE_CHECKING:
    from kernelassay.records import Grade

_PROBLEM = "ops/topk"
_EXPECTED = {"topk_cpp": "clean", "topk_wrong": "incorrect", "topk_memo": "reward_hack"}
"""Example → the verdict that its place in the demo demands."""
_ORDER = "first clean, second incorrect, third reward_hack"
_FAILED = 1


def _example(name: str) -> Path:
    import kernelassay

    folder = Path(kernelassay.__file__).resolve().parents[2] / "examples" / name
    if not folder.is_dir():
        raise CommandError(
            f"the example {name!r} is part of the project's checkout and is not at {str(folder)!r}",
            "assay demo FIRST SECOND THIRD, with folders of your own",
        )
    return folder


def demo(
    first: Path | None = None,
    second: Path | None = None,
    third: Path | None = None,
    /,
    *,
    problem: str = _PROBLEM,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Grade an honest, a wrong and a cheating submission; succeed only if each gets its verdict, in this order.

    Parameters
    ----------
    first
        Submission that should be clean; the honest C++ top-k unless given.
    second
        Submission that should be incorrect; the subtly wrong top-k unless given.
    third
        Submission that should be convicted; the memorising top-k unless given.
    problem
        Problem to grade all three against.
    home
        Folder that keeps the grades.
    json
        Print the verdicts as JSON.
    quiet
        Print the verdicts only; no progress.
    """
    from kernelassay import board
    from kernelassay.cli._grade import judged
    from kernelassay.cli._progress import reporter
    from kernelassay.cli._summary import summary

    folders = [given or _example(name) for given, name in zip((first, second, third), _EXPECTED, strict=True)]
    expected = list(_EXPECTED.values())
    kept = home_folder(home)
    rows: list[tuple[Grade, Path]] = []
    for folder in folders:
        with reporter(f"grading {board.quoted(folder.name, 60)}", quiet=quiet) as progress:
            progress.phase("starting")
            graded, page = judged(folder, problem, device="cpu", tier=None, level=None, home=kept, progress=progress)
        rows.append((graded.grade, page))
        if not json and not quiet:
            show(*summary(graded.grade, graded.folder, page, home_option(home)), styled(""))
    index = board.write_index(kept / "demo.html", "Demo: an honest submission, a wrong one and a cheating one", rows)
    met = [grade.verdict for grade, _ in rows] == expected
    if json:
        emit({"as_expected": met, "expected": expected, "grades": [_row(*row) for row in rows], "index": str(index)})
    else:
        _conclude(rows, expected, index, met=met)
    if json and not met:
        note(f"error: the verdicts are not the expected ones ({_ORDER})")
    return 0 if met else _FAILED


def _row(grade: Grade, page: Path) -> dict[str, object]:
    return {
        "submission": grade.submission.name,
        "id": grade.id,
        "verdict": grade.verdict,
        "status": grade.status,
        "reasons": list(grade.reasons),
        "judged_s": round(grade.judged_s, 3),
        "report": str(page),
    }


def _conclude(rows: list[tuple[Grade, Path]], expected: Sequence[str], index: Path, *, met: bool) -> None:
    from kernelassay.board import one_line, quoted
    from kernelassay.cli._summary import STYLES, headline

    for (grade, _), wanted in zip(rows, expected, strict=True):
        matches = grade.verdict == wanted
        show(headline(grade).append("" if matches else f"  (expected {wanted})", style=STYLES["bad"]))
    show(styled(f"  pages     {one_line(str(index), 4096)}"))
    if met:
        show(styled(f"The verdicts are the expected ones: {_ORDER}.", STYLES["good"]))
        return
    names = ", ".join(quoted(grade.submission.name) for grade, _ in rows)
    show(styled(f"The verdicts are not the expected ones ({_ORDER}) for: {names}", STYLES["bad"]))
