"""The selection itself."""

import torch
from fastselect.tables import buckets_for
from torch import Tensor


class Selector:
    """Finds a bar that at least k reach, then ranks those."""

    def __init__(self, n: int, k: int) -> None:
        self.k, self.slack = k, buckets_for(n)

    def __call__(self, x: Tensor, start: list[float]) -> tuple[Tensor, Tensor]:
        rows = [self.row(row, at) for row, at in zip(x.tolist(), start, strict=True)]
        indices = torch.tensor(rows, dtype=torch.int64)
        return x.gather(1, indices), indices

    def row(self, row: list[float], at: float) -> list[int]:
        """Positions of the k largest, largest first."""
        found = [i for i, v in enumerate(row) if v > at]
        if len(found) < self.k:  # the guess was too high: everything is a candidate
            found = range(len(row))
        elif len(found) > self.k + self.slack:  # too low: the middle of the candidates is a better one
            middle = sorted(row[i] for i in found[: 2 * self.slack])[self.slack - 1]
            fewer = [i for i in found if row[i] > middle]
            found = fewer if len(fewer) >= self.k else found
        return sorted(found, key=lambda i: -row[i])[: self.k]
