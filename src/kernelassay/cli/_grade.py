"""`assay grade`, `assay reproduce`, `assay report`: one grade, one piece of its evidence, its page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kernelassay.cli._options import Home, Json, LevelName, Quiet, TierName, home_folder, home_option
from kernelassay.cli._out import emit, note, show, styled
from kernelassay.cli._progress import Reporter, reporter

if TYPE_CHECKING:
    from rich.text import Text

    from kernelassay.judge import Graded, Reproduction

_REPRODUCED, _NOT_REPRODUCED, _UNKNOWN = 0, 1, 5


def judged(
    path: Path,
    problem: str,
    *,
    device: str,
    tier: TierName | None,
    level: LevelName | None,
    home: Path | None,
    progress: Reporter,
    careful: bool = False,
    clocks: bool = True,
) -> tuple[Graded, Path]:
    """Grade `path`, write the page beside the record, and return both."""
    from kernelassay import board, judge
    from kernelassay.records import Tier
    from kernelassay.sandbox import Level

    request = judge.GradeRequest(
        submission=path,
        problem=problem,
        device=device,
        tier=None if tier is None else Tier(tier),
        level=None if level is None else Level(level),
        mode="careful" if careful else "development",
        clocks=clocks,
        home=home_folder(home),
    )
    graded = judge.grade(request, progress)
    return graded, board.write_report(graded.grade, graded.folder)


def grade(
    path: Path,
    /,
    *,
    problem: str,
    device: str = "cpu",
    tier: TierName | None = None,
    level: LevelName | None = None,
    careful: Annotated[bool, Parameter(negative="")] = False,
    no_time: Annotated[bool, Parameter(negative="")] = False,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Grade a submission and say why it is right or wrong.

    Parameters
    ----------
    path
        Folder of the submission.
    problem
        Problem to grade it against, as `assay deck list` names it.
    device
        Device to run it on.
    tier
        Shapes to grade; small on a CPU and full on a GPU unless given.
    level
        Isolation; the strongest that works here unless given.
    careful
        Run the clocks in three fresh processes instead of one.
    no_time
        Check and probe only: no times and no score.
    home
        Folder that keeps the grades.
    json
        Print the grade as JSON.
    quiet
        Print the verdict and its reasons only; no progress.
    """
    from kernelassay.board import one_line, quoted

    with reporter(f"grading {quoted(path.name, 60)}", quiet=quiet) as progress:
        progress.phase("starting")
        graded, page = judged(
            path,
            problem,
            device=device,
            tier=tier,
            level=level,
            home=home,
            progress=progress,
            careful=careful,
            clocks=not no_time,
        )
    from kernelassay import judge
    from kernelassay.cli._summary import headline, summary

    if json:
        emit(graded.grade.model_dump(mode="json"))
        if not quiet:
            note(f"report: {one_line(str(page))}")
    elif quiet:
        show(headline(graded.grade), *(styled(f"  {one_line(reason)}") for reason in graded.grade.reasons))
    else:
        show(*summary(graded.grade, graded.folder, page, home_option(home)))
    return int(judge.exit_code(graded.grade))


def reproduce(
    reference: str,
    /,
    *,
    level: LevelName | None = None,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run one finding of a grade again and say whether it shows again.

    Parameters
    ----------
    reference
        GRADE/FINDING, as the grade and its report print it.
    level
        Isolation; the strongest that works here unless given.
    home
        Folder that keeps the grades.
    json
        Print the outcome as JSON.
    quiet
        No progress.
    """
    from kernelassay.board import one_line

    with reporter(f"reproducing {one_line(reference, 60)}", quiet=quiet) as progress:
        progress.phase("starting")
        from kernelassay import judge
        from kernelassay.sandbox import Level

        outcome = judge.reproduce(
            reference, home=home_folder(home), level=None if level is None else Level(level), progress=progress
        )
    if json:
        emit(asdict(outcome) | {"finding": outcome.finding.model_dump(mode="json")})
    else:
        show(*_outcome_view(outcome))
    return {True: _REPRODUCED, False: _NOT_REPRODUCED, None: _UNKNOWN}[outcome.reproduced]


def _outcome_view(outcome: Reproduction) -> Iterable[Text]:
    from kernelassay.board import one_line

    sign, word, style = {
        True: ("✓", "REPRODUCED", "bold red"),
        False: ("✗", "NOT REPRODUCED", "bold yellow"),
        None: ("?", "UNKNOWN", "bold yellow"),
    }[outcome.reproduced]
    yield styled(f"{sign} {word}", style).append(f"  {one_line(outcome.reference)}", style="not bold")
    yield styled(f"  {one_line(outcome.finding.title)}")
    for label, value in (("expected", outcome.expected), ("actual", outcome.actual), ("", outcome.message)):
        if value:
            yield styled(f"  {label:<10}{one_line(value)}")


def report(reference: str, /, *, home: Home = None, json: Json = False) -> int:
    """Write the page of a grade again and print where it lies.

    Parameters
    ----------
    reference
        A grade's id, the unique beginning of one, or the path of its folder.
    home
        Folder that keeps the grades.
    json
        Print the paths as JSON.
    """
    from kernelassay import board, judge

    graded = judge.load_grade(reference, home_folder(home))
    page = board.write_report(graded.grade, graded.folder)
    if json:
        emit({"grade": graded.grade.id, "report": str(page), "record": str(graded.folder / "grade.json")})
    else:
        show(styled(board.one_line(str(page), limit=4096)))
    return 0
