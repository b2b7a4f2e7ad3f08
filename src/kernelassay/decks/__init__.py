"""Decks of problems: find, load, draw, compare, lint.

Problems are data (`decks/<deck>/<problem>/`); the code here is the same for all of them and runs only in trusted
processes.
"""

from kernelassay.decks._draw import draw, expect
from kernelassay.decks._eager import run_model
from kernelassay.decks._error import DeckError
from kernelassay.decks._freeze import FROZEN_FILE, freeze
from kernelassay.decks._lint import lint
from kernelassay.decks._loader import hash_files, load, problem_names
from kernelassay.decks._new import new_problem
from kernelassay.decks._problem import CaseTensors, LoadedProblem
from kernelassay.decks._reference import Reference
from kernelassay.decks._report import LegalCount, LintReport, MutantCount, NullCount, Survivor
from kernelassay.decks.comparators import WITHOUT_ORACLE, Comparison, Likeness, Mismatch, attribute, compare

__all__ = [
    "FROZEN_FILE",
    "WITHOUT_ORACLE",
    "CaseTensors",
    "Comparison",
    "DeckError",
    "LegalCount",
    "Likeness",
    "LintReport",
    "LoadedProblem",
    "Mismatch",
    "MutantCount",
    "NullCount",
    "Reference",
    "Survivor",
    "attribute",
    "compare",
    "draw",
    "expect",
    "freeze",
    "hash_files",
    "lint",
    "load",
    "new_problem",
    "problem_names",
    "run_model",
]
