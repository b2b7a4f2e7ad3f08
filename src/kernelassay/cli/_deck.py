"""`assay deck list|show|lint|new|freeze`: the problems, what an agent is told, whether a tolerance has teeth."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from kernelassay.cli._errors import CommandError, Failure, failure_lines, split_next
from kernelassay.cli._options import Home, Json, Quiet, home_folder
from kernelassay.cli._out import emit, note, show, styled
from kernelassay.cli._progress import Reporter, reporter

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from kernelassay.decks import LintReport, LoadedProblem
    from kernelassay.records import Problem, Shape
    from kernelassay.timing import Peaks

_BROKEN = 2
_AMOUNTS = ("bytes", "flops")


@dataclass(frozen=True)
class Broken:
    """A problem that cannot be used."""

    name: str
    error: str


def app() -> App:
    """The group of commands `assay deck`."""
    group = App(name="deck", help="Problems: list them, show one, prove that their checks have teeth.")
    group.command(list_problems, name="list")
    group.command(show_problem, name="show")
    group.command(lint, name="lint")
    group.command(new, name="new")
    group.command(freeze, name="freeze")
    return group


def _table(*columns: str, heading: str, right: Collection[str] = ()) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, title=heading, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column in right else "left")
    return table


def _load_all() -> tuple[list[LoadedProblem], list[Broken]]:
    """Every problem that loads, and what is wrong with the others: one broken deck hides no other."""
    from kernelassay import decks

    loaded, broken = [], []
    for name in decks.problem_names():
        try:
            loaded.append(decks.load(name))
        except decks.DeckError as error:
            broken.append(Broken(name, str(error)))
    return loaded, broken


def _tell_broken(broken: Iterable[Broken]) -> None:
    for problem in broken:
        what, following = split_next(problem.error)
        for line in failure_lines(Failure(what, following or f"assay deck show {problem.name}", _BROKEN)):
            note(line)


def list_problems(*, json: Json = False, quiet: Quiet = False) -> int:
    """List the problems that can be graded.

    Parameters
    ----------
    json
        Print the list as JSON.
    quiet
        No progress.
    """
    with reporter("loading decks", quiet=quiet):
        loaded, broken = _load_all()
    if json:
        emit({"problems": [_listed(problem) for problem in loaded], "broken": [asdict(row) for row in broken]})
    else:
        table = _table("problem", "version", "title", "entry", "shapes", "cases", "mutants", heading="problems")
        for row in map(_listed, loaded):
            shapes = ", ".join(f"{count} {tier}" for tier, count in row["shapes"].items())
            cells = (row["name"], row["version"], row["title"], row["entry"], shapes, row["cases"], row["mutants"])
            table.add_row(*map(str, cells))
        show(table)
    _tell_broken(broken)
    return _BROKEN if broken else 0


def _listed(loaded: LoadedProblem) -> dict[str, Any]:
    problem = loaded.problem
    tiers: dict[str, int] = {}
    for shape in problem.shapes:
        tiers[shape.tier.value] = tiers.get(shape.tier.value, 0) + 1
    return {
        "name": problem.name,
        "version": problem.version,
        "title": problem.title,
        "entry": problem.entry.value,
        "content_hash": loaded.content_hash,
        "edition": loaded.edition.value,
        "shapes": tiers,
        "cases": len(problem.cases),
        "mutants": len(problem.mutants),
    }


def show_problem(name: str, /, *, home: Home = None, json: Json = False) -> int:
    """Show a problem: tensors, rules, tolerance, shapes with their floors, cases, mutants, what an agent is told.

    Parameters
    ----------
    name
        The problem, `ops/topk` say.
    home
        Folder that keeps the ceilings of this machine.
    json
        Print the problem as JSON.
    """
    from kernelassay import decks

    loaded = decks.load(name)
    problem = loaded.problem
    if json:
        peaks = _peaks(home_folder(home))
        costs = [{"shape": shape.key, **_cost(problem, shape, peaks)} for shape in problem.shapes]
        emit(
            {
                "problem": problem.model_dump(mode="json"),
                "content_hash": loaded.content_hash,
                "edition": loaded.edition.value,
                "prompt": loaded.prompt,
                "costs": costs,
            }
        )
        return 0
    show(styled(f"{problem.name} v{problem.version}: {problem.title}", "bold"), styled(f"  {problem.summary}"))
    content = f"content {loaded.content_hash[:16]} ({loaded.edition})"
    show(styled(f"  entry {problem.entry}, comparator {problem.comparator}, {content}\n"))
    show(*_tables(problem, _peaks(home_folder(home))))
    show(styled("what an agent is told (prompt.md)", "bold"), styled(loaded.prompt.rstrip() + "\n"))
    return 0


def _peaks(home: Path) -> dict[str, Peaks]:
    """What floors are quoted at: published peaks of GPUs, and this machine's CPU where it has been measured."""
    from kernelassay.devices import CATALOGUE, detect, kept_ceilings
    from kernelassay.timing import Peaks, cpu_peaks

    peaks = {name: Peaks(p.bandwidth, p.flops, None, None, None, None, 0.0, {}) for name, p in CATALOGUE.items()}
    kept = kept_ceilings(detect("cpu"), home)
    return peaks | ({"cpu": cpu_peaks(kept)} if kept else {})


