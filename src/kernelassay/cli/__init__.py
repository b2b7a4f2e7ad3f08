"""The command `assay`: thin, and the only package that prints.

Every command asks another package for data and shows it. With `--json` standard output carries exactly one JSON
document; progress, notes and errors always go to standard error.
"""

from kernelassay.cli._main import main

__all__ = ["main"]
