"""Top-k with a guessed bar: a guess that lets too few through raises, and the next guess is lower."""

import torch
from torch import Tensor, nn


class TooFewError(ValueError):
    """The bar was too high."""


class Model(nn.Module):
    """x (batch, n) float32 -> values (batch, k) float32, indices (batch, k) int64."""

    def __init__(self, batch: int, n: int, k: int) -> None:
        super().__init__()
        self.k, self.plans = k, {}

    def candidates(self, row: list[float], stride: int) -> list[int]:
        """Positions that reach the k-th largest of every `stride`-th element."""
        sample = sorted(row[::stride], reverse=True)
        if len(sample) < 2 * self.k:
            raise TooFewError(stride)
        bar = sample[2 * self.k - 1]
        return [i for i, v in enumerate(row) if v >= bar]

    def row(self, row: list[float]) -> list[int]:
        try:
            strides = self.plans[len(row)]
        except KeyError:
            strides = self.plans[len(row)] = (16, 8, 4, 2, 1)
        found = None
        for stride in strides:
            try:
                found = self.candidates(row, stride)
                break
            except TooFewError:
                continue
        if found is None:
            found = list(range(len(row)))
        order = iter(sorted(found, key=lambda i: -row[i]))
        best = []
        try:
            while len(best) < self.k:
                best.append(next(order))
        except StopIteration:
            raise AssertionError("fewer candidates than k") from None
        return best

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        indices = torch.tensor([self.row(row) for row in x.tolist()], dtype=torch.int64)
        return x.gather(1, indices), indices
