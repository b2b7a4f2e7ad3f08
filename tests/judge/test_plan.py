"""The plan follows from one secret and nothing else, and the secret never leaves the judge before the end."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from kernelassay.decks import load
from kernelassay.judge import GradeRequest, grade
from kernelassay.judge._plan import commitment, derive, plan_cases
from kernelassay.records import Tier
from kernelassay.worker import wire
from tests.hostile.arena import HONEST, Arena

SECRET = bytes(range(32))


def test_the_same_secret_gives_the_same_plan() -> None:
    problem = load("ops/topk").problem
    assert plan_cases(problem, Tier.SMALL, SECRET) == plan_cases(problem, Tier.SMALL, SECRET)


def test_a_plan_holds_every_case_once_in_a_secret_order() -> None:
    problem = load("ops/topk").problem
    plans = [plan_cases(problem, Tier.SMALL, bytes([n]) * 32) for n in range(3)]
    wanted = {(s.key, c.name) for s in problem.tier(Tier.SMALL) for c in problem.cases}
    for plan in plans:
        assert len(plan) == len(wanted) == 70
        assert {(c.shape, c.case) for c in plan} == wanted
        assert len({c.seed for c in plan}) == len(plan)
    assert len({tuple((c.shape, c.case) for c in plan) for plan in plans}) == 3
    assert not {c.seed for c in plans[0]} & {c.seed for c in plans[1]}


def test_seeds_are_positive_and_fit_a_generator() -> None:
    seeds = [derive(SECRET, "case", str(n)) for n in range(1000)]
    assert all(0 < seed < 1 << 63 for seed in seeds)
    assert len(set(seeds)) == 1000
    assert derive(SECRET, "a", "b") != derive(SECRET, "a\0b", "")


def test_the_secret_is_drawn_late_and_stays_here(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that was sent to the worker is searched for the secret and each seed that follows from it."""
    order: list[str] = []
    sent: list[bytes] = []
    real_send, real_random = wire.send, os.urandom

    def send(sock: Any, message: dict[str, Any], fds: Any = ()) -> None:
        order.append(str(message.get("op")))
        sent.append(repr(message).encode())
        real_send(sock, message, fds)

    def drawn(size: int) -> bytes:
        order.append("secret")
        return real_random(size)

    monkeypatch.setattr(wire, "send", send)
    monkeypatch.setattr(os, "urandom", drawn)
    path = arena.submission({"solution.py": HONEST})
    request = GradeRequest(path, "ops/topk", home=arena.home, probes=frozenset(), clocks=False)
    record = grade(request).grade
    assert record.secret is not None
    assert record.secret_commitment == hashlib.sha256(bytes.fromhex(record.secret)).hexdigest()
    assert commitment(bytes.fromhex(record.secret)) == record.secret_commitment
    drawn_at = order.index("secret")
    assert order.count("secret") == 1
    assert {"load", "model", "go"} <= set(order[:drawn_at])
    assert {"load", "model"}.isdisjoint(order[drawn_at:])
    plan = plan_cases(load("ops/topk").problem, Tier.SMALL, bytes.fromhex(record.secret))
    assert sorted(c.case.seed for c in record.cases) == sorted(c.seed for c in plan)
    text = b"".join(sent)
    for secret in (record.secret.encode(), *(str(c.seed).encode() for c in plan), *(b"%x" % c.seed for c in plan)):
        assert secret not in text


def test_a_fresh_secret_for_every_grade(arena: Arena) -> None:
    files = {"solution.py": HONEST}
    one, two = arena.grade(files), arena.grade(files)
    assert one.secret != two.secret
    assert Path(arena.last / "grade.json").is_file()
