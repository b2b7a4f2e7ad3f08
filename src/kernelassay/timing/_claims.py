"""Whether the worker's clock owns up to the time that the judge's clock saw on the very same calls.

The claim never moves a time. It is held against the judge's clock only to tell a forged one: in an honest worker what
a further call adds to a round is what the clock around that call reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelassay.timing._plan import MIN_ROUNDS
from kernelassay.timing._statistics import median

FORGED_SHARE = 0.25
"""A clock that owns up to less than this share of the time per call is forged, or the work is done outside the calls.
Honest workers own up to 0.8 and more. [estimated]"""

BLATANT_SHARE = 0.02
"""The bound for rounds too noisy to give a time: noise would have to add fifty times what the calls take to each of
them, and to none of the short ones. [computed]"""


def claimed_share(
    rounds: Sequence[tuple[int, float]], claims: Sequence[float], nulls: Sequence[tuple[int, float]]
) -> float | None:
    """Share of the time per call that the worker's clock claims, at most.

    What counts is the time of a round that no call owns up to, by how much it grows between a quarter of the largest K
    and the largest K: what is paid once per round, by threads that spin after the last call say, cancels. A busy
    machine only ever adds such time, and a forged clock leaves it in every round, so the least round of the largest K
    decides: a conviction must not rest on rounds in which somebody else had the core.

    Args:
        rounds: (K, microseconds) by the judge's clock.
        claims: Microseconds by the worker's clock, one per round.
        nulls: (K, microseconds) of rounds without calls.

    Returns:
        None where the rounds are too few, or too short beside a round without calls, to tell.
    """
    top = max((k for k, _ in rounds), default=0)
    low = max(1, top // 4)
    told = {k: [claim for (n, _), claim in zip(rounds, claims, strict=True) if n == k] for k in (low, top)}
    nothing = {k: [total for n, total in nulls if n == k] for k in (low, top)}
    if low == top or not all(nothing.values()) or min(map(len, told.values())) < MIN_ROUNDS:
        return None
    unclaimed = {
        k: [total - claim - median(nothing[k]) for (n, total), claim in zip(rounds, claims, strict=True) if n == k]
        for k in (low, top)
    }
    claimed = median(told[top]) - median(told[low])
    spent = claimed + max(0.0, min(unclaimed[top]) - median(unclaimed[low]))
    if spent < max(nothing[top]):
        return None
    return claimed / spent
