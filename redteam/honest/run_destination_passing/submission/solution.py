"""Top-k, destination passing: fills `values` and `indices`."""

import numpy as np
from torch import Tensor


def run(x: Tensor, values: Tensor, indices: Tensor) -> None:
    """x (batch, n) float32; values (batch, k) float32 and indices (batch, k) int64 are written."""
    k = values.shape[1]
    for row, v, i in zip(x.numpy(), values.numpy(), indices.numpy(), strict=True):
        rest = row.copy()
        alive = np.ones(len(row), bool)
        for j in range(k):
            # -inf is an ordinary value, so what was taken is masked, not overwritten.
            places = np.flatnonzero(alive)
            best = places[rest[places].argmax()]
            alive[best] = False
            i[j], v[j] = best, row[best]
