"""GRU-ODE-Bayes: a GRU in continuous time, and an update that sees its error (De Brouwer et al. 2019)."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cru.layers.checks import check_count, require
from cru.layers.observation import ObservationModel
from cru.layers.ode import ODE
from cru.layers.ragged import Ragged, SplitGaps
from cru.shapes import Bool, Float


class GRUODEField(nn.Module):
    """dh/dt = (1 - z) ⊙ (g - h), the GRU's difference equation with the step taken to zero.

        r = σ(W_r h + b_r),  1 - z = σ(W_z h + b_z),  g = tanh(W_g (r ⊙ h) + b_g)

    A state in [-1, 1] stays there. No input enters between observations. (With 1 - z in place of z, W_z and b_z only
    change their sign.)
    """

    def __init__(
        self, size: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        device = torch.device(device) if device is not None else None
        self.gates = nn.Linear(size, 2 * size, device=device, dtype=dtype)
        self.candidate = nn.Linear(size, size, device=device, dtype=dtype)

    def forward(self, state: Float[Tensor, "batch state"]) -> Float[Tensor, "batch state"]:
        """dh/dt at h."""
        r, rate = torch.sigmoid(self.gates(state)).chunk(2, -1)
        return rate * (torch.tanh(self.candidate(r * state)) - state)


class Preparation(nn.Module):
    """f_prep: for each feature, ``units`` numbers from its value and its prediction, 0 where it is not observed.

    Each feature has weights of its own: it reads what the observation model says of it, such as (x, mean, log
    variance, standardised error), and nothing of the others.
    """

    def __init__(
        self,
        features: int,
        statistics: int,
        units: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        device = torch.device(device) if device is not None else None
        weight = torch.empty(features, statistics, units, device=device, dtype=dtype)
        self.weight = nn.Parameter(nn.init.normal_(weight, std=(2 / statistics) ** 0.5))
        self.bias = nn.Parameter(torch.full((features, 1, units), 0.1, device=device, dtype=dtype))

    def forward(
        self, statistics: Float[Tensor, "batch feature statistic"], mask: Bool[Tensor, "batch feature"]
    ) -> Float[Tensor, "batch prepared"]:
        """relu(W_j q_j + b_j) ⊙ m_j for every feature j, side by side."""
        prepared = torch.baddbmm(self.bias, statistics.transpose(0, 1), self.weight).relu().transpose(0, 1)
        return (prepared * mask[..., None]).flatten(1)


class BayesStates(NamedTuple):
    """States and raw predictions of the inputs, before and after the update at each time."""

    prior: Float[Tensor, "batch time state"]
    posterior: Float[Tensor, "batch time state"]
    predicted: Float[Tensor, "batch time parameters"]  # from the prior
    updated: Float[Tensor, "batch time parameters"]  # from the posterior


class GRUODEBayes(nn.Module):
    """A `GRUODEField` over each gap; at an observation h⁺ = GRU(f_prep(x, m, f_obs(h⁻)), h⁻).

    Where nothing is observed the state only moves with time. It starts at a trained value.

    Args:
        ode: the `ODE` of a `GRUODEField`.
        hidden_size: size of the state.
        observation: what a state says of the inputs, and how to read an error of it.
        f_obs: from (n, state) to (n, parameters of ``observation``).
        prep_units: units of the preparation network for each feature.
        longest: a longer gap is solved in as many equal parts as it needs.
        most_parts: but in no more than these.
    """

    def __init__(
        self,
        ode: ODE,
        hidden_size: int,
        observation: ObservationModel,
        f_obs: nn.Module,
        prep_units: int,
        longest: float = math.inf,
        most_parts: int = 16,
    ) -> None:
        super().__init__()
        require(longest > 0, f"`longest` must be positive, got {longest}.")
        check_count("most_parts", most_parts)
        self.most_parts = most_parts
        self.ode, self.observation, self.f_obs, self.longest = ode, observation, f_obs, longest
        size = observation.size
        self.f_prep = Preparation(size, observation.statistics, prep_units)
        self.cell = nn.GRUCell(size * prep_units, hidden_size)
        self.start = nn.Parameter(torch.zeros(hidden_size))

    def forward(
        self,
        x: Float[Tensor, "batch time feature"],
        mask: Bool[Tensor, "batch time feature"],
        delta: Float[Tensor, "batch time"],
        start: Float[Tensor, "batch state"] | None = None,
    ) -> BayesStates:
        """States and predictions of ``x`` at each time, from ``start`` if given; ``delta`` is the gap before it."""
        parts = SplitGaps.of(delta, self.longest, self.most_parts)
        x, mask, delta = parts.spread(x), parts.spread(mask), parts.delta
        observed = mask.any(-1)
        active = (delta > 0) | observed
        plan = Ragged.of(active | F.pad(active[:, :-1], (1, 0)))  # what follows the last update is after it
        moves, updates = (delta > 0).any(0).tolist(), observed.any(0).tolist()
        state = self.start.expand(x.shape[0], -1) if start is None else start.index_select(0, plan.order)
        prior, posterior = [], []
        columns = zip(*(plan.steps(part) for part in (x, mask, observed, delta)), strict=True)
        for t, (x_t, mask_t, seen, gap) in enumerate(columns):
            state = state[: len(gap)]
            if moves[t]:
                state = self.ode(state, gap)
            prior.append(state)
            if updates[t]:
                statistics = self.observation.compare(x_t, self.f_obs(state))
                updated = self.cell(self.f_prep(statistics, mask_t), state)
                state = torch.where(seen[:, None], updated, state)
            posterior.append(state)
        before, after = parts.take(plan.join(prior)), parts.take(plan.join(posterior))
        return BayesStates(before, after, self.f_obs(before), self.f_obs(after))