def _cost(problem: Problem, shape: Shape, peaks: Mapping[str, Peaks]) -> dict[str, Any]:
    from kernelassay.timing import floor, work

    amount = work(problem.cost, shape)
    floors = {name: floor(amount, peak).floor_us for name, peak in peaks.items()}
    return {"flops": int(amount.flops), "bytes": int(amount.bytes), "floors_us": floors}


def _tables(problem: Problem, peaks: Mapping[str, Peaks]) -> Iterable[RenderableType]:
    tensors = _table("name", "role", "dtype", "shape", heading="tensors")
    for tensor in problem.tensors:
        tensors.add_row(tensor.name, tensor.role.value, tensor.dtype, f"({', '.join(tensor.dims)})")
    yield tensors
    shapes = _table("shape", "tier", "values", *_AMOUNTS, heading="shapes and cost of one call", right=_AMOUNTS)
    floors = _table("shape", *peaks, heading="floor of one call, µs", right=peaks)
    for shape in problem.shapes:
        cost = _cost(problem, shape, peaks)
        values = ", ".join(f"{key}={value}" for key, value in shape.values.items())
        shapes.add_row(shape.key, shape.tier.value, values, f"{cost['bytes']:,}", f"{cost['flops']:,}")
        floors.add_row(shape.key, *("unknown" if us is None else f"{us:.3g}" for us in cost["floors_us"].values()))
    yield shapes
    yield floors
    yield styled(
        f"  bytes = {problem.cost.bytes}; flops = {problem.cost.flops} ({problem.cost.precision}); floor = the larger "
        "of both at published peaks (cpu: at this machine's ceilings, once `assay device --measure` has run)\n"
    )
    yield from _told_rules(problem)
    cases = _table("case", "decides", "note", heading="cases")
    for case in problem.cases:
        cases.add_row(case.name, "yes" if case.graded else "no", case.note)
    yield cases
    mutants = _table("mutant", "tried first on", "expected", "note", heading="mutants: each must be rejected")
    for mutant in problem.mutants:
        expect = "" if mutant.expect is None else f"{mutant.expect:g}"
        mutants.add_row(mutant.name, mutant.case or "", expect, mutant.note)
    yield mutants


