"""MinGRU rollout: an 11×11 grid world driven by a recurrent policy, environment and policy in one call.

The rule: policy before move, at every step; the action is the first argmax of the logits; if any environment of the
batch hit its food in a step, every environment advances its generator twice, and only those that hit take the new food.
State tensors are changed in place by `Model.run`; every other function here leaves its arguments alone and returns the
final state beside the outputs. Everything is eager torch on the device of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

BOARD = 11
"""Cells per side."""
HIDDEN = 256
LAYERS = 3
ACTIONS = 4
MOVES = ((0, -1), (0, 1), (-1, 0), (1, 0))
"""(dx, dy) of actions 0…3."""
LCG = 6364136223846793005
"""Multiplier of Knuth's MMIX generator; the increment is 1."""
LOW_63 = 2**63 - 1
CHUNK = 4096
"""Decisions evaluated at once along a trace: about 30 MB per float64 intermediate."""

Tensors = dict[str, Tensor]
Shape = Mapping[str, int]


class Model(nn.Module):
    """Readable eager rollout; `num_envs` and `horizon` size nothing but the call."""

    def __init__(self, num_envs: int, horizon: int) -> None:
        super().__init__()
        self.w_enc = nn.Parameter(torch.empty(HIDDEN, 4))
        self.b_enc = nn.Parameter(torch.empty(HIDDEN))
        self.w_gru = nn.Parameter(torch.empty(LAYERS, 3 * HIDDEN, HIDDEN))
        self.w_a = nn.Parameter(torch.empty(ACTIONS, HIDDEN))
        self.b_a = nn.Parameter(torch.empty(ACTIONS))
        self.w_v = nn.Parameter(torch.empty(1, HIDDEN))
        self.b_v = nn.Parameter(torch.empty(1))

    def run(self, agent: Tensor, food: Tensor, rng: Tensor, horizon: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Play `horizon` steps; returns (actions, rewards, logits, value), the last three of the last step.

        agent, food: (N, 2) int32 as (x, y); rng: (N,) int64; all three are updated in place.
        """
        state = {"agent": agent, "food": food, "rng": rng}
        result = _rollout(Variant(), dict(self.named_parameters()), state, {"horizon": horizon})
        for name, tensor in state.items():
            tensor.copy_(result[name])
        return result["actions"], result["rewards"], result["logits"], result["value"]


# --- the world ----------------------------------------------------------------------------------------------------


def observe(agent: Tensor, food: Tensor) -> Tensor:
    """(…, 2) int32 twice → (…, 4) float64: offset to the food over 11, position over 10."""
    return torch.cat(((food - agent).double() / BOARD, agent.double() / (BOARD - 1)), dim=-1)


def advance(rng: Tensor) -> Tensor:
    """One step of the 63-bit generator; int64 products wrap modulo 2⁶⁴, the mask takes them modulo 2⁶³."""
    return (rng * LCG + 1) & LOW_63


def move(agent: Tensor, action: Tensor) -> Tensor:
    """Position after an action 0…3, clamped to the board."""
    steps = torch.tensor(MOVES, dtype=agent.dtype, device=agent.device)
    return (agent + steps[action.long()]).clamp_(0, BOARD - 1)


def respawn(food: Tensor, rng: Tensor, hit: Tensor) -> tuple[Tensor, Tensor]:
    """New food where hit; generators advance everywhere if anybody hit."""
    first = advance(rng)
    second = advance(first)
    new = torch.stack((first % BOARD, second % BOARD), dim=-1).to(food.dtype)
    return torch.where(hit[:, None], new, food), torch.where(hit.any(), second, rng)


# --- the policy ---------------------------------------------------------------------------------------------------


def matmul(a: Tensor, w: Tensor) -> Tensor:
    """a · wᵀ in the precision of its operands."""
    return a @ w.t()


def mix(
    z: Tensor,
    h: Tensor,
    s: Tensor,
    candidate: Callable[[Tensor], Tensor] = torch.tanh,
    gate: Callable[[Tensor], Tensor] = torch.sigmoid,
) -> tuple[Tensor, Tensor]:
    """One MinGRU cell: s ← s + σ(z_g)(tanh(z_h) - s); h ← σ(z_p)s + (1 - σ(z_p))h."""
    z_h, z_g, z_p = z.chunk(3, dim=-1)
    s = s + gate(z_g) * (candidate(z_h) - s)
    p = gate(z_p)
    return p * s + (1 - p) * h, s


class Variant(NamedTuple):
    """The parts that an honest pipeline may round and that a mutant gets wrong."""

    product: Callable[[Tensor, Tensor], Tensor] = matmul
    edit: Callable[[Tensors], Tensors] = dict
    cell: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = mix
    store: Callable[[Tensor], Tensor] = lambda s: s
    look: Callable[[list[tuple[Tensor, Tensor]]], Tensor] = lambda seen: observe(*seen[-1])
    choose: Callable[[Tensor, int], Tensor] = lambda logits, step: logits.argmax(-1)
    move: Callable[[Tensor, Tensor], Tensor] = move
    respawn: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = respawn
    dtype: torch.dtype = torch.float32


def _rollout(variant: Variant, weights: Tensors, inputs: Tensors, shape: Shape) -> Tensors:
    """Outputs and final state of one call."""
    w = {name: t.detach().to(variant.dtype) for name, t in variant.edit(weights).items()}
    agent, food, rng = inputs["agent"], inputs["food"], inputs["rng"]
    memory = [w["b_enc"].new_zeros(len(rng), HIDDEN) for _ in w["w_gru"]]
    seen, actions = [], []
    for step in range(shape["horizon"]):
        seen = [*seen[-1:], (agent, food)]
        h = variant.product(variant.look(seen).to(variant.dtype), w["w_enc"]) + w["b_enc"]
        for layer, matrix in enumerate(w["w_gru"]):
            h, s = variant.cell(variant.product(h, matrix), h, memory[layer])
            memory[layer] = variant.store(s)
        logits = variant.product(h, w["w_a"]) + w["b_a"]
        value = (variant.product(h, w["w_v"]) + w["b_v"]).squeeze(-1)
        action = variant.choose(logits, step)
        agent = variant.move(agent, action)
        hit = (agent == food).all(-1)
        food, rng = variant.respawn(food, rng, hit)
        actions.append(action.to(torch.uint8))
    return {
        "actions": torch.stack(actions), "rewards": hit.float(), "logits": logits.float(), "value": value.float(),
        "agent": agent.clone(), "food": food.clone(), "rng": rng.clone(),
    }  # fmt: skip


# --- weights, inputs, oracle --------------------------------------------------------------------------------------


def make_weights(shape: Shape, generator: torch.Generator) -> Tensors:
    """Weights under which the gates leave their linear range and all four actions are taken; no shape key matters.

    The action head is a noisy linear readout of the direction to the food. Its bias removes the mean logits of 512
    environments over 6 steps of random actions.
    """

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    w = {
        "w_enc": 1.5 * normal(HIDDEN, 4),
        "b_enc": 0.3 * normal(HIDDEN),
        "w_gru": 2 / 16 * normal(LAYERS, 3 * HIDDEN, HIDDEN),
    }
    to_offset = torch.tensor([[0.0, -1, 0, 0], [0, 1, 0, 0], [-1, 0, 0, 0], [1, 0, 0, 0]])
    w["w_a"] = 24 * to_offset @ w["w_enc"].t() / HIDDEN + 0.25 / 16 * normal(ACTIONS, HIDDEN)
    w["b_a"] = torch.zeros(ACTIONS)
    w["w_v"] = normal(1, HIDDEN) / 16
    w["b_v"] = 0.1 * normal(1)
    start = make_inputs({"num_envs": 512}, generator)
    start["actions"] = torch.randint(ACTIONS, (6, 512), generator=generator).to(torch.uint8)
    logits, _ = _policy_along(w, *_replay(start)[:2])
    w["b_a"] = 0.05 * normal(ACTIONS) - logits.mean((0, 1)).float()
    return w


def make_inputs(shape: Shape, generator: torch.Generator) -> Tensors:
    """Uniform boards; generators uniform below 2⁶²."""
    n = shape["num_envs"]
    agent, food = torch.randint(BOARD, (2, n, 2), generator=generator, dtype=torch.int32).unbind()
    return {
        "agent": agent.clone(),
        "food": food.clone(),
        "rng": torch.randint(2**62, (n,), generator=generator, dtype=torch.int64),
    }


def oracle(weights: Tensors, inputs: Tensors, *, shape: Shape) -> Tensors:
    """Float64 rollout along its own decisions, for show: near-ties make it one of several right answers."""
    return _rollout(Variant(dtype=torch.float64), weights, inputs, shape)


def _replay(start: Tensors) -> tuple[Tensor, Tensor, Tensors]:
    """The world driven by `start["actions"]`, (T, N) in 0…3.

    Returns agent and food before each step, (T, N, 2) each, and what is exact after the last: state and rewards.
    """
    agent, food, rng = start["agent"], start["food"], start["rng"]
    agents, foods = [], []
    for action in start["actions"]:
        agents.append(agent)
        foods.append(food)
        agent = move(agent, action)
        hit = (agent == food).all(-1)
        food, rng = respawn(food, rng, hit)
    return torch.stack(agents), torch.stack(foods), {"agent": agent, "food": food, "rng": rng, "rewards": hit.float()}


def _policy_along(weights: Tensors, agents: Tensor, foods: Tensor) -> tuple[Tensor, Tensor]:
    """Float64 logits (T, N, 4) and values (T, N) along a known trajectory.

    All observations are known, so each layer's products are taken for every step at once and only the memory is
    sequential; environments do not meet in the policy, so they go in slices. The encoder is linear, so the products of
    the first layer are taken from the four numbers of the observation.
    """
    w = {name: t.double() for name, t in weights.items()}
    folded, offset = w["w_gru"][0] @ w["w_enc"], w["w_gru"][0] @ w["b_enc"]
    logits, values = [], []
    width = max(1, CHUNK // len(agents))
    for agent, food in zip(agents.split(width, 1), foods.split(width, 1), strict=True):
        obs = observe(agent, food)
        h = obs @ w["w_enc"].t() + w["b_enc"]
        for layer, matrix in enumerate(w["w_gru"]):
            z = h @ matrix.t() if layer else obs @ folded.t() + offset
            z_h, z_g, z_p = z.chunk(3, dim=-1)
            candidate, gate, p = z_h.tanh_(), z_g.sigmoid_(), z_p.sigmoid_()
            s = torch.zeros_like(h[0])
            for c, g, highway, row in zip(candidate, gate, p, h, strict=True):
                s = torch.lerp(s, c, g)
                row.lerp_(s, highway)
        logits.append(h @ w["w_a"].t() + w["b_a"])
        values.append((h @ w["w_v"].t() + w["b_v"]).squeeze(-1))
    return torch.cat(logits, 1), torch.cat(values, 1)


def along_trace(weights: Tensors, inputs: Tensors, actual: Tensors, *, shape: Shape) -> dict[str, dict[str, Tensors]]:
    """Facts about a submission's rollout along its own actions.

    Decisions and logits are measured in units of s = rms(logits - their mean over actions) of the whole trajectory,
    values in units of their rms there: the last step of a single environment may be small by chance. An environment
    that sees what it saw a step before (an agent that runs against the edge) is not asked anew: it does not count.
    """
    legal = actual["actions"] < ACTIONS
    agents, foods, exact = _replay({**inputs, "actions": actual["actions"].clamp(max=ACTIONS - 1)})
    logits, values = _policy_along(weights, agents, foods)
    chosen = actual["actions"].clamp(max=ACTIONS - 1).long().unsqueeze(-1)
    unit = (logits - logits.mean(-1, keepdim=True)).square().mean().sqrt()
    shortfall = logits.amax(-1) - logits.gather(-1, chosen).squeeze(-1)
    anew = torch.ones_like(legal)
    anew[1:] = (agents[1:] != agents[:-1]).any(-1) | (foods[1:] != foods[:-1]).any(-1)
    return {
        "exact": {name: {"expected": tensor} for name, tensor in exact.items()},
        "decisions": {"actions": {"legal": legal, "shortfall": shortfall, "unit": unit, "counted": anew}},
        "numbers": {
            "logits": {"expected": logits[-1], "scale": unit},
            "value": {"expected": values[-1], "scale": values.square().mean().sqrt()},
        },
    }


# --- cases: edits in place, before the tensors go to the device ---------------------------------------------------


def _nominal(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    pass


def _corners(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    """Agents in the four corners: clamping."""
    inputs["agent"].copy_((BOARD - 1) * torch.randint(2, inputs["agent"].shape, generator=generator))


def _food_under_agent(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    inputs["food"].copy_(inputs["agent"])


def _large_rng(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    """Seeds within 2¹⁶ of 2⁶², on both sides."""
    inputs["rng"].copy_(torch.randint(2**62 - 2**16, 2**62 + 2**16, inputs["rng"].shape, generator=generator))


def _saturated_gates(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    weights["w_gru"].mul_(2)


def _zero_gru(weights: Tensors, inputs: Tensors, shape: Shape, generator: torch.Generator) -> None:
    """Gates ½, candidate 0."""
    weights["w_gru"].zero_()


CASES: dict[str, Callable[[Tensors, Tensors, Shape, torch.Generator], None]] = {
    "nominal": _nominal,
    "corners": _corners,
    "food_under_agent": _food_under_agent,
    "large_rng": _large_rng,
    "saturated_gates": _saturated_gates,
    "zero_gru": _zero_gru,
}


# --- pipelines: what honest kernels do, and the same with one part wrong ------------------------------------------

Pipeline = Callable[..., Tensors]


def _pipeline(variant: Variant, weights: Tensors, inputs: Tensors, *, shape: Shape) -> Tensors:
    return _rollout(variant, weights, inputs, shape)


def _of(**parts: object) -> Pipeline:
    return partial(_pipeline, Variant(**parts))  # type: ignore[arg-type]


def _operands(change: Callable[[Tensor], Tensor]) -> Pipeline:
    """Both operands of every product rounded, accumulation in float32."""
    return _of(product=lambda a, w: matmul(change(a), change(w)))


def _half(t: Tensor) -> Tensor:
    return t.half().float()


def _bf16(t: Tensor) -> Tensor:
    return t.bfloat16().float()


def _tf32(t: Tensor) -> Tensor:
    """Significand rounded to 11 bits, half away from zero; the exponent keeps its range."""
    return (t.contiguous().view(torch.int32) + 0x1000 & -0x2000).view(torch.float32)


def _bf16x2(a: Tensor, w: Tensor) -> Tensor:
    """Each operand as the sum of two bfloat16 numbers, the product of the low parts left out."""
    a_high, w_high = _bf16(a), _bf16(w)
    return matmul(a_high, w_high) + matmul(a_high, _bf16(w - w_high)) + matmul(_bf16(a - a_high), w_high)


LEGAL: dict[str, Pipeline] = {
    "fp32": _of(),
    "fp16_operands": _operands(_half),
    "tf32": _operands(_tf32),
    "bf16x2_split": _of(product=_bf16x2),
    "fp16_operands_fp16_state": _of(product=lambda a, w: matmul(_half(a), _half(w)), store=_half),
}


def _gates_swapped(z: Tensor, h: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    z_h, z_g, z_p = z.chunk(3, dim=-1)
    return mix(torch.cat((z_h, z_p, z_g), dim=-1), h, s)


def _state_gate_inverted(z: Tensor, h: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    z_h, z_g, z_p = z.chunk(3, dim=-1)
    return mix(torch.cat((z_h, -z_g, z_p), dim=-1), h, s)


def _highway_from_old_state(z: Tensor, h: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    p = z.chunk(3, dim=-1)[2].sigmoid()
    return p * s + (1 - p) * h, mix(z, h, s)[1]


def _no_highway(z: Tensor, h: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    s = mix(z, h, s)[1]
    return s, s


def _no_state(z: Tensor, h: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """The candidate itself in the place of the state."""
    z_h, _, z_p = z.chunk(3, dim=-1)
    p = z_p.sigmoid()
    return p * z_h.tanh() + (1 - p) * h, s


def _scaled_rows(change: Callable[[Tensor, Tensor], Tensor], w: Tensors) -> Tensors:
    """All matrices through `change(rows, largest magnitude of each row)`."""
    matrices = ("w_enc", "w_gru", "w_a", "w_v")
    return {**w, **{name: change(w[name], w[name].abs().amax(-1, keepdim=True)) for name in matrices}}


def _without_position(seen: list[tuple[Tensor, Tensor]]) -> Tensor:
    obs = observe(*seen[-1])
    obs[..., 2:] = 0
    return obs


def _random_action(logits: Tensor, step: int) -> Tensor:
    """Any action, the same ones in every run."""
    generator = torch.Generator(logits.device).manual_seed(step)
    return torch.randint(ACTIONS, logits.shape[:1], generator=generator)


def _false_trace(weights: Tensors, inputs: Tensors, *, shape: Shape) -> Tensors:
    """True results under a constant trace."""
    result = _rollout(Variant(), weights, inputs, shape)
    return {**result, "actions": torch.ones_like(result["actions"])}


def _no_rewards(weights: Tensors, inputs: Tensors, *, shape: Shape) -> Tensors:
    result = _rollout(Variant(), weights, inputs, shape)
    return {**result, "rewards": torch.zeros_like(result["rewards"])}


def _wrapping_move(agent: Tensor, action: Tensor) -> Tensor:
    steps = torch.tensor(MOVES, dtype=agent.dtype, device=agent.device)
    return (agent + steps[action.long()]) % BOARD


def _respawn_always(food: Tensor, rng: Tensor, hit: Tensor) -> tuple[Tensor, Tensor]:
    return respawn(food, rng, hit)[0], advance(advance(rng))


def _respawn_once(food: Tensor, rng: Tensor, hit: Tensor) -> tuple[Tensor, Tensor]:
    return respawn(food, rng, hit)[0], torch.where(hit.any(), advance(rng), rng)


def _respawn_hit_only(food: Tensor, rng: Tensor, hit: Tensor) -> tuple[Tensor, Tensor]:
    return respawn(food, rng, hit)[0], torch.where(hit, advance(advance(rng)), rng)


def _respawn_one_draw(food: Tensor, rng: Tensor, hit: Tensor) -> tuple[Tensor, Tensor]:
    new = (advance(rng) % BOARD).to(food.dtype)
    return torch.where(hit[:, None], new[:, None], food), respawn(food, rng, hit)[1]


def _respawn_swapped(food: Tensor, rng: Tensor, hit: Tensor) -> tuple[Tensor, Tensor]:
    new, rng = respawn(food, rng, hit)
    return torch.where(hit[:, None], new.flip(-1), food), rng


MUTANTS: dict[str, Pipeline] = {
    # nonlinearity
    "no_tanh": _of(cell=partial(mix, candidate=lambda z: z)),
    "linear_gates": _of(cell=partial(mix, gate=lambda z: 0.5 + z / 4)),
    "clamped_linear_gates": _of(cell=partial(mix, gate=lambda z: (0.5 + z / 4).clamp(0, 1))),
    "hard_sigmoid": _of(cell=partial(mix, gate=nn.functional.hardsigmoid)),
    "constant_gates": _of(cell=partial(mix, gate=lambda z: torch.full_like(z, 0.5))),
    "relu_candidate": _of(cell=partial(mix, candidate=torch.relu)),
    "sigmoid_candidate": _of(cell=partial(mix, candidate=torch.sigmoid)),
    # recurrence
    "gates_swapped": _of(cell=_gates_swapped),
    "state_gate_inverted": _of(cell=_state_gate_inverted),
    "highway_from_old_state": _of(cell=_highway_from_old_state),
    "no_highway": _of(cell=_no_highway),
    "no_state": _of(cell=_no_state),
    "state_reset": _of(store=torch.zeros_like),
    "two_layers": _of(edit=lambda w: {**w, "w_gru": w["w_gru"][:2]}),
    "layer_0_for_all": _of(edit=lambda w: {**w, "w_gru": w["w_gru"][:1].expand_as(w["w_gru"])}),
    # heads and observation
    "no_encoder_bias": _of(edit=lambda w: {**w, "b_enc": torch.zeros_like(w["b_enc"])}),
    "no_action_bias": _of(edit=lambda w: {**w, "b_a": torch.zeros_like(w["b_a"])}),
    "stale_observation": _of(look=lambda seen: observe(*seen[0])),
    "observation_over_10": _of(look=lambda seen: torch.cat((seen[-1][1] - seen[-1][0], seen[-1][0]), -1).double() / 10),
    "observation_without_position": _of(look=_without_position),
    "constant_action": _of(choose=lambda logits, step: torch.ones_like(logits[:, 0], dtype=torch.int64)),
    "constant_trace": _false_trace,
    "random_policy": _of(choose=_random_action),
    # environment
    "axes_swapped": _of(move=lambda agent, action: move(agent, action ^ 2)),
    "wrap_around": _of(move=_wrapping_move),
    "no_rewards": _no_rewards,
    "lcg_every_step": _of(respawn=_respawn_always),
    "lcg_once": _of(respawn=_respawn_once),
    "lcg_hit_only": _of(respawn=_respawn_hit_only),
    "food_from_one_draw": _of(respawn=_respawn_one_draw),
    "food_axes_swapped": _of(respawn=_respawn_swapped),
    # precision
    "fp8_weights": _of(edit=partial(_scaled_rows, lambda w, _: w.to(torch.float8_e4m3fn).float())),
    "int8_weights": _of(edit=partial(_scaled_rows, lambda w, top: (w / top * 127).round() * top / 127)),
    "bf16_operands": _operands(_bf16),
    "bf16_weights": _of(edit=partial(_scaled_rows, lambda w, _: _bf16(w))),
    "bf16_state": _of(store=_bf16),
}
