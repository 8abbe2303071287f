"""The Recurrent Kalman Network's layer, the discrete ancestor of the CRU."""

from typing import Any

import torch

from cru.functional import DiscreteTransition
from cru.layers.banded import BandedBasis
from cru.layers.locally_linear import LocallyLinearLayer

INITIAL_COUPLING = 0.2


class RKN(LocallyLinearLayer):
    """Recurrent Kalman Network (Becker et al. 2019): one discrete transition a step, A = I + Σ_k α_k B_k.

    The length of a gap does not matter, unless ``time_aware``: then it is one more input of the network that chooses α
    (RKN-Δt). Takes the arguments of `CRU` but ``coupling``. Every new time is a step, observed or not, and `propagate`
    is one step, whatever the gap.

    Example:
        >>> output, state = RKN(2, 8, time_aware=True)(torch.randn(3, 5, 2), torch.arange(5.0))
        >>> output.shape
        torch.Size([3, 5, 8])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_basis: int = 15,
        bandwidth: int = 3,
        time_aware: bool = False,
        time_scale: float = 1.0,
        noise_map: str = "softplus",
        variance_map: str = "elu+1",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.time_aware = time_aware
        super().__init__(
            input_size,
            hidden_size,
            num_basis=num_basis,
            bandwidth=bandwidth,
            time_scale=time_scale,
            noise_map=noise_map,
            variance_map=variance_map,
            device=device,
            dtype=dtype,
        )

    @property
    def coefficient_inputs(self) -> int:
        """The state and, if time-aware, the gap to the next time."""
        return self.hidden_size + self.time_aware

    def _add_bases(self, where: dict[str, Any]) -> None:
        sizes = (self.num_basis, self.obs_size, self.bandwidth)
        self.basis = BandedBasis(*sizes, upper_right=INITIAL_COUPLING, lower_left=-INITIAL_COUPLING, **where)

    def transition(self) -> DiscreteTransition:
        """A = I + Σ_k α_k B_k."""
        return DiscreteTransition(self._coefficients(), self.basis(), self.noise)

    def extra_repr(self) -> str:
        """Sizes, as `torch.nn.GRU` shows them."""
        return f"{super().extra_repr()}, bandwidth={self.bandwidth}, time_aware={self.time_aware}"
