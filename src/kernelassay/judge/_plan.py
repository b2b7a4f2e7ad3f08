"""Which cases a grade runs, with which seeds, in which order: a pure function of the problem and one secret.

The secret is drawn after the worker has settled, never enters its process, is committed to by its hash and is
revealed in the record, so anybody can run the same plan again.
"""

from __future__ import annotations

import hashlib
import hmac
import random

from kernelassay.records import Case, Problem, Role, Tier

SECRET_BYTES = 32


def derive(secret: bytes, *purpose: str) -> int:
    """A seed in [1, 2⁶³) for one purpose: HMAC-SHA256 of its names under the secret."""
    digest = hmac.new(secret, "\0".join(purpose).encode(), hashlib.sha256).digest()
    return int.from_bytes(digest[:8], "big") >> 1 or 1


def commitment(secret: bytes) -> str:
    """SHA-256 of the secret."""
    return hashlib.sha256(secret).hexdigest()


def weights_seed(problem: Problem, secret: bytes, shape: str) -> int:
    """Seed of the weights of a shape; 0 where the problem has none."""
    return derive(secret, "weights", shape) if problem.role(Role.WEIGHT) else 0


def plan_cases(problem: Problem, tier: Tier, secret: bytes) -> tuple[Case, ...]:
    """Every case on every shape of the tier, in a secret order."""
    cases = [
        Case(
            shape=shape.key,
            case=case.name,
            seed=derive(secret, "case", shape.key, case.name),
            weights_seed=weights_seed(problem, secret, shape.key),
        )
        for shape in problem.tier(tier)
        for case in problem.cases
    ]
    random.Random(derive(secret, "order")).shuffle(cases)
    return tuple(cases)
