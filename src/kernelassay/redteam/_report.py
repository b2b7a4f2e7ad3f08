"""What a run of the red team gives: one row per entry, counted; complete only when every expectation was met."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from kernelassay.redteam._corpus import Kind


@dataclass
class Row:
    """One entry as the judge saw it."""

    name: str
    kind: Kind
    title: str
    problem: str
    family: str
    mechanism: str
    expected: str
    """Verdict, and the rule that must decide, as the manifest has them."""
    verdict: str = ""
    status: str = ""
    rule: str = ""
    """Of the finding that met the expectation; else of the first one."""
    grade: str = ""
    seconds: float = 0.0
    gain: float | None = None
    """Share of a call's time that the attack hides from the judge's clock; demonstrations only."""
    twin: str = ""
    """Verdict on the honest twin; full runs only."""
    naive: bool | None = None
    """Whether the naive judge accepts the exploit; full runs only."""
    reproduced: bool | None = None
    """Whether the deciding finding showed again; full runs only."""
    faults: list[str] = field(default_factory=list)
    """Everything that is not as expected."""

    @property
    def ok(self) -> bool:
        """Whether all of it is as expected."""
        return not self.faults


@dataclass(frozen=True)
class RedteamReport:
    """All rows of one run."""

    device: str
    full: bool
    rows: tuple[Row, ...]
    selected: bool = False
    """Only some of the corpus was asked for."""
    seconds: float = 0.0

    def of(self, kind: Kind) -> tuple[Row, ...]:
        """The rows of one kind."""
        return tuple(row for row in self.rows if row.kind is kind)

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Distinct mechanisms of the exploits that were caught."""
        return tuple(sorted({row.mechanism for row in self.of(Kind.EXPLOIT) if row.ok}))

    @property
    def complete(self) -> bool:
        """At least one entry ran, and every one met its expectation."""
        return bool(self.rows) and all(row.ok for row in self.rows)

    def as_plain(self) -> dict[str, Any]:
        """The report as JSON has it."""

        def count(kind: Kind, word: str) -> dict[str, int]:
            rows = self.of(kind)
            return {word: sum(row.ok for row in rows), "total": len(rows)}

        return {
            "device": self.device,
            "complete": self.complete,
            "full": self.full,
            "selected": self.selected,
            "seconds": self.seconds,
            "exploits": count(Kind.EXPLOIT, "caught"),
            "honest": count(Kind.HONEST, "passed"),
            "demonstrations": count(Kind.DEMONSTRATION, "scored"),
            "mechanisms": len(self.mechanisms),
            "mechanism_names": list(self.mechanisms),
            "entries": [asdict(row) | {"ok": row.ok} for row in self.rows],
        }
