"""`assay redteam run|list`: the judge against submissions that cheat, and against honest ones that look like it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from kernelassay.cli._options import Home, Json, LevelName, Quiet, home_folder
from kernelassay.cli._out import emit, show, styled
from kernelassay.cli._progress import reporter

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kernelassay.redteam import RedteamReport, Row

_MET, _NOT_MET = 0, 1


def app() -> App:
    """The group of commands `assay redteam`."""
    group = App(name="redteam", help="Submissions that cheat, and honest ones that look like it: what the judge says.")
    group.command(run, name="run")
    group.command(list_entries, name="list")
    return group


def run(
    *,
    device: str = "cpu",
    full: Annotated[bool, Parameter(negative="")] = False,
    only: Annotated[tuple[str, ...], Parameter(name="--only", negative="")] = (),
    level: LevelName | None = None,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Grade the whole red team; exit 0 only if every exploit is caught and every look-alike passes.

    Parameters
    ----------
    device
        Device to run it on.
    full
        Grade the honest twin of each exploit too, ask the naive judge, and reproduce each conviction.
    only
        Name of an entry; may be given several times.
    level
        Isolation; the strongest that works here unless given.
    home
        Folder that keeps the grades.
    json
        Print the report as JSON.
    quiet
        No progress.
    """
    from kernelassay import redteam
    from kernelassay.sandbox import Level

    with reporter("red team", quiet=quiet) as progress:
        report = redteam.run(
            device,
            full=full,
            only=only or None,
            home=home_folder(home),
            level=None if level is None else Level(level),
            progress=progress,
        )
    if json:
        emit(report.as_plain())
    else:
        show(*_view(report))
    return _MET if report.complete else _NOT_MET


def list_entries(*, json: Json = False) -> int:
    """List the red team: what each entry does, and what the judge must say to it.

    Parameters
    ----------
    json
        Print the manifests as JSON.
    """
    from kernelassay import redteam

    entries = redteam.load_corpus()
    if json:
        emit(
            {"entries": [{"name": e.name, "kind": e.kind.value, **e.manifest.model_dump(mode="json")} for e in entries]}
        )
        return 0
    for entry in entries:
        expect = entry.manifest.expect
        show(styled(f"{entry.name}", "bold").append(f"  {entry.manifest.title}", style="not bold"))
        rule = f" by {expect.rule}" if expect.rule else ""
        show(styled(f"  {entry.kind.value} on {entry.manifest.problem}, expected {expect.verdict.value}{rule}"))
    return 0


def _view(report: RedteamReport) -> Iterable[RenderableType]:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("", "entry", "mechanism", "verdict", "rule", "gain", "s"):
        table.add_column(column, overflow="fold", justify="right" if column in ("gain", "s") else "left")
    for row in report.rows:
        gain = "" if row.gain is None else f"{100 * row.gain:+.0f} %"
        table.add_row(
            "✓" if row.ok else "✗", row.name, row.mechanism, row.verdict, row.rule, gain, f"{row.seconds:.1f}"
        )
    yield table
    for row in report.rows:
        yield from _faults(row)
    plain = report.as_plain()
    caught, passed, scored = plain["exploits"], plain["honest"], plain["demonstrations"]
    words = (
        f"exploits {caught['caught']} of {caught['total']} caught over {plain['mechanisms']} mechanisms",
        f"honest {passed['passed']} of {passed['total']} passed",
        f"demonstrations {scored['scored']} of {scored['total']} scored",
    )
    sign, style = ("✓", "bold green") if report.complete else ("✗", "bold red")
    yield styled(f"{sign} {', '.join(words)} ({report.seconds:.0f} s)", style)


def _faults(row: Row) -> Iterable[RenderableType]:
    from kernelassay.board import one_line

    for fault in row.faults:
        yield styled(f"✗ {row.name}: {one_line(fault, 500)}", "red")
        if row.grade:
            yield styled(f"  next: assay report {row.grade}")
