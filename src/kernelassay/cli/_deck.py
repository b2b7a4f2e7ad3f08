"""`assay deck list|show|lint`: the problems, what an agent is told of one, and whether its tolerance has teeth."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from cyclopts import App

from kernelassay.cli._errors import CommandError
from kernelassay.cli._options import Json, Quiet
from kernelassay.cli._out import emit, show, styled
from kernelassay.cli._progress import reporter

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from kernelassay.decks import LintReport, LoadedProblem
    from kernelassay.records import Problem, Shape

_FLOOR_BYTES_PER_S = 4.8e12
"""Memory bandwidth of an H200 by its data sheet; floors of the decks are quoted at it."""


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


def _load(name: str) -> LoadedProblem:
    """`decks.load`, with the closest known name where there is no such problem."""
    from kernelassay import decks

    names = decks.problem_names()
    if name not in names:
        import difflib

        short = {known.rpartition("/")[2]: known for known in names}
        close = difflib.get_close_matches(name, names, n=1) or [
            short[match] for match in difflib.get_close_matches(name.rpartition("/")[2], short, n=1)
        ]
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise CommandError(f"no problem {name!r}{hint}", "assay deck list")
    return decks.load(name)


def list_problems(*, json: Json = False) -> int:
    """List the problems that can be graded.

    Parameters
    ----------
    json
        Print the list as JSON.
    """
    from kernelassay import decks

    loaded = [decks.load(name) for name in decks.problem_names()]
    if json:
        emit({"problems": [_listed(problem) for problem in loaded]})
        return 0
    table = _table("problem", "version", "title", "entry", "shapes", "cases", "mutants", heading="problems")
    for row in map(_listed, loaded):
        shapes = ", ".join(f"{count} {tier}" for tier, count in row["shapes"].items())
        cells = (row["name"], row["version"], row["title"], row["entry"], shapes, row["cases"], row["mutants"])
        table.add_row(*map(str, cells))
    show(table)
    return 0


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
    loaded = _load(name)
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
    name: str | None = None, /, *, all: bool = False, full: bool = False, json: Json = False, quiet: Quiet = False
) -> int:
    """Prove that a problem's checks have teeth: nulls and mutants fail, legal pipelines pass.

    Parameters
    ----------
    name
        The problem, `ops/topk` say.
    all
        Every problem.
    full
        Run every case instead of stopping at the first rejection, and show the maxima.
    json
        Print the result as JSON.
    quiet
        No progress.
    """
    from kernelassay import decks

    if all == (name is not None):
        raise CommandError("deck lint takes either one problem or --all", "assay deck lint --all")
    problems = [_load(name)] if name is not None else [decks.load(known) for known in decks.problem_names()]
    reports: list[LintReport] = []
    for loaded in problems:
        with reporter(f"lint {loaded.problem.name}", quiet=quiet) as progress:
            reports.append(decks.lint(loaded, full=full, progress=progress))
    if json:
        emit({"problems": [report.model_dump(mode="json") for report in reports]})
    else:
        for report in reports:
            show(*_lint_view(report, full=full))
    return 0 if reports else 2


def _lint_view(report: LintReport, *, full: bool) -> Iterable[RenderableType]:
    yield styled("")
