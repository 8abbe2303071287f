"""The Continuous Recurrent Unit."""

import math
from typing import Any

import torch

from cru.functional import ExpmTransition
from cru.layers.banded import BandedBasis
from cru.layers.checks import require
from cru.layers.locally_linear import LocallyLinearLayer


class CRU(LocallyLinearLayer):
    """Continuous Recurrent Unit: the state follows dz = A z dt + dβ between observations, A = Σ_k α_k(μ⁺) B_k (Sec. 3).

    Example:
        >>> layer = CRU(input_size=2, hidden_size=8)
        >>> x, times = torch.randn(3, 5, 2), torch.rand(3, 5).cumsum(1)
        >>> output, state = layer(x, times)
        >>> output.shape
        torch.Size([3, 5, 8])

    Args:
        input_size: features of an observation.
        hidden_size: size M of the state, even; a latent observation has D = M / 2 dimensions.
        num_basis: number K of basis matrices.
        bandwidth: entries |i - j| <= bandwidth of each D × D block are trained.
        coupling: where the two halves of the state start: 0, as in the paper, where nothing moves; else they turn into
            each other at this rate, in radians for a unit of scaled time.
        time_scale: multiplies the gaps.
        noise_map, variance_map: how the process noise and the observation variance are kept positive; see
            `cru.functional.positive`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_basis: int = 15,
        bandwidth: int = 3,
        coupling: float = 0.0,
        time_scale: float = 1.0,
        noise_map: str = "softplus",
        variance_map: str = "elu+1",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        require(math.isfinite(coupling), f"`coupling` must be finite, got {coupling!r}.")
        self.coupling = coupling
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

    def _add_bases(self, where: dict[str, Any]) -> None:
        sizes = (self.num_basis, self.obs_size, self.bandwidth)
        self.basis = BandedBasis(*sizes, upper_right=self.coupling, lower_left=-self.coupling, **where)

    def transition(self) -> ExpmTransition:
        """A = Σ_k α_k B_k."""
        return ExpmTransition(self._coefficients(), self.basis(), self.noise)

    def extra_repr(self) -> str:
        """Sizes, as `torch.nn.GRU` shows them."""
        return f"{super().extra_repr()}, bandwidth={self.bandwidth}, coupling={self.coupling}"
