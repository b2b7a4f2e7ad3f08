"""Options that several commands share, and where grades are kept."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from kernelassay.cli._errors import CommandError

Json = Annotated[bool, Parameter(name="--json", negative="")]
Quiet = Annotated[bool, Parameter(name=["--quiet", "-q"], negative="")]
Home = Annotated[Path | None, Parameter(name=["--home", "--out"])]
TierName = Literal["small", "full", "full+"]
LevelName = Literal["namespaces", "landlock", "none"]


def home_folder(chosen: Path | None) -> Path:
    """Where grades are kept: `chosen`, else the judge's default.

    Raises:
        CommandError: the path exists and is no folder.
    """
    from kernelassay import judge

    home = (chosen if chosen is not None else judge.default_home()).absolute()
    if home.exists() and not home.is_dir():
        raise CommandError(f"grades cannot be kept in {str(home)!r}: it is no folder", "choose another --home")
    return home


def home_option(chosen: Path | None) -> str:
    """The option that a next command needs to find the same grades, with a leading space; empty for the default."""
    return "" if chosen is None else f" --home {shlex.quote(str(chosen))}"
