"""Entry point: parse, run one command, turn every way it can end into an exit code.

Signals that ask the process to stop raise in the main thread, so each `with` on the way out closes its jail before
the process ends with 130.
"""

from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from cyclopts import App, CycloptsError

from kernelassay.cli import _clock, _deck, _demo, _device, _doctor, _gpu, _grade, _misc, _redteam
from kernelassay.cli._errors import CommandError, Failure, classify, failure_lines, fault_text
from kernelassay.cli._out import emit, note

_USAGE = 2
_FAULT = 5
_INTERRUPTED = 130
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _app() -> App:
    app = App(
        name="assay",
        help="The honest judge for GPU kernels that coding agents write.",
        help_epilogue="Exit codes: 0 clean or done, 1 the submission is at fault, 2 usage, 3 accused, "
        "4 a person has to look, 5 the judge or the machine failed, 130 interrupted.",
        version=_misc.version_text,
        version_flags=["--version"],
        help_format="plaintext",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    app.command(_grade.grade)
    app.command(_grade.reproduce)
    app.command(_grade.report)
    app.command(_clock.compare)
    app.command(_device.device)
    app.command(_gpu.app())
    app.command(_deck.app())
    app.command(_redteam.app())
    app.command(_demo.demo)
    app.command(_doctor.doctor)
    app.command(_misc.schema)
    app.command(_misc.version)
    return app


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _catch_signals() -> None:
    for number in _STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` and background jobs keep what they asked for
            signal.signal(number, _stop)


def _fail(failure: Failure, *, as_json: bool) -> int:
    for line in failure_lines(failure):
        note(line)
    if as_json:
        emit({"error": {"what": failure.what, "next": failure.next, "exit_code": failure.code}})
    return failure.code


def _usage(app: App, arguments: Sequence[str], error: CycloptsError) -> Failure:
    known = [word for word in arguments[:2] if not word.startswith("-")]
    command = " ".join(["assay", *_command_path(app, known)])
    return Failure(" ".join(str(error).split()), f"{command} --help", _USAGE)


def _command_path(app: App, words: Sequence[str]) -> list[str]:
    path: list[str] = []
    for word in words:
        if word not in app:
            break
        app = app[word]
        path.append(word)
    return path


def _run(arguments: Sequence[str]) -> int:
    app = _app()
    as_json = "--json" in itertools.takewhile(lambda word: word != "--", arguments)
    try:
        code = app(list(arguments))
    except CycloptsError as error:
        return _fail(_usage(app, arguments, error), as_json=as_json)
    except KeyboardInterrupt as stop:
        what = "interrupted" if not str(stop) else f"interrupted by {stop}"
        return _fail(
            Failure(f"{what}; finished grades are intact", "run the command again", _INTERRUPTED), as_json=as_json
        )
    except Exception as error:  # the last line of defence: everything becomes an exit code and a way to report it
        failure = classify(error)
        if failure is not None:
            return _fail(failure, as_json=as_json)
        note(fault_text(error))
        if as_json:
            what = f"fault of the judge: {type(error).__name__}: {error}"
            emit({"error": {"what": what, "next": "assay doctor --json", "exit_code": _FAULT}})
        return _FAULT
    return code if isinstance(code, int) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `assay` with `arguments` (default: those of the process) and return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # a terminal without Unicode gets escapes, not a traceback
            reconfigure(errors="backslashreplace")
    _catch_signals()
    return _run(sys.argv[1:] if arguments is None else arguments)


__all__ = ["CommandError", "main"]
