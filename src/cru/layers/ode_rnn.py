"""ODE-RNN: a differential equation between observations and a gated update at each one (Rubanova et al. 2019)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cru.layers.ode import ODE
from cru.layers.ragged import Ragged, last_step, reversed_series
from cru.shapes import Bool, Float


class GRUUpdate(nn.Module):
    """A GRU step whose gates are networks with one hidden layer of ``units`` instead of linear maps.

    z = σ(Z [h, x]),  r = σ(R [h, x]),  n = tanh(N [r ⊙ h, x]),  h' = (1 - z) ⊙ n + z ⊙ h.
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
        """Return the state after an observation, as `torch.nn.GRUCell` does."""
        both = torch.cat([state, x], -1)
        z, r = torch.sigmoid(self.update(both)), torch.sigmoid(self.reset(both))
        candidate = torch.tanh(self.candidate(torch.cat([r * state, x], -1)))
        return torch.lerp(candidate.to(state.dtype), state, z.to(state.dtype))  # autocast reduces their precision


class ODERNN(nn.Module):
    """A layer that alternates between an `ODE` over each gap and a recurrent ``cell`` at each observation.

    Where nothing is observed, only the differential equation changes the state. For predictions at other times, add
    times without an observation.

    Args:
        ode: the dynamics between observations.
        cell: any module from (batch, input) and (batch, state) to (batch, state), such as `GRUUpdate`.
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
        """Return the state after each time.

        Args:
            x: the inputs.
            delta: the gap before each time.
            observed: True where anything is observed.
            start: the state before the first time. Default: zero.
        """
        plan = Ragged.of((delta > 0) | observed)
        has_gap, updates = (delta > 0).any(0).tolist(), observed.any(0).tolist()
        state = x.new_zeros(x.shape[0], self.hidden_size) if start is None else start.index_select(0, plan.order)
        states = []
        columns = zip(plan.steps(x), plan.steps(delta), plan.steps(observed), strict=True)
        for t, (x_t, gap, seen) in enumerate(columns):
            state = state[: len(gap)]
            if has_gap[t]:
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
        """Return the state at the first time, after all observations in reverse order.

        Each series starts at its last observation. Later times and padding have no influence. The arguments are those
        of `forward`.
        """
        steps, last = torch.arange(x.shape[1], device=x.device), last_step(observed)
        until = steps < last[:, None]  # the n-th gap in reverse order leads to step last - n
        gap = torch.where(until, reversed_series(F.pad(delta[:, 1:], (0, 1)), last - 1), 0.0)
        seen = reversed_series(observed, last) & (steps <= last[:, None])
        states: Tensor = self(reversed_series(x, last), F.pad(gap[:, :-1], (1, 0)), seen)
        return states[:, -1]
