"""How much an attack hides from the judge's clock: the size of what remains possible."""

from __future__ import annotations

import math

from kernelassay.records import Grade


def gain_of(cheat: Grade, honest: Grade | None = None) -> float | None:
    """Share of a call's time that is hidden, geometric mean over shapes; negative: the attack costs time.

    Against the honest twin's outer clock where there is one, else as far as the grade itself bounds it (a call alone
    against a call of a long round). None where nothing was timed.
    """
    if honest is None:
        gains = [s.merged_gain for s in cheat.timing.shapes if s.merged_gain is not None]
        return _hidden([1.0 - gain for gain in gains])
    twins = {s.shape: s.outer for s in honest.timing.shapes if s.outer is not None}
    return _hidden(
        [
            s.outer.median_us / twins[s.shape].median_us
            for s in cheat.timing.shapes
            if s.outer is not None and s.shape in twins
        ]
    )


def _hidden(ratios: list[float]) -> float | None:
    usable = [ratio for ratio in ratios if ratio > 0]
    if not usable:
        return None
    return 1.0 - math.exp(math.fsum(math.log(ratio) for ratio in usable) / len(usable))
