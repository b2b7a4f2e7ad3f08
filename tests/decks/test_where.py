"""Where an output is wrong, in a reader's words."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernelassay.decks.comparators._where import describe


def mask(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bool)


def test_nothing_wrong() -> None:
    assert describe(mask(3, 4)) == ""


def test_rows_and_columns() -> None:
    wrong = mask(16, 64)
    wrong[3, 60:] = True
    wrong[7, 60:] = True
    assert describe(wrong) == "rows 3 and 7 of 16, columns 60–63 of 64"


def test_one_element() -> None:
    wrong = mask(16, 64)
    wrong[3, 5] = True
    assert describe(wrong) == "row 3 of 16, column 5 of 64"


def test_everything() -> None:
    assert describe(~mask(2, 3)) == "all 2 rows, all 3 columns"


def test_stride() -> None:
    wrong = mask(4, 128)
    wrong[:, 5::32] = True
    assert describe(wrong) == "all 4 rows, columns 5, 37, … 101 (in steps of 32) of 128"


def test_many_ranges_are_counted() -> None:
    wrong = mask(1, 100)
    wrong[0, [1, 4, 8, 9, 20, 33, 70]] = True
    assert describe(wrong) == "the only row, columns 1, 4, 8–9, 20, … (7 in all) of 100"


def test_whole_tiles() -> None:
    wrong = mask(128, 192)
    wrong[64:128, 64:128] = True
    wrong[0:64, 128:192] = True
    assert describe(wrong) == "all 128 rows, columns 64–191 of 192; whole 64×64 tiles: (0, 2), (1, 1)"


def test_tile_that_is_nearly_whole() -> None:
    """In a wrong tile some numbers lie near the right one by chance."""
    wrong = mask(64, 64)
    wrong[32:, :32] = torch.rand(32, 32, generator=torch.Generator().manual_seed(0)) > 0.03
    assert describe(wrong).endswith("whole 32×32 tiles: (1, 0)")


def test_ragged_tile_at_the_edge() -> None:
    wrong = mask(40, 40)
    wrong[32:, 32:] = True
    assert describe(wrong).endswith("whole 32×32 tiles: (1, 1)")


@pytest.mark.parametrize(
    ("shape", "index", "text"),
    [
        ((), (), "the only element"),
        ((5,), (2,), "column 2 of 5"),
        ((2, 3, 4), (1, 0, 2), "axis 0: 1 of 2, row 0 of 3, column 2 of 4"),
    ],
)
def test_other_ranks(shape: tuple[int, ...], index: tuple[int, ...], text: str) -> None:
    wrong = mask(*shape)
    wrong[index] = True
    assert describe(wrong) == text
