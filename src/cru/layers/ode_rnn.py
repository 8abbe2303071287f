"""ODE-RNN: a differential equation between observations, a gated update at each (Rubanova et al. 2019)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cru.layers.ode import ODE
from cru.layers.ragged import Ragged, last_step, reversed_series
from cru.shapes import Bool, Float


class GRUUpdate(nn.Module):
    """A GRU step whose gates are networks with one hidden layer of ``units``, rather than single linear maps.

    z = σ(Z [h, x]),  r = σ(R [h, x]),  n = tanh(N [r ⊙ h, x]),  h' = (1 - z) ⊙ n + z ⊙ h
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        units: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        device = torch.device(device) if device is not None else None

        def network() -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(hidden_size + input_size, units, device=device, dtype=dtype),
                nn.Tanh(),
                nn.Linear(units, hidden_size, device=device, dtype=dtype),
            )

        self.update, self.reset, self.candidate = network(), network(), network()

    def forward(
        self, x: Float[Tensor, "batch input"], state: Float[Tensor, "batch state"]
    ) -> Float[Tensor, "batch state"]:
        """The state after an observation, as `torch.nn.GRUCell` gives it."""
        both = torch.cat([state, x], -1)
        z, r = torch.sigmoid(self.update(both)), torch.sigmoid(self.reset(both))
        candidate = torch.tanh(self.candidate(torch.cat([r * state, x], -1)))
        return torch.lerp(candidate.to(state.dtype), state, z.to(state.dtype))  # which autocast makes smaller


class ODERNN(nn.Module):
    """Alternate between an `ODE` over each gap and a recurrent ``cell`` at each observation.

    Where nothing is observed the state only moves with time, so times may be added to ask for a prediction.

    Args:
        ode: how the state moves between observations.
        cell: any module that maps (batch, input) and (batch, state) to (batch, state): `GRUUpdate`,
            `torch.nn.GRUCell`, ...
        hidden_size: size of the state.
    """

    def __init__(self, ode: ODE, cell: nn.Module, hidden_size: int) -> None:
        super().__init__()
        self.ode, self.cell, self.hidden_size = ode, cell, hidden_size

    def forward(
        self,
        x: Float[Tensor, "batch time input"],
        delta: Float[Tensor, "batch time"],
        observed: Bool[Tensor, "batch time"],
        start: Float[Tensor, "batch state"] | None = None,
    ) -> Float[Tensor, "batch time state"]:
        """The state after each time, from ``start`` (or zero); ``delta`` is the gap before it."""
        plan = Ragged.of((delta > 0) | observed)
        moves, updates = (delta > 0).any(0).tolist(), observed.any(0).tolist()
        state = x.new_zeros(x.shape[0], self.hidden_size) if start is None else start.index_select(0, plan.order)
        states = []
        columns = zip(plan.steps(x), plan.steps(delta), plan.steps(observed), strict=True)
        for t, (x_t, gap, seen) in enumerate(columns):
            state = state[: len(gap)]
            if moves[t]:
                state = self.ode(state, gap)
            if updates[t]:
                state = torch.where(seen[:, None], self.cell(x_t, state), state)
            states.append(state)
        return plan.join(states)

    def backward_in_time(
        self,
        x: Float[Tensor, "batch time input"],
        delta: Float[Tensor, "batch time"],
        observed: Bool[Tensor, "batch time"],
    ) -> Float[Tensor, "batch state"]:
        """The state at the first time, after all observations from the last to the first.

        It starts at each series' last observation: times after it, padding or not, have no influence.
        """
        steps, last = torch.arange(x.shape[1], device=x.device), last_step(observed)
        until = steps < last[:, None]  # the walk's n-th gap is to step last - n
        gap = torch.where(until, reversed_series(F.pad(delta[:, 1:], (0, 1)), last - 1), 0.0)
        seen = reversed_series(observed, last) & (steps <= last[:, None])
        states: Tensor = self(reversed_series(x, last), F.pad(gap[:, :-1], (1, 0)), seen)
        return states[:, -1]