def _told_rules(problem: Problem) -> Iterable[RenderableType]:
    rules = _table("rule", "value", heading="rules and tolerance")
    for key, value in problem.rules.model_dump(mode="json").items():
        rules.add_row(key, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
    for name, bound in problem.tolerance.items():
        shares = (f"{key} {value:g}" for key, value in bound.model_dump(exclude_none=True).items())
        rules.add_row(f"tolerance of {name}", ", ".join(shares))
    for name, margin in problem.margins.items():
        rules.add_row(f"margin {name}", f"{margin:g}")
    yield rules


def new(name: str, /, *, json: Json = False) -> int:
    """Write the skeleton of a new problem; it loads and lints before you change anything in it.

    Parameters
    ----------
    name
        The new problem, `ops/softmax` say.
    json
        Print its folder as JSON.
    """
    from kernelassay import decks

    folder = decks.new_problem(name)
    if json:
        emit({"name": name, "folder": str(folder)})
    else:
        show(styled(f"✓ {name}", "bold green"), styled(f"  {folder}\n  next: assay deck lint {name}"))
    return 0


def freeze(
    name: str | None = None,
    /,
    *,
    every: Annotated[bool, Parameter(name="--all", negative="")] = False,
    json: Json = False,
) -> int:
    """Freeze a problem's version: from now on a grade says whether the deck was edited since.

    Parameters
    ----------
    name
        The problem, `ops/topk` say.
    every
        Every problem.
    json
        Print the result as JSON.
    """
    from kernelassay import decks

    if every == (name is not None):
        raise CommandError("deck freeze takes either one problem or --all", "assay deck freeze --all")
    problems, broken = ([decks.load(name)], []) if name is not None else _load_all()
    rows: list[dict[str, Any]] = []
    for loaded in problems:
        problem = loaded.problem
        try:
            fresh = decks.freeze(loaded.folder.parents[1], problem.name, problem.version, loaded.content_hash)
        except decks.DeckError as error:
            broken.append(Broken(problem.name, str(error)))
            continue
        rows.append({"name": problem.name, "version": problem.version, "content": loaded.content_hash, "new": fresh})
    if json:
        emit({"frozen": rows, "broken": [asdict(row) for row in broken]})
    else:
        for row in rows:
            show(styled(f"✓ {row['name']} version {row['version']}", "bold green").append(f"  {row['content'][:16]}"))
    _tell_broken(broken)
    return _BROKEN if broken else 0


def lint(
    name: str | None = None,
    /,
    *,
    every: Annotated[bool, Parameter(name="--all", negative="")] = False,
    full: Annotated[bool, Parameter(negative="")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Prove that a problem's checks have teeth: nulls and mutants fail, legal pipelines pass.

    Parameters
    ----------
    name
        The problem, `ops/topk` say.
    every
        Every problem.
    full
        Run every case instead of stopping at the first rejection, and show the maxima.
    json
        Print the result as JSON.
    quiet
        No progress.
    """
    from kernelassay import decks

    if every == (name is not None):
        raise CommandError("deck lint takes either one problem or --all", "assay deck lint --all")
    problems, broken = ([decks.load(name)], []) if name is not None else _load_all()
    reports: list[LintReport] = []
    for loaded in problems:
        with reporter(f"lint {loaded.problem.name}", quiet=quiet) as progress:
            try:
                reports.append(decks.lint(loaded, full=full, progress=_counted(progress)))
            except decks.DeckError as error:
                broken.append(Broken(loaded.problem.name, str(error)))
    if json:
        found: dict[str, Any] = {"problems": [report.model_dump(mode="json") for report in reports]}
        emit(found | {"broken": [asdict(row) for row in broken]})
    else:
        for report in reports:
            show(*_lint_view(report, full=full))
    _tell_broken(broken)
    return 0 if reports and not broken and all(report.ok for report in reports) else _BROKEN


def _counted(progress: Reporter) -> Callable[[str, int, int], None]:
    """Lint's way to tell progress, as a reporter's."""
    return lambda what, done, total: progress.advance(done, total, what)


def _lint_view(report: LintReport, *, full: bool) -> Iterable[RenderableType]:
    from kernelassay.board import one_line

    sign, style = ("✓", "bold green") if report.ok else ("✗", "bold red")
    took = f"{report.seconds:.1f} s, {'every case' if full else 'each stopped at its first rejection'}"
    yield styled(f"{sign} {report.name}", style).append(f"  ({took})", style="not bold dim")
    nulls, mutants, legal = report.nulls, report.mutants, report.legal
    skipped = f", not applicable: {', '.join(nulls.not_applicable)}" if nulls.not_applicable else ""
    yield styled(f"  nulls    {nulls.rejected} of {nulls.total} rejected{skipped}")
    yield styled(f"  mutants  {mutants.rejected} of {mutants.total} rejected")
    yield styled(f"  legal    {legal.passed} of {legal.total} passed")
    for what, count in (("null", nulls), ("mutant", mutants)):
        for survivor in count.survivors:
            nearest = f"nearest: {survivor.case} on {survivor.shape}, usage {_usage(survivor.usage)}"
            yield styled(f"  ✗ {what} {survivor.name} is not rejected; {nearest}", "red")
    for result in legal.results:
        if not result.passed:
            where = f"{result.case} on {result.shape}, usage {_usage(result.usage)}: {result.message}"
            yield styled(f"  ✗ legal {result.name} fails: {one_line(where)}", "red")
    for error in report.errors:
        yield styled(f"  ✗ {one_line(error)}", "red")
    if not full:
        return
    table = _table("mutant", "first rejected by", "rule", "cases", "largest usage", heading="")
    for mutant in mutants.results:
        largest = f"{_usage(mutant.usage)}{' thin' if mutant.thin else ''}"
        first = "–" if mutant.case is None else f"{mutant.case} on {mutant.shape}"
        table.add_row(mutant.name, first, mutant.rule or "–", f"{mutant.rejecting} of {mutant.cases}", largest)
    yield table


def _usage(value: float | None) -> str:
    return "∞" if value is None else f"{value:.3g}"
