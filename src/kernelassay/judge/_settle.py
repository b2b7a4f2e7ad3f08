"""Settling a worker: every shape constructed and called once on throw-away data, before any secret exists.

A replay settles its worker in the same way, so that a submission which counts its calls counts the same ones.
"""

from __future__ import annotations

from kernelassay.decks import LoadedProblem, draw
from kernelassay.judge._request import Progress
from kernelassay.records import Tier
from kernelassay.session import Rig, Session

SETTLE_SEED = 0x5E771E
"""Seed of the throw-away calls; public, because nothing is decided by it."""


def settle(loaded: LoadedProblem, session: Session, tier: Tier, progress: Progress) -> dict[str, Rig]:
    """Construct every shape of the tier and call it once; the rigs by shape key.

    Raises:
        kernelassay.session.Trouble: a constructor or a call did not return.
    """
    shapes = loaded.problem.tier(tier)
    rigs = {}
    for number, shape in enumerate(shapes):
        progress.advance(number, len(shapes), shape.key)
        rig = Rig(session, shape)
        tensors = draw(loaded, shape, "nominal", SETTLE_SEED, SETTLE_SEED, rig.device)
        rig.set_weights(tensors.weights)
        rig.call(tensors.inputs)
        rigs[shape.key] = rig
    return rigs
