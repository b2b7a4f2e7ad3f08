"""`assay device` and `assay compare`: what this machine can reach, and which of two submissions is faster."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kernelassay.cli._errors import CommandError
from kernelassay.cli._options import Home, Json, LevelName, Quiet, TierName, home_folder
from kernelassay.cli._out import emit, show, styled
from kernelassay.cli._progress import reporter

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from kernelassay.judge import Versus
    from kernelassay.records import Ceilings, Device

_EXIT = {"faster": 0, "slower": 0, "same": 0, "ambiguous": 4, "invalid": 5}
"""Relation → exit code: what is not settled is no success for a caller who asked for a decision."""


def device(name: str = "cpu", /, *, measure: bool = False, home: Home = None, json: Json = False) -> int:
    """Show a device with its ceilings; they are measured when they are not known yet.

    Parameters
    ----------
    name
        The device.
    measure
        Measure again even if the ceilings of this machine are known (about 3 s).
    home
        Folder that keeps the ceilings.
    json
        Print device and ceilings as JSON.
    """
    with reporter(f"measuring {name}", quiet=json) as progress:
        progress.phase("ceilings")
        from kernelassay.devices import CeilingsError, ceilings, detect, device_cpus

        found = detect(name)
        try:
            known = ceilings(
                found,
                home_folder(home),
                measure=measure,
                cpus=device_cpus()[1],
                on_wait=lambda waiting: progress.advance(0, waiting.position, str(waiting)),
            )
        except CeilingsError as error:
            raise CommandError(str(error), "assay doctor", 5) from error
    if json:
        emit({"device": found.model_dump(mode="json"), "ceilings": known.model_dump(mode="json")})
    else:
        show(styled(f"{found.name}: {found.model}", "bold"), _ceilings_table(known), *_ceilings_notes(found, known))
    return 0


def _ceilings_table(known: Ceilings) -> Table:
    from rich.table import Table

    table = Table(box=None)
    for title in ("ceiling", "best", "median", "unit"):
        table.add_column(title, justify="right" if title in ("best", "median") else "left")
    groups = (
        ("memory", known.bandwidth, "GB/s"),
        ("in cache", known.in_cache, "GB/s"),
        ("rate", known.rates, "Gop/s"),
    )
    for group, measured, unit in groups:
        for what, ceiling in measured.items():
            table.add_row(f"{group} {what}", f"{ceiling.value / 1e9:.1f}", f"{ceiling.median / 1e9:.1f}", unit)
    return table


def _ceilings_notes(found: Device, known: Ceilings) -> Iterable[Text]:
    cpus = ", ".join(str(cpu) for cpu in known.cpus) or "any"
    yield styled(f"on {known.threads} thread(s), CPUs {cpus}; measured {known.measured_at:%Y-%m-%d %H:%M} UTC")
    yield styled(f"fingerprint {found.fingerprint}")
    for what, why in known.unknown.items():
        yield styled(f"unknown: {what}: {why}")


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
