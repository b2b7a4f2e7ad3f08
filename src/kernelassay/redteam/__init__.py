"""The red team: submissions that cheat, submissions that only look like it, and what the judge must say to each.

The corpus lies in `redteam/` of the repository. An exploit counts only if a naive judge accepts it, its twin without
the cheating lines is clean, and verdict and rule are those that its manifest names.
"""

from kernelassay.redteam._corpus import CorpusError, Entry, Kind, corpus_folder, load_corpus
from kernelassay.redteam._gain import gain_of
from kernelassay.redteam._manifest import Expect, Manifest
from kernelassay.redteam._naive import NaiveOpinion, ask_naive_judge
from kernelassay.redteam._report import RedteamReport, Row
from kernelassay.redteam._runner import run
from kernelassay.redteam._twin import is_marked, make_twin

__all__ = [
    "CorpusError",
    "Entry",
    "Expect",
    "Kind",
    "Manifest",
    "NaiveOpinion",
    "RedteamReport",
    "Row",
    "ask_naive_judge",
    "corpus_folder",
    "gain_of",
    "is_marked",
    "load_corpus",
    "make_twin",
    "run",
]
