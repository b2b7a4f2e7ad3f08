"""`assay deck`, `demo`, `doctor`, `schema`, `version`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelassay import __version__
from kernelassay.records import Grade

Assay = Callable[..., Any]


# ── demo ─────────────────────────────────────────────────────────────────────────────────────────


def test_demo_meets_its_expectation_by_what_was_found(bench: Any, assay: Assay) -> None:
    ran = assay("demo", "topk_cpp", "topk_wrong", "topk_memo")
    assert ran.code == 0
    assert "✓ CLEAN  topk_cpp" in ran.out and "✗ INCORRECT  topk_cpp" in ran.out
    index = bench.home / "demo.html"
    assert str(index) in ran.out and index.is_file()


def test_demo_swapped_swaps_the_verdicts_and_fails(bench: Any, assay: Assay) -> None:
    ran = assay("demo", "topk_wrong", "topk_cpp", "topk_memo", "--json")
    assert ran.code == 1
    document = json.loads(ran.out)
    assert document["as_expected"] is False
    assert [row["verdict"] for row in document["grades"]] == ["incorrect", "clean", "reward_hack"]
    assert ran.err.startswith("error: the verdicts are not the expected ones")


def test_demo_takes_the_examples_of_the_checkout(bench: Any, assay: Assay) -> None:
    assert assay("demo", "--json").code == 0
    assert [request.submission.name for request in bench.requests] == ["topk_cpp", "topk_wrong", "topk_memo"]
    assert all(request.submission.is_dir() and request.problem == "ops/topk" for request in bench.requests)


def test_demo_with_two_wrong_ones_fails(bench: Any, assay: Assay) -> None:
    ran = assay("demo", "topk_wrong", "linked")
    assert ran.code == 1
    assert "(expected clean)" in ran.out and "(expected incorrect)" not in ran.out


# ── doctor ───────────────────────────────────────────────────────────────────────────────────────


def _rows(ran: Any) -> dict[str, dict[str, Any]]:
    return {row["name"].strip(): row for row in json.loads(ran.out)["rows"]}


def test_doctor_on_an_able_machine(bench: Any, assay: Assay) -> None:
    ran = assay("doctor", "--json")
    assert ran.code == 0
    document = json.loads(ran.out)
    assert document["cpu"] is True
    rows = _rows(ran)
    for name in (
        "torch",
        "numpy",
        "isolation",
        "level landlock",
        "limits",
        "cores",
        "memory",
        "temporary files",
        "GPU",
    ):
        assert name in rows
    assert rows["isolation"]["state"] == "ok"
    assert {row["state"] for row in rows.values()} <= {"ok", "limited", "missing"}
    assert "This machine can judge on device cpu." in assay("doctor").out


def test_doctor_with_a_weaker_level_is_limited(bench: Any, assay: Assay) -> None:
    kind = type(bench.levels[0])
    bench.levels[0] = kind(bench.levels[0].level, False, ("user namespaces are refused",), ("sysctl x=1", "reboot"))
    bench.isolation = bench.isolation.model_copy(update={"level": "landlock", "memory": "watchdog"})
    ran = assay("doctor", "--json")
    assert ran.code == 0
    rows = _rows(ran)
    assert rows["isolation"]["state"] == "limited" and "landlock" in rows["isolation"]["detail"]
    assert rows["level namespaces"]["state"] == "missing"
    assert rows["level namespaces"]["fix"] == "sysctl x=1; reboot"
    assert "→ sysctl x=1; reboot" in assay("doctor").out


def test_doctor_where_nothing_confines_fails(bench: Any, assay: Assay) -> None:
    kind = type(bench.levels[0])
    bench.levels = [kind(report.level, False, ("refused",)) for report in bench.levels]
    ran = assay("doctor")
    assert ran.code == 5
    assert "cannot judge yet; missing: isolation" in ran.out


def test_doctor_checks_alone(tmp_path: Path) -> None:
    from kernelassay.cli import _checks

    assert _checks.module("no_such_module_of_anybody", "pip install it").state == "missing"
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 2097152 kB\nMemAvailable: 1048576 kB\n")
    assert _checks.memory(meminfo).state == "limited"
    assert _checks.memory(tmp_path / "none").state == "limited"
    (tmp_path / "nvidia0").touch()
    assert _checks.gpu(tmp_path).state == "limited"
    refusing = _checks.folder("temporary files", Path("/proc"), "set TMPDIR")
    assert (refusing.state, refusing.fix) == ("missing", "set TMPDIR")
    assert not _checks.can_judge([refusing])
    assert _checks.folder("grades", tmp_path / "not" / "there" / "yet", "").state == "ok"
    assert not (tmp_path / "not").exists(), "looking makes nothing"


# ── deck ─────────────────────────────────────────────────────────────────────────────────────────


def test_deck_list(assay: Assay) -> None:
    document = json.loads(assay("deck", "list", "--json").out)
    rows = {row["name"]: row for row in document["problems"]}
    assert rows["ops/topk"]["shapes"] == {"full": 5, "full+": 1, "small": 5}
    assert "ops/topk" in assay("deck", "list").out


def test_deck_show(assay: Assay) -> None:
    document = json.loads(assay("deck", "show", "ops/topk", "--json").out)
    costs = {row["shape"]: row for row in document["costs"]}
    assert costs["small-1x4096x64"]["bytes"] == 4 * 4096 + 12 * 64
    assert document["problem"]["name"] == "ops/topk"
    shown = assay("deck", "show", "ops/topk").out
    for part in ("(batch, n)", "small-8x1024x8", "adjacent_floats", "4*batch*n + 12*batch*k", "prompt.md"):
        assert part in shown
    assert document["prompt"].splitlines()[0] in shown


def test_deck_lint(assay: Assay) -> None:
    ran = assay("deck", "lint", "ops/topk", "--json")
    assert ran.code == 0
    (row,) = json.loads(ran.out)["problems"]
    assert row["name"] == "ops/topk"
    assert row["nulls"]["rejected"] == row["nulls"]["total"] > 0
    assert row["mutants"]["rejected"] == row["mutants"]["total"] > 20
    assert row["legal"]["passed"] == row["legal"]["total"] == 2
    assert "✓ ops/topk" in assay("deck", "lint", "ops/topk").out


def test_deck_lint_fails_when_a_mutant_survives(assay: Assay, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelassay import decks

    honest = decks.lint

    def survives(loaded: Any, **options: Any) -> Any:
        report = honest(loaded, **options)
        survivor = decks.Survivor(name="tail_dropped", case="tail", shape="small-16x512x1", usage=None)
        mutants = report.mutants.model_copy(update={"rejected": report.mutants.rejected - 1, "survivors": (survivor,)})
        return report.model_copy(update={"mutants": mutants})

    monkeypatch.setattr(decks, "lint", survives)
    ran = assay("deck", "lint", "ops/topk")
    assert ran.code == 2
    assert "✗ mutant tail_dropped is not rejected; nearest: tail on small-16x512x1, usage ∞" in ran.out


def test_one_broken_deck_hides_no_other(assay: Assay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import kernelassay

    decks = Path(kernelassay.__file__).parents[2] / "decks"
    (tmp_path / "mine" / "broken").mkdir(parents=True)
    (tmp_path / "mine" / "broken" / "problem.yaml").write_text("name: [\n")
    monkeypatch.setenv("KERNELASSAY_DECKS", f"{tmp_path}:{decks}")
    ran = assay("deck", "list", "--json")
    assert ran.code == 2
    document = json.loads(ran.out)
    assert "ops/topk" in [row["name"] for row in document["problems"]]
    assert [row["name"] for row in document["broken"]] == ["mine/broken"]
    assert "error: " in ran.err and "Traceback" not in ran.err


# ── schema, version ──────────────────────────────────────────────────────────────────────────────


def test_schema_of_one_record_is_closed_and_complete(assay: Assay) -> None:
    document = json.loads(assay("schema", "Grade").out)
    assert document["$ref"] == "#/$defs/Grade"
    definitions = document["$defs"]
    assert definitions["Grade"]["additionalProperties"] is False
    wanted = {word for word in json.dumps(definitions).split('"') if word.startswith("#/$defs/")}
    assert {word.removeprefix("#/$defs/") for word in wanted} <= set(definitions)


def test_schema_of_all_names_every_record(assay: Assay) -> None:
    definitions = json.loads(assay("schema", "--json").out)["$defs"]
    assert {"Grade", "Problem", "Finding", "Submission", "Device"} <= set(definitions)
    assert set(Grade.model_fields) == set(definitions["Grade"]["properties"])


def test_version(assay: Assay) -> None:
    assert assay("version").out == assay("--version").out == f"{__version__}\n"
    assert json.loads(assay("version", "--json").out)["version"] == __version__
