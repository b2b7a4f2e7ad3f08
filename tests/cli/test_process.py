"""`assay` as a process: start-up, streams, signals, pipes."""

from __future__ import annotations

import os
import pty
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

_ASSAY = [sys.executable, "-m", "kernelassay"]
_TIMEOUT_S = 60


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_ASSAY, *arguments],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
        env={**os.environ, **environment},
    )


def test_help_answers_at_once_and_imports_nothing_heavy() -> None:
    code = textwrap.dedent(
        """
        import sys
        from kernelassay.cli import main
        assert main(["--help"]) == 0
        assert main(["grade", "--help"]) == 0
        heavy = {"torch", "numpy", "pydantic", "jinja2"} & set(sys.modules)
        assert not heavy, heavy
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    best = min(_cpu_seconds("--help") for _ in range(3))
    assert best < 0.6, f"assay --help took {best:.2f} s of processor time"


def _cpu_seconds(*arguments: str) -> float:
    """Processor time of one command: what it costs on a machine that has nothing else to do."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert _run(*arguments).returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_console_script_is_the_same_command() -> None:
    script = Path(sys.executable).with_name("assay")
    done = subprocess.run([script, "version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert done.stdout == _run("version").stdout
    assert _run("vers").returncode == 2


def test_a_reader_that_leaves_does_not_change_the_exit_code() -> None:
    with subprocess.Popen([*_ASSAY, "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(_TIMEOUT_S) == 0


def test_terminal_without_unicode_gets_escapes() -> None:
    done = _run("schema", "Bogus±", PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert "Bogus\\xb1" in done.stderr


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colour_on_a_terminal_only_and_never_with_no_color(no_color: str, coloured: bool) -> None:
    leader, follower = pty.openpty()
    environment = {**os.environ, "NO_COLOR": no_color, "TERM": "xterm-256color", "COLUMNS": "100"}
    code = (
        "from kernelassay.cli._out import show, styled; from kernelassay.cli._summary import STYLES; "
        "show(styled('word', STYLES['bad']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=follower, env=environment) as process:
        assert process.wait(_TIMEOUT_S) == 0
    os.close(follower)
    text = os.read(leader, 4096).decode()
    os.close(leader)
    assert ("\x1b[" in text) is coloured
    assert "word" in text


_SLOW = """
import signal, sys, time
from contextlib import contextmanager
from kernelassay.cli import _main, _misc

@contextmanager
def jail():
    try:
        print("open", flush=True)
        yield
    finally:
        time.sleep(0.2)
        print("closed", flush=True)

def slow() -> int:
    with jail():
        time.sleep(60)
    return 0

real = _main._app
def app():
    made = real()
    made.command(slow)
    return made
_main._app = app
sys.exit(_main.main(["slow", *sys.argv[1:]]))
"""


@pytest.fixture
def slow() -> Iterator[subprocess.Popen[str]]:
    """A command that holds a jail open for a minute; it has opened it already."""
    with subprocess.Popen(
        [sys.executable, "-c", _SLOW], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stop_signals_close_the_jail_and_exit_130(slow: subprocess.Popen[str], number: signal.Signals) -> None:
    slow.send_signal(number)
    out, err = slow.communicate(timeout=_TIMEOUT_S)
    assert slow.returncode == 130
    assert out == "closed\n"
    assert err.startswith(f"error: interrupted by {number.name}; finished grades are intact")
    assert "Traceback" not in err


_PROGRESS = """
import sys, time
from kernelassay.cli import _progress
from kernelassay.cli._progress import reporter
_progress._SILENT_S = float(sys.argv[1])
_progress._TICK_S = 0.05
with reporter("grading x") as progress:
    progress.phase("build")
    for number in range(40):
        progress.advance(number, 40, "case \\x1b[31m\\nevil")
        time.sleep(0.01)
"""


@pytest.mark.parametrize(("silent", "least", "most"), [("60", 0, 0), ("0.1", 1, 4)])
def test_plain_progress_is_silent_at_first_then_rare(silent: str, least: int, most: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRESS, silent], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
    )
    lines = done.stderr.splitlines()
    assert least <= len(lines) <= most
    assert done.stdout == "" and "\x1b" not in done.stderr
    assert all(line.startswith("· grading x: build") for line in lines)


def test_live_progress_on_a_terminal_leaves_no_trace_of_markup() -> None:
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    with subprocess.Popen([sys.executable, "-c", _PROGRESS, "0"], stderr=follower, env=environment) as process:
        assert process.wait(_TIMEOUT_S) == 0
    os.close(follower)
    text = os.read(leader, 65536).decode()
    os.close(leader)
    assert "grading x: build" in text
    assert "case \\x1b[31m\\nevil" in text
