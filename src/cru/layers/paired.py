"""The paired CRU: damped rotations, for which nothing of the covariance is dropped."""

import math
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor, nn

from cru import native
from cru.functional import Belief, positive
from cru.functional.paired import Hop, filter_paired, hop, predict_paired
from cru.functional.paired_scan import filter_paired_scan, smooth_paired
from cru.layers.checks import as_queries, as_times, require
from cru.layers.filter import KalmanLayer, LayerOptions
from cru.shapes import Bool, Float, Real


@dataclass(frozen=True)
class InitialRates:
    """Range of the initial rates of a new layer, per span of the training times."""

    min_decay: float = 0.1  # nearly undamped
    max_decay: float = 50.0  # forgets within two of a hundred observations
    max_turns: int = 50  # one rotation for two of a hundred observations


INITIAL = InitialRates()


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
        span: how long a series lasts, about, in units of ``times`` × ``time_scale``. At the start the rotations are a
            Fourier series of it, and the decay rates reach from a tenth of 1 / span to fifty times it.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        span: float = 100.0,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(input_size, hidden_size, **options)
        require(0 < span < math.inf, f"`span` must be positive, got {span}.")
        self.span = span
        self.decay_map = positive("softplus")
        each = self.raw_noise[: self.obs_size]
        self.raw_decay, self.frequency = (nn.Parameter(torch.empty_like(each)) for _ in range(2))
        self.initial_mean = nn.Parameter(torch.zeros_like(self.raw_noise))
        self._initialise_as_fourier_series()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Begin anew, with the numbers that a new layer would have."""
        super().reset_parameters()
        self.initial_mean.zero_()
        self._initialise_as_fourier_series()

    def _initialise_as_fourier_series(self) -> None:
        """A Fourier series, with rates from slow to fast."""
        pairs = self.obs_size
        with torch.device("cpu"):
            low, high = math.log10(INITIAL.min_decay), math.log10(INITIAL.max_decay)
            rates = torch.logspace(low, high, pairs, dtype=torch.float64) / self.span
            harmonics = torch.logspace(0, math.log10(INITIAL.max_turns), max(pairs - 1, 0)).round()
            turns = torch.cat([torch.zeros(1), harmonics])
            # frequencies in another order than the rates, so that each rate meets slow and fast rotations
            order = torch.arange(pairs) * _coprime(pairs) % pairs
        self.set_dynamics(rates, 2 * math.pi / self.span * turns[:pairs][order])

    @torch.no_grad()
    def set_dynamics(self, decay: Float[Tensor, " obs"], frequency: Float[Tensor, " obs"]) -> None:
        """Set γ and ω, and the noise with which each pair, left alone, has a variance of 1: q = 2γ."""
        self.raw_decay.copy_(self.decay_map.inverse(decay))
        self.frequency.copy_(frequency)
        self.raw_noise.copy_(self.noise_map.inverse(2 * decay).repeat(2))

    @property
    def decay(self) -> Float[Tensor, " obs"]:
        """γ of each pair."""
        return self.decay_map.forward(self.raw_decay)

    def initial(self, batch: int) -> Belief:
        """As for `CRU`, but the mean is trained too: pairs that hardly decay then know a season from the start."""
        return super().initial(batch)._replace(mean=self.initial_mean.expand(batch, -1))

    def filter_or_smooth(
        self,
        y: Float[Tensor, "batch time obs"],
        y_var: Float[Tensor, "batch time obs"],
        times: Real[Tensor, "batch time"],
        observed: Bool[Tensor, "batch time obs"],
        *,
        shift: Float[Tensor, "batch time state"] | None = None,
        state: Belief | None = None,
        smooth: bool = False,
    ) -> Belief:
        """What a block of a stack reads: the posteriors of `filter`, or the beliefs of `smooth`.

        ``shift`` moves γ (before its positive map) and ω (in turns per span) of the hop that leads to each time. It may
        depend on earlier inputs, never on a posterior of this layer: so the recursion stays linear.
        """
        start, y, y_var, observed, delta = self._prepare_inputs(y, y_var, times, observed, state)
        hops = self._hops(delta, shift)
        prior, posterior = self._through(start, y, y_var, observed, hops)
        if smooth:
            backwards = native.smooth_paired if native.paired_available(y) else smooth_paired
            posterior = backwards(prior, posterior, hops)
        return posterior._replace(time=times)

    def smooth(
        self, y: Tensor, y_var: Tensor, times: Tensor, mask: Tensor | None = None, at: Tensor | None = None
    ) -> Belief:
        """Beliefs given the *whole* series, at ``times``, or at the times ``at`` that you ask for.

        ``y``, ``y_var``, ``times`` and ``mask`` are those of `filter`; ``at`` is (query,) or (batch, query), in any
        order, not before the first time of its series.
        """
        y, y_var, observed = self._validate_observations(y, y_var, mask)
        times = as_times(times, observed, None)
        if at is None:
            return self.filter_or_smooth(y, y_var, times, observed, smooth=True)
        at = as_queries(at, times)
        times = times.to(at.dtype)
        every = torch.cat([times, at], 1)
        order = every.argsort(dim=1, stable=True)
        blank = y.new_zeros(len(y), at.shape[1], self.obs_size)

        def placed(seen: Tensor, asked: Tensor) -> Tensor:
            return torch.cat([seen, asked], 1).gather(1, order[..., None].expand(-1, -1, self.obs_size))

        known = placed(observed, torch.zeros_like(blank, dtype=torch.bool))
        belief = self.filter_or_smooth(
            placed(y, blank), placed(y_var, blank + 1), every.gather(1, order), known, smooth=True
        )
        where = order.argsort(dim=1)[:, times.shape[1] :]
        rows = torch.arange(len(y), device=y.device)[:, None]
        return Belief(*(field[rows, where] for field in belief[:4]))._replace(time=at)

    def extra_repr(self) -> str:
        """Sizes, as `torch.nn.GRU` shows them."""
        return f"{super().extra_repr()}, span={self.span}"

    def _hops(self, delta: Float[Tensor, "batch time"], shift: Tensor | None = None) -> Hop:
        """Readings on a grid share their gaps, and what shares a gap shares its hop: each is computed once."""
        upper, lower = self.noise.chunk(2)
        if shift is not None:
            slower, faster = shift.chunk(2, -1)
            decay = self.decay_map.forward(self.raw_decay + slower)
            return hop(decay, self.frequency + 2 * math.pi / self.span * faster, upper, lower, delta[..., None])
        if torch.compiler.is_compiling() or delta.requires_grad or native.transformed():
            return hop(self.decay, self.frequency, upper, lower, delta[..., None])
        distinct, where = torch.unique(delta, return_inverse=True)
        each = hop(self.decay, self.frequency, upper, lower, distinct[:, None])
        return Hop(*(field.index_select(0, where.flatten()).view(*delta.shape, field.shape[-1]) for field in each))

    def _predict(self, state: Belief, delta: Float[Tensor, " batch"]) -> Belief:
        return predict_paired(state, Hop(*(field[:, 0] for field in self._hops(delta[:, None]))))

    def _filter_sequence(
        self,
        start: Belief,
        y: Float[Tensor, "batch time obs"],
        y_var: Float[Tensor, "batch time obs"],
        observed: Bool[Tensor, "batch time obs"],
        delta: Float[Tensor, "batch time"],
    ) -> tuple[Belief, Belief]:
        return self._through(start, y, y_var, observed, self._hops(delta))

    def _through(self, start: Belief, y: Tensor, y_var: Tensor, observed: Tensor, hops: Hop) -> tuple[Belief, Belief]:
        """Compiled on the CPU; elsewhere parallel in time, which needs no loop over the steps."""
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
