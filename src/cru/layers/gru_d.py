"""GRU-D: a GRU whose inputs and state decay while observations are missing (Che et al. 2018)."""

import torch
from torch import Tensor, nn

from cru.functional.carry_forward import last_observation, since_last
from cru.shapes import Bool, Float


class GRUD(nn.Module):
    """GRU with trainable decay of the inputs toward their empirical mean, and of the state toward zero.

    With the time δ since the last observation of a feature, its mask m, its last value x' and its mean x̃:

        γ_x = exp(-max(0, w ⊙ δ + b)),  γ_h = exp(-max(0, W δ + b))
        x̂ = m ⊙ x + (1 - m) ⊙ (γ_x ⊙ x' + (1 - γ_x) ⊙ x̃)
        h' = GRU([x̂, m], γ_h ⊙ h)

    Each time point is a step, observed or not. Set the buffer ``mean`` to the means of the training set.

    Example:
        >>> from cru.layers.gru_d import GRUD
        >>> layer = GRUD(3, 8)
        >>> x, mask = torch.randn(2, 5, 3), torch.rand(2, 5, 3) < 0.5
        >>> layer(x, mask, torch.rand(2, 5).cumsum(1)).shape
        torch.Size([2, 5, 8])

    Args:
        input_size: number of features.
        hidden_size: size of the state.
        cell: any module from (batch, 2 × input) and (batch, state) to (batch, state). Default: `torch.nn.GRUCell`.
        device: device of the parameters.
        dtype: type of the parameters.
    """

    mean: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        cell: nn.Module | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        device = torch.device(device) if device is not None else None
        self.input_size, self.hidden_size = input_size, hidden_size
        self.register_buffer("mean", torch.zeros(input_size, device=device, dtype=dtype))
        self.input_rate = nn.Parameter(torch.empty(input_size, device=device, dtype=dtype).uniform_(0, 1))
        self.input_offset = nn.Parameter(torch.zeros(input_size, device=device, dtype=dtype))
        self.state_rate = nn.Linear(input_size, hidden_size, device=device, dtype=dtype)
        self.cell = cell or nn.GRUCell(2 * input_size, hidden_size, device=device, dtype=dtype)

    def impute(
        self,
        x: Float[Tensor, "batch time input"],
        mask: Bool[Tensor, "batch time input"],
        since: Float[Tensor, "batch time input"],
    ) -> Float[Tensor, "batch time input"]:
        """Compute x̂: the observed value, or else a weighted mean of the last value and the empirical mean.

        Args:
            x: the inputs.
            mask: True where observed.
            since: the time since the last observation of each feature.
        """
        decay = torch.exp(-torch.relu(self.input_rate * since + self.input_offset))
        last = last_observation(x, mask)
        return torch.where(mask, x, torch.lerp(self.mean, torch.where(last.known, last.value, self.mean), decay))

    def forward(
        self,
        x: Float[Tensor, "batch time input"],
        mask: Bool[Tensor, "batch time input"],
        times: Float[Tensor, "batch time"],
    ) -> Float[Tensor, "batch time state"]:
        """Return the state after each time. It starts at zero.

        Args:
            x: the inputs.
            mask: True where observed.
            times: absolute times, not decreasing.
        """
        since = since_last(times, mask).to(x.dtype)
        inputs = torch.cat([self.impute(x, mask, since), mask.to(x.dtype)], -1)
        decay = torch.exp(-torch.relu(self.state_rate(since)))
        state = x.new_zeros(x.shape[0], self.hidden_size)
        states = []
        for x_t, decay_t in zip(inputs.unbind(1), decay.unbind(1), strict=True):
            state = self.cell(x_t, decay_t * state)
            states.append(state)
        return torch.stack(states, 1)
