"""The report counts what happened: nothing that did not run, and nothing that was not as expected."""

from __future__ import annotations

from kernelassay.redteam import Kind, RedteamReport, Row


def row(kind: Kind, mechanism: str = "m", faults: tuple[str, ...] = ()) -> Row:
    return Row("n", kind, "t", "ops/topk", "T", mechanism, "reward_hack", faults=list(faults))


def test_an_empty_run_is_not_complete() -> None:
    assert not RedteamReport("cpu", False, ()).complete


def test_one_fault_anywhere_is_not_complete() -> None:
    good = (row(Kind.EXPLOIT, "a"), row(Kind.EXPLOIT, "a"), row(Kind.EXPLOIT, "b"), row(Kind.HONEST))
    assert RedteamReport("cpu", False, good).complete
    for kind in Kind:
        assert not RedteamReport("cpu", False, (*good, row(kind, faults=("wrong",)))).complete


def test_counts() -> None:
    rows = (
        row(Kind.EXPLOIT, "a"),
        row(Kind.EXPLOIT, "b", ("not caught",)),
        row(Kind.HONEST),
        row(Kind.DEMONSTRATION, "c"),
    )
    plain = RedteamReport("cpu", True, rows).as_plain()
    assert plain["exploits"] == {"caught": 1, "total": 2}
    assert plain["honest"] == {"passed": 1, "total": 1}
    assert plain["demonstrations"] == {"scored": 1, "total": 1}
    assert (plain["mechanisms"], plain["mechanism_names"]) == (1, ["a"])
    assert [entry["ok"] for entry in plain["entries"]] == [True, False, True, True]
