"""MinGRU rollout in plain torch, one small operation after another: the baseline of cuda/mingru_rollout."""

import torch
from torch import Tensor, nn

HIDDEN = 256


class Model(nn.Module):
    """Plays `horizon` steps; agent, food and rng are updated in place."""

    def __init__(self, num_envs: int, horizon: int) -> None:
        super().__init__()
        self.w_enc = nn.Parameter(torch.empty(HIDDEN, 4))
        self.b_enc = nn.Parameter(torch.empty(HIDDEN))
        self.w_gru = nn.Parameter(torch.empty(3, 3 * HIDDEN, HIDDEN))
        self.w_a = nn.Parameter(torch.empty(4, HIDDEN))
        self.b_a = nn.Parameter(torch.empty(4))
        self.w_v = nn.Parameter(torch.empty(1, HIDDEN))
        self.b_v = nn.Parameter(torch.empty(1))

    @torch.no_grad()
    def run(self, agent: Tensor, food: Tensor, rng: Tensor, horizon: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        moves = torch.tensor([[0, -1], [0, 1], [-1, 0], [1, 0]], dtype=agent.dtype, device=agent.device)
        actions = torch.empty(horizon, len(rng), dtype=torch.uint8, device=agent.device)
        memory = [torch.zeros(len(rng), HIDDEN, device=agent.device) for _ in self.w_gru]
        for step in range(horizon):
            logits, value = self._policy(agent, food, memory)
            action = logits.argmax(1)
            actions[step] = action
            agent.add_(moves[action]).clamp_(0, 10)
            hit = (agent == food).all(1)
            if hit.any():
                first = (rng * 6364136223846793005 + 1) & (2**63 - 1)
                rng.copy_((first * 6364136223846793005 + 1) & (2**63 - 1))
                new = torch.stack((first % 11, rng % 11), dim=1)
                food.copy_(torch.where(hit[:, None], new, food))
        return actions, hit.float(), logits, value

    def _policy(self, agent: Tensor, food: Tensor, memory: list[Tensor]) -> tuple[Tensor, Tensor]:
        obs = torch.cat(((food - agent) / 11, agent / 10), dim=1)
        h = obs @ self.w_enc.t() + self.b_enc
        for layer, matrix in enumerate(self.w_gru):
            candidate, gate, highway = (h @ matrix.t()).chunk(3, dim=1)
            s = memory[layer]
            s += gate.sigmoid() * (candidate.tanh() - s)
            h = torch.lerp(h, s, highway.sigmoid())
        return h @ self.w_a.t() + self.b_a, (h @ self.w_v.t() + self.b_v).squeeze(1)
