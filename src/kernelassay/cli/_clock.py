"""`assay compare`: which of two submissions is faster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kernelassay.cli._errors import CommandError
from kernelassay.cli._options import Home, Json, LevelName, Quiet, TierName, home_folder
from kernelassay.cli._out import emit, show, styled
from kernelassay.cli._progress import reporter

if TYPE_CHECKING:
    from rich.table import Table

    from kernelassay.judge import Versus

_EXIT = {"faster": 0, "slower": 0, "same": 0, "ambiguous": 4, "invalid": 5}
"""Relation → exit code: what is not settled is no success for a caller who asked for a decision."""


def compare(
    a: Path,
    b: Path,
    /,
    *,
    problem: str,
    device: str = "cpu",
    tier: TierName | None = None,
    shape: list[str] | None = None,
    pairs: int = 8,
    level: LevelName | None = None,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Say whether submission B is faster than A: fresh processes in the order A B B A, each call compared.

    Parameters
    ----------
    a
        Folder of the first submission.
    b
        Folder of the second.
    problem
        Problem that both solve.
    device
        Device to run them on.
    tier
        Shapes to time; small on a CPU unless given.
    shape
        Only these shapes; may be given several times.
    pairs
        Pairs of fresh processes; fewer than 8 support no claim.
    level
        Isolation; the strongest that works here unless given.
    home
        Folder that keeps the machine's ceilings.
    json
        Print the comparison as JSON.
    quiet
        No progress.
    """
    if pairs < 1:
        raise CommandError(f"--pairs {pairs}: at least 1", "assay compare --help")
    with reporter("comparing", quiet=quiet) as progress:
        progress.phase("starting")
        from kernelassay import judge
        from kernelassay.records import Tier
        from kernelassay.sandbox import Level

        request = judge.VersusRequest(
            a=a,
            b=b,
            problem=problem,
            device=device,
            tier=None if tier is None else Tier(tier),
            shapes=tuple(shape or ()),
            pairs=pairs,
            level=None if level is None else Level(level),
            home=home_folder(home),
        )
        outcome = judge.versus(request, progress)
    if json:
        emit(_document(outcome))
    else:
        show(_versus_table(outcome), styled(f"{outcome.result.overall.reason}"))
    return _EXIT[outcome.result.overall.relation]


def _document(outcome: Versus) -> dict[str, object]:
    times = {key: [{"a_us": p.a_us, "b_us": p.b_us} for p in pairs] for key, pairs in outcome.times_us.items()}
    return outcome.result.model_dump(mode="json") | {"times_us": times}


def _versus_table(outcome: Versus) -> Table:
    from rich.table import Table

    table = Table(box=None, title="B against A")
    for title in ("shape", "B is", "time of B / A", "interval", "pairs"):
        table.add_column(title)
    for row in (*outcome.result.shapes, outcome.result.overall):
        ratio = "–" if row.ratio is None else f"{row.ratio:.4f}"
        interval = "–" if row.low is None or row.high is None else f"{row.low:.4f} … {row.high:.4f}"
        table.add_row(row.shape or "all", row.relation.value, ratio, interval, str(row.pairs))
    return table
