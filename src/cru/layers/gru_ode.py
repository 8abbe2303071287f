"""GRU-ODE-Bayes: a GRU in continuous time, with an update from the prediction error (De Brouwer et al. 2019)."""

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
    """The vector field dh/dt = (1 - z) ⊙ (g - h), which is the limit of the GRU for a step of length zero.

        r = σ(W_r h + b_r),  1 - z = σ(W_z h + b_z),  g = tanh(W_g (r ⊙ h) + b_g)

    A state in [-1, 1] stays in [-1, 1]. There is no input between observations. The network returns 1 - z instead of
    z, which only changes the sign of W_z and b_z.
    """

    def __init__(
        self, size: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        device = torch.device(device) if device is not None else None
        self.gates = nn.Linear(size, 2 * size, device=device, dtype=dtype)
        self.candidate = nn.Linear(size, size, device=device, dtype=dtype)

    def forward(self, state: Float[Tensor, "batch state"]) -> Float[Tensor, "batch state"]:
        """Compute dh/dt at h."""
        r, rate = torch.sigmoid(self.gates(state)).chunk(2, -1)
        return rate * (torch.tanh(self.candidate(r * state)) - state)


class Preparation(nn.Module):
    """The network f_prep, from value and prediction of each feature to ``units`` numbers, 0 where it is not observed.

    Each feature has its own weights. Its inputs are statistics of the observation model for this feature only, such
    as (x, mean, log variance, standardised error).
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
        """Compute relu(W_j q_j + b_j) ⊙ m_j for every feature j, and concatenate them."""
        prepared = torch.baddbmm(self.bias, statistics.transpose(0, 1), self.weight).relu().transpose(0, 1)
        return (prepared * mask[..., None]).flatten(1)


class BayesStates(NamedTuple):
    """States and raw predictions of the inputs, before and after the update at each time."""

    prior: Float[Tensor, "batch time state"]
    posterior: Float[Tensor, "batch time state"]
    predicted: Float[Tensor, "batch time parameters"]  # from the prior
    updated: Float[Tensor, "batch time parameters"]  # from the posterior


class GRUODEBayes(nn.Module):
    """A `GRUODEField` over each gap, and h⁺ = GRU(f_prep(x, m, f_obs(h⁻)), h⁻) at each observation.

    Where nothing is observed, only the differential equation changes the state. The initial state is trained.

    Args:
        ode: the `ODE` of a `GRUODEField`.
        hidden_size: size of the state.
        observation: distribution of the inputs given the state.
        f_obs: network from (n, state) to (n, parameters of ``observation``).
        prep_units: units of the preparation network for each feature.
        longest: the longest gap that is not divided into equal parts.
        most_parts: the largest number of parts of a gap.
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
        """Compute states and predictions of ``x`` at each time.

        Args:
            x: the inputs.
            mask: True where observed.
            delta: the gap before each time.
            start: the state to continue from.

        Returns:
            States and predictions before and after each update.
        """
        parts = SplitGaps.of(delta, self.longest, self.most_parts)
        x, mask, delta = parts.spread(x), parts.spread(mask), parts.delta
        observed = mask.any(-1)
        active = (delta > 0) | observed
        plan = Ragged.of(active | F.pad(active[:, :-1], (1, 0)))  # one step more: its prior is the last posterior
        has_gap, updates = (delta > 0).any(0).tolist(), observed.any(0).tolist()
        state = self.start.expand(x.shape[0], -1) if start is None else start.index_select(0, plan.order)
        prior, posterior = [], []
        columns = zip(*(plan.steps(part) for part in (x, mask, observed, delta)), strict=True)
        for t, (x_t, mask_t, seen, gap) in enumerate(columns):
            state = state[: len(gap)]
            if has_gap[t]:
                state = self.ode(state, gap)
            prior.append(state)
            if updates[t]:
                statistics = self.observation.compare(x_t, self.f_obs(state))
                updated = self.cell(self.f_prep(statistics, mask_t), state)
                state = torch.where(seen[:, None], updated, state)
            posterior.append(state)
        before, after = parts.take(plan.join(prior)), parts.take(plan.join(posterior))
        return BayesStates(before, after, self.f_obs(before), self.f_obs(after))
