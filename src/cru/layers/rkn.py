"""The Recurrent Kalman Network's layer, the discrete ancestor of the CRU."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cru.functional import DiscreteTransition, padding
from cru.layers.banded import BandedBasis
from cru.layers.filter import KalmanLayer

INITIAL_COUPLING = 0.2


class RKN(KalmanLayer):
    """Recurrent Kalman Network (Becker et al. 2019): one discrete transition a step, A = I + Σ_k α_k B_k.

    Gaps do not matter, unless ``time_aware``: then the gap to the next time is one more input of the network that
    chooses α (RKN-Δt). Takes the arguments of `CRU`. Every time point is a step, observed or not, except the tail of a
    ragged batch: from where on a series only repeats its time with nothing observed, nothing happens. (So a series must
    not be cut, nor streamed, right after a repeated time with nothing observed: only in one call is that a step.)

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
        super().__init__(
            input_size,
            hidden_size,
            num_basis=num_basis,
            bandwidth=bandwidth,
            coefficient_inputs=hidden_size + 1 if time_aware else None,
            time_scale=time_scale,
            noise_map=noise_map,
            variance_map=variance_map,
            device=device,
            dtype=dtype,
        )
        self.time_aware = time_aware
        self.basis = BandedBasis(
            num_basis,
            self.obs_size,
            bandwidth,
            upper_right=INITIAL_COUPLING,
            lower_left=-INITIAL_COUPLING,
            device=device,
            dtype=dtype,
        )

    def transition(self) -> DiscreteTransition:
        """A = I + Σ_k α_k B_k."""
        return DiscreteTransition(self._coefficients(), self.basis(), self.noise)

    def _moves(
        self, delta: Float[Tensor, "batch time"], observed: Bool[Tensor, "batch time"], continued: bool
    ) -> Bool[Tensor, "batch time"]:
        """A transition before every step but the first of all, and none in the padding."""
        moves = ~padding(delta, observed)
        moves[:, 0] &= continued
        return moves
