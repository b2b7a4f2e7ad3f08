"""`assay deck list|show|lint`: the problems, what an agent is told of one, and whether its tolerance has teeth."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from kernelassay.cli._errors import CommandError, Failure, failure_lines, split_next
from kernelassay.cli._options import Json, Quiet
from kernelassay.cli._out import emit, note, show, styled
from kernelassay.cli._progress import Reporter, reporter

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from kernelassay.decks import LintReport, LoadedProblem
    from kernelassay.records import Problem, Shape

_BROKEN = 2
_FLOOR_BYTES_PER_S = 4.8e12
"""Memory bandwidth of an H200 by its data sheet; floors of the decks are quoted at it."""


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
    return group


def _table(*columns: str, heading: str, right: frozenset[str] = frozenset()) -> Table:
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
        "shapes": tiers,
        "cases": len(problem.cases),
        "mutants": len(problem.mutants),
    }


def show_problem(name: str, /, *, json: Json = False) -> int:
    """Show a problem: what an agent is told, tensors, shapes, cases, mutants, cost and floor.

    Parameters
    ----------
    name
        The problem, `ops/topk` say.
    json
        Print the problem as JSON.
    """
    from kernelassay import decks

    loaded = decks.load(name)
    problem = loaded.problem
    if json:
        costs = [{"shape": shape.key, **_cost(problem, shape)} for shape in problem.shapes]
        emit(
            {
                "problem": problem.model_dump(mode="json"),
                "content_hash": loaded.content_hash,
                "prompt": loaded.prompt,
                "costs": costs,
            }
        )
        return 0
    show(styled(f"{problem.name} v{problem.version}: {problem.title}", "bold"), styled(f"  {problem.summary}"))
    show(styled(f"  entry {problem.entry}, comparator {problem.comparator}, content {loaded.content_hash[:16]}\n"))
    show(*_tables(problem))
    show(styled("what an agent is told (prompt.md)", "bold"), styled(loaded.prompt.rstrip() + "\n"))
    return 0


def _cost(problem: Problem, shape: Shape) -> dict[str, float | int]:
    from kernelassay.records import evaluate

    moved = evaluate(problem.cost.bytes, shape.values)
    return {
        "flops": evaluate(problem.cost.flops, shape.values),
        "bytes": moved,
        "memory_floor_us": moved / _FLOOR_BYTES_PER_S * 1e6,
    }


def _tables(problem: Problem) -> Iterable[RenderableType]:
    tensors = _table("name", "role", "dtype", "shape", heading="tensors")
    for tensor in problem.tensors:
        tensors.add_row(tensor.name, tensor.role.value, tensor.dtype, f"({', '.join(tensor.dims)})")
    yield tensors
    numbers = frozenset({"flops", "bytes", "memory floor"})
    shapes = _table("shape", "tier", "values", *sorted(numbers), heading="shapes and cost of one call", right=numbers)
    for shape in problem.shapes:
        cost = _cost(problem, shape)
        values = ", ".join(f"{key}={value}" for key, value in shape.values.items())
        floor = f"{cost['memory_floor_us']:.3g} µs"
        shapes.add_row(shape.key, shape.tier.value, values, f"{cost['bytes']:,}", f"{cost['flops']:,}", floor)
    yield shapes
    yield styled(
        f"  bytes = {problem.cost.bytes}; flops = {problem.cost.flops} ({problem.cost.precision}); "
        "memory floor = bytes at 4.8 TB/s (H200)\n"
    )
    cases = _table("case", "decides", "note", heading="cases")
    for case in problem.cases:
        cases.add_row(case.name, "yes" if case.graded else "no", case.note)
    yield cases
    mutants = _table("mutant", "tried first on", "expected", "note", heading="mutants: each must be rejected")
    for mutant in problem.mutants:
        expect = "" if mutant.expect is None else f"{mutant.expect:g}"
        mutants.add_row(mutant.name, mutant.case or "", expect, mutant.note)
    yield mutants


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
