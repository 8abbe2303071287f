"""The paired CRU: independent damped rotations, for which the factorised covariance is exact."""

import math
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor, nn

from cru import native
from cru.functional import Belief, positive
from cru.functional.paired import PairedTransition, discretise_paired, filter_paired, predict_paired
from cru.functional.paired_scan import filter_paired_scan, smooth_paired
from cru.layers.checks import as_queries, as_times, require
from cru.layers.filter import KalmanLayer, LayerOptions
from cru.shapes import Bool, Float, Real


@dataclass(frozen=True)
class InitialRates:
    """Range of the initial rates of a new layer, per span of the training times."""

    min_decay: float = 0.1  # nearly undamped
    max_decay: float = 50.0  # the time constant is two of a hundred observations
    max_turns: int = 50  # one rotation per two of a hundred observations


INITIAL = InitialRates()


class PairedCRU(KalmanLayer):
    """Paired CRU: every (upper, lower) pair of the state follows its own damped rotation between observations.

    d(u, l) = [[-γ, ω], [-ω, -γ]] (u, l) dt + noise. The factorised covariance is then exact, a step costs O(M), the
    state can oscillate, and there is an exact smoother. The pairs do not interact: stack layers to mix them.

    Example:
        >>> from cru import PairedCRU
        >>> layer = PairedCRU(2, 8)
        >>> output, state = layer(torch.randn(3, 5, 2), torch.arange(5.0))
        >>> output.shape
        torch.Size([3, 5, 8])

    Args:
        input_size: as for `CRU`.
        hidden_size: as for `CRU`. There are hidden_size / 2 pairs.
        span: approximate duration of a series, in units of ``times`` × ``time_scale``. The initial rotations are a
            Fourier series over this span, and the initial decay rates are between 0.1 / span and 50 / span.
        options: as for `CRU`: time_scale, noise_map, variance_map, device, dtype.

    Raises:
        ValueError: if an argument is not valid.
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
        """Set all parameters to the values of a new layer."""
        super().reset_parameters()
        self.initial_mean.zero_()
        self._initialise_as_fourier_series()

    def _initialise_as_fourier_series(self) -> None:
        """Set the frequencies to a Fourier series and the decay rates to values from slow to fast."""
        pairs = self.obs_size
        with torch.device("cpu"):
            low, high = math.log10(INITIAL.min_decay), math.log10(INITIAL.max_decay)
            rates = torch.logspace(low, high, pairs, dtype=torch.float64) / self.span
            harmonics = torch.logspace(0, math.log10(INITIAL.max_turns), max(pairs - 1, 0)).round()
            turns = torch.cat([torch.zeros(1), harmonics])
            # A permutation of the frequencies: slow and fast decay rates both have slow and fast rotations.
            order = torch.arange(pairs) * _coprime(pairs) % pairs
        self.set_dynamics(rates, 2 * math.pi / self.span * turns[:pairs][order])

    @torch.no_grad()
    def set_dynamics(self, decay: Float[Tensor, " obs"], frequency: Float[Tensor, " obs"]) -> None:
        """Set γ and ω, and the noise q = 2γ, for which the stationary variance is 1.

        Args:
            decay: γ of each pair, per unit of scaled time, positive.
            frequency: ω of each pair, in radians per unit of scaled time.
        """
        self.raw_decay.copy_(self.decay_map.inverse(decay))
        self.frequency.copy_(frequency)
        self.raw_noise.copy_(self.noise_map.inverse(2 * decay).repeat(2))

    @property
    def decay(self) -> Float[Tensor, " obs"]:
        """The decay rate γ of each pair."""
        return self.decay_map.forward(self.raw_decay)

    def initial(self, batch: int) -> Belief:
        """Return the belief before any observation, with a trained mean. The mean can represent a shared season."""
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
        """Compute the posteriors of `filter` or the beliefs of `smooth`, without checks.

        Args:
            y: latent observations.
            y_var: their variances.
            times: absolute times, not decreasing.
            observed: True where observed.
            shift: added to γ (before its positive map) and to ω (in turns per span) over the gap before each time. It
                may depend on earlier inputs, but not on a posterior of this layer: the recursion must stay linear.
            state: the belief to continue from.
            smooth: whether to condition on all observations of a series.

        Returns:
            The belief at every time.
        """
        start, y, y_var, observed, delta = self._prepare_inputs(y, y_var, times, observed, state)
        transitions = self._transitions(delta, shift)
        prior, posterior = self._filter_sequence(start, y, y_var, observed, delta, transitions)
        if smooth:
            backwards = native.smooth_paired if native.paired_available(y) else smooth_paired
            posterior = backwards(prior, posterior, transitions)
        return posterior._replace(time=times)

    def smooth(
        self, y: Tensor, y_var: Tensor, times: Tensor, mask: Tensor | None = None, at: Tensor | None = None
    ) -> Belief:
        """Compute the beliefs given all observations of a series, at ``times`` or at the times ``at``.

        Args:
            y: as for `filter`.
            y_var: as for `filter`.
            times: as for `filter`.
            mask: as for `filter`.
            at: (query,) or (batch, query), in any order, not before the first time of the series.

        Returns:
            The beliefs at ``at``, or at ``times`` if ``at`` is None.

        Raises:
            ValueError: if an argument has a wrong shape, type or value.
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
        """Return the sizes, as `torch.nn.GRU` shows them."""
        return f"{super().extra_repr()}, span={self.span}"

    def _transitions(self, delta: Float[Tensor, "batch time"], shift: Tensor | None = None) -> PairedTransition:
        """Compute the transition over each gap. Equal gaps, as on a regular grid, are computed once."""
        upper, lower = self.noise.chunk(2)
        if shift is not None:
            slower, faster = shift.chunk(2, -1)
            decay = self.decay_map.forward(self.raw_decay + slower)
            return discretise_paired(
                decay, self.frequency + 2 * math.pi / self.span * faster, upper, lower, delta[..., None]
            )
        if torch.compiler.is_compiling() or delta.requires_grad or native.transformed():
            return discretise_paired(self.decay, self.frequency, upper, lower, delta[..., None])
        distinct, where = torch.unique(delta, return_inverse=True)
        each = discretise_paired(self.decay, self.frequency, upper, lower, distinct[:, None])
        return PairedTransition(
            *(field.index_select(0, where.flatten()).view(*delta.shape, field.shape[-1]) for field in each)
        )

    def _predict(self, state: Belief, delta: Float[Tensor, " batch"]) -> Belief:
        return predict_paired(state, PairedTransition(*(field[:, 0] for field in self._transitions(delta[:, None]))))

    def _filter_sequence(
        self,
        start: Belief,
        y: Float[Tensor, "batch time obs"],
        y_var: Float[Tensor, "batch time obs"],
        observed: Bool[Tensor, "batch time obs"],
        delta: Float[Tensor, "batch time"],
        transitions: PairedTransition | None = None,
    ) -> tuple[Belief, Belief]:
        """Run the compiled filter on a CPU. Elsewhere run the scan, which needs no loop over the steps.

        ``transitions`` are those over the gaps, if the caller has computed them.
        """
        transitions = self._transitions(delta) if transitions is None else transitions
        if native.paired_available(y):
            return native.filter_paired(start, y, y_var, observed, transitions)
        if torch.compiler.is_exporting():
            return filter_paired(start, y, y_var, observed, transitions)
        return filter_paired_scan(start, y, y_var, observed, transitions)


def _coprime(count: int) -> int:
    """Find a stride near the golden section of ``count`` that visits every index: it is coprime to ``count``."""
    stride = max(1, round(0.618 * count))
    while math.gcd(stride, count) > 1:
        stride += 1
    return stride
