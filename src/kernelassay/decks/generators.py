"""Child generators: large draws can be threaded and stay reproducible.

The rule: a problem draws only from the generator that it is handed, or from children of it. Nothing is reseeded and
the global generator is never touched, so a case is a function of its seed alone.
"""

from __future__ import annotations

import torch

SEED_BOUND = 2**63 - 1
"""Seeds are drawn from [0, 2**63 - 1): what `torch.Generator.manual_seed` takes without a sign."""


def spawn(generator: torch.Generator, n: int) -> list[torch.Generator]:
    """Make `n` generators from `n` int64 seeds drawn from `generator`, on its device: one per expert, per layer, ….

    Args:
        generator: the parent; it advances by one draw of `n` numbers.
        n: how many children, 0 or more.
    """
    device = generator.device
    seeds = torch.randint(0, SEED_BOUND, (n,), generator=generator, dtype=torch.int64, device=device)
    return [torch.Generator(device=device).manual_seed(seed) for seed in seeds.tolist()]
