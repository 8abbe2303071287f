"""The paired CRU: damped rotations, for which nothing of the covariance is dropped."""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from cru import native
from cru.functional import Belief, gaps, positive
from cru.functional.paired import Hop, filter_paired, hop, predict_paired
from cru.functional.paired_scan import filter_paired_scan, smooth_paired
from cru.layers.checks import as_mask, check_series, observed_values, require
from cru.layers.filter import KalmanLayer

SLOWEST, FASTEST = 1e-3, 1.0  # decay rates at the start: from the whole of a series to one gap
HIGHEST = math.pi / 2  # frequency at the start, in radians per unit of time


class PairedCRU(KalmanLayer):
    """Every (upper, lower) pair of the state follows a damped rotation of its own between observations:

    d(u, l) = [[-γ, ω], [-ω, -γ]] (u, l) dt + noise. The three vectors of the covariance are then exact, a step costs
    O(M), the state can oscillate, and there is an exact smoother. Channels mix between layers: stack them.

    Example:
        >>> layer = PairedCRU(2, 8)
        >>> output, state = layer(torch.randn(3, 5, 2), torch.arange(5.0))
        >>> output.shape
        torch.Size([3, 5, 8])

    Args:
        input_size, hidden_size, time_scale, noise_map, variance_map: as for `CRU`; there are hidden_size / 2 pairs.
    """

    def __init__(self, input_size: int, hidden_size: int, **options: Any) -> None:
        super().__init__(input_size, hidden_size, **options)
        self.decay_map = positive("softplus")
        rates = torch.logspace(math.log10(SLOWEST), math.log10(FASTEST), self.obs_size)
        self.raw_decay = nn.Parameter(self.decay_map.inverse(rates).to(self.raw_noise))
        # frequencies in another order than the rates, so that each rate meets slow and fast rotations
        order = torch.arange(self.obs_size) * _coprime(self.obs_size) % self.obs_size
        self.frequency = nn.Parameter(torch.linspace(0, HIGHEST, self.obs_size)[order].to(self.raw_noise))

    @property
    def decay(self) -> Float[Tensor, " obs"]:
        """γ of each pair."""
        return self.decay_map.forward(self.raw_decay)

    def smooth(
        self, y: Tensor, y_var: Tensor, times: Tensor, mask: Tensor | None = None, at: Tensor | None = None
    ) -> Belief:
        """Beliefs given the *whole* series, at ``times``, or at the times ``at`` that you ask for.

        ``y``, ``y_var``, ``times`` and ``mask`` are those of `filter`; ``at`` is (query,) or (batch, query), in any
        order, not before the first time of its series.
        """
        check_series("y", y, self.obs_size)
        observed = as_mask(mask, y)
        y = observed_values("y", y.to(self.dtype), observed)
        y_var = torch.where(observed, y_var.to(self.dtype), 1.0)
        times = times.expand(y.shape[:2])
        if at is None:
            return self._smoothed(y, y_var, times, observed)
        at = at.expand(len(y), -1)
        require(
            bool((at >= times[:, :1]).all()),
            f"`at` must not lie before the first time of its series, got {at.min().item()}.",
        )
        every = torch.cat([times, at.to(times.dtype)], 1)
        order = every.argsort(dim=1, stable=True)
        blank = y.new_zeros(len(y), at.shape[1], self.obs_size)

        def placed(seen: Tensor, asked: Tensor) -> Tensor:
            return torch.cat([seen, asked], 1).gather(1, order[..., None].expand(-1, -1, self.obs_size))

        known = placed(observed, torch.zeros_like(blank, dtype=torch.bool))
        belief = self._smoothed(placed(y, blank), placed(y_var, blank + 1), every.gather(1, order), known)
        where = order.argsort(dim=1)[:, times.shape[1] :]
        rows = torch.arange(len(y), device=y.device)[:, None]
        return Belief(*(field[rows, where] for field in belief[:4]))._replace(time=at)

    def _smoothed(self, y: Tensor, y_var: Tensor, times: Tensor, observed: Tensor) -> Belief:
        prior, posterior = self._filtered(y, y_var, times, observed, None)
        delta = gaps(times, None, self.time_scale, self.dtype)
        return smooth_paired(prior, posterior, self._hops(delta))

    def _hops(self, delta: Float[Tensor, "batch time"]) -> Hop:
        upper, lower = self.noise.chunk(2)
        return hop(self.decay, self.frequency, upper, lower, delta[..., None])

    def _predict(self, state: Belief, delta: Float[Tensor, " batch"]) -> Belief:
        return predict_paired(state, Hop(*(field[:, 0] for field in self._hops(delta[:, None]))))

    def _run(
        self,
        start: Belief,
        y: Float[Tensor, "batch time obs"],
        y_var: Float[Tensor, "batch time obs"],
        observed: Bool[Tensor, "batch time obs"],
        delta: Float[Tensor, "batch time"],
    ) -> tuple[Belief, Belief]:
        """Compiled on the CPU; elsewhere parallel in time, which needs no loop over the steps."""
        hops = self._hops(delta)
        if native.paired_available(y):
            return native.filter_paired(start, y, y_var, observed, hops)
        if torch.compiler.is_exporting():
            return filter_paired(start, y, y_var, observed, hops)
        return filter_paired_scan(start, y, y_var, observed, hops)


def _coprime(count: int) -> int:
    """A stride near the golden section of ``count`` that visits every place."""
    stride = max(1, round(0.618 * count))
    while math.gcd(stride, count) > 1:
        stride += 1
    return stride
