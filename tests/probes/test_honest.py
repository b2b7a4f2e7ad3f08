"""What every probe lets pass: the plain submission, and things that only look odd."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from kernelassay.probes import PROBES
from kernelassay.session import Session

from .conftest import LINEAR, STEP, Bench
from .toys import HONEST, linear

ENDS_ITS_WORKER = "fresh_process"
WITHOUT_STATE = {"live_state": "the problem has no state"}
WITHOUT_WEIGHTS = {"live_weights": "the problem has no weights"}


@pytest.fixture(scope="module", params=[LINEAR, STEP])
def worker(bench: Bench, request: pytest.FixtureRequest) -> Iterator[tuple[str, Session, dict[str, str]]]:
    """One worker with the honest submission: problem, session, global state before the import."""
    job = bench.job(request.param, HONEST[request.param])
    with Session(bench.sandbox, job) as session:
        session.start()
        before = session.globals()
        session.load()
        yield request.param, session, before


@pytest.mark.parametrize("probe", [name for name in PROBES if name != ENDS_ITS_WORKER])
def test_an_honest_submission_passes(bench: Bench, worker: tuple[str, Session, dict[str, str]], probe: str) -> None:
    problem, session, before = worker
    outcome = PROBES[probe][1](bench.on(bench.problems[problem], session, session.job, before))
    without = WITHOUT_STATE if problem == LINEAR else WITHOUT_WEIGHTS
    assert outcome.evidence == ()
    assert outcome.state == ("not_applicable" if probe in without else "passed"), outcome.note
    assert outcome.note == without.get(probe, "")


@pytest.mark.slow
def test_a_fresh_process_agrees_with_a_used_one(bench: Bench) -> None:
    outcome = bench.examine("fresh_process", LINEAR, HONEST[LINEAR])
    assert (outcome.state, outcome.evidence) == ("passed", ())


ODD = {
    "weights that are parameters": (
        "unmutated",
        re.sub(r'self.register_buffer\("(.)", (.*)\)', r"self.\1 = nn.Parameter(\2)", HONEST[LINEAR]),
    ),
    "weights packed by version": (
        "live_weights",
        linear(
            "key = self.w.data_ptr(), self.w._version, self.b._version\n"
            "if key not in MEMO:\n"
            "    MEMO[key] = self.w.clone(), self.b.clone()\n"
            "w, b = MEMO[key]\n"
            "return x @ w + b"
        ),
    ),
    "results from a pool that spares what is held": (
        "fresh_results",
        linear(
            "pool = RING.setdefault(0, [])\n"
            "free = [t for t in pool if sys.getrefcount(t) <= 3]\n"  # the pool, this list and the argument hold it
            "if not free:\n"
            "    pool.append(torch.empty(self.shape))\n"
            "    free = pool[-1:]\n"
            "return free[0].copy_(self.right(x))"
        ),
    ),
    "a thread that sleeps on": (
        "late_work",
        linear(
            "return self.right(x)",
            before="import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n",
        ),
    ),
    "its own order of summation each time": (
        "phase_blindness",
        linear("p = torch.randperm(x.shape[1])\nreturn x[:, p] @ self.w[p] + self.b"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD)
def test_odd_is_not_wrong(bench: Bench, name: str) -> None:
    probe, source = ODD[name]
    outcome = bench.examine(probe, LINEAR, source)
    assert (outcome.state, outcome.evidence) == ("passed", ()), outcome.note


@pytest.mark.slow
def test_changed_global_state_only_informs(bench: Bench) -> None:
    source = linear(
        "return self.right(x)", before="import os, torch\ntorch.set_num_threads(3)\nos.environ['KNOB'] = '1'\n"
    )
    outcome = bench.examine("global_state", LINEAR, source)
    assert outcome.evidence == ()
    assert {m.name for m in outcome.measured} == {"threads", "environment"}


@pytest.mark.slow
def test_a_sleeping_thread_is_counted(bench: Bench) -> None:
    outcome = bench.examine("late_work", LINEAR, ODD["a thread that sleeps on"][1])
    threads = next(m.value for m in outcome.measured if m.name == "threads")
    assert isinstance(threads, int)
    assert threads >= 2
