"""`assay doctor`: what this machine can and cannot judge, and what to install."""

from __future__ import annotations

from dataclasses import asdict

from kernelassay.cli._options import Home, Json, Quiet, home_folder
from kernelassay.cli._out import emit, show, styled
from kernelassay.cli._progress import reporter

_CANNOT = 5


def doctor(*, home: Home = None, json: Json = False, quiet: Quiet = False) -> int:
    """Say what this machine can and cannot judge, and what to install.

    Parameters
    ----------
    home
        Folder that keeps the grades.
    json
        Print the rows as JSON.
    quiet
        No progress.
    """
    from kernelassay.cli._checks import all_rows, can_judge

    with reporter("doctor", quiet=quiet) as progress:
        progress.phase("starting")
        rows = all_rows(home_folder(home), progress.phase)
    able = can_judge(rows)
    if json:
        from kernelassay.devices import environment

        document = {"cpu": able, "rows": [asdict(row) for row in rows]}
        emit({**document, "environment": environment().model_dump(mode="json")})
        return 0 if able else _CANNOT
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from kernelassay.board import one_line

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("", "what", "found"):
        table.add_column(column, overflow="fold")
    looks = {"ok": ("✓ ok", "green"), "limited": ("~ limited", "yellow"), "missing": ("✗ missing", "red")}
    for row in rows:
        sign, style = looks[row.state]
        found = styled(one_line(row.detail))
        if row.fix and row.state != "ok":
            found.append(f"\n→ {one_line(row.fix)}", style="bold")
        table.add_row(styled(sign, style), styled(row.name), found)
    show(table)
    if able:
        show(styled("This machine can judge on device cpu.", "bold green"), styled("next: assay demo"))
    else:
        lacking = ", ".join(row.name for row in rows if row.needed and row.state == "missing")
        show(styled(f"This machine cannot judge yet; missing: {lacking}", "bold red"))
        show(styled("next: fix the rows marked missing, then assay doctor"))
    return 0 if able else _CANNOT
