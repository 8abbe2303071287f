"""The shared machine of the layer family: a continuous-discrete Kalman filter as an `nn.Module`."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from cru import native
from cru.functional import (
    Belief,
    Coefficients,
    FilterResult,
    Transition,
    filter_sequence,
    gain,
    gaps,
    positive,
)
from cru.layers.checks import (
    as_mask,
    as_times,
    check_dtype,
    check_series,
    check_sizes,
    observed_values,
    require,
)

INITIAL_VARIANCE = 10.0
INITIAL_NOISE = 0.1
_UNKNOWN = 1e30  # the variance of a latent observation that is missing


class KalmanLayer(nn.Module):
    """Encode each observation linearly, filter, return posterior means: the interface of `torch.nn.GRU`, with times.

    A subclass adds its parameters and says what its `transition` is. Everything else is here.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_basis: int = 15,
        bandwidth: int | None = None,
        coefficient_inputs: int | None = None,
        time_scale: float = 1.0,
        noise_map: str = "softplus",
        variance_map: str = "elu+1",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(input_size, hidden_size, num_basis, bandwidth)
        check_dtype(dtype)
        require(time_scale > 0, f"`time_scale` must be positive, got {time_scale}.")
        self.input_size, self.hidden_size, self.obs_size = input_size, hidden_size, hidden_size // 2
        self.num_basis, self.bandwidth, self.time_scale = num_basis, bandwidth, time_scale
        self.noise_map, self.variance_map = positive(noise_map), positive(variance_map)
        self.initial_map = positive("softplus")
        where = {"device": torch.device(device) if device is not None else None, "dtype": dtype}

        self.observation = nn.Linear(input_size, self.obs_size, **where)  # type: ignore[arg-type]
        self.observation_variance = nn.Linear(input_size, self.obs_size, **where)  # type: ignore[arg-type]
        self.coefficients = nn.Linear(coefficient_inputs or hidden_size, num_basis, **where)  # type: ignore[arg-type]
        self.raw_noise = nn.Parameter(self.noise_map.start(INITIAL_NOISE, hidden_size, **where))  # type: ignore[arg-type]
        start = self.initial_map.start(INITIAL_VARIANCE, hidden_size, **where)  # type: ignore[arg-type]
        self.raw_initial_variance = nn.Parameter(start)

    def transition(self) -> Transition:
        """The dynamics as plain data, from the parameters as they are now."""
        raise TypeError("KalmanLayer is a base class: use CRU, FastCRU or RKN")

    @property
    def noise(self) -> Float[Tensor, " state"]:
        """q, the variance that the state gains per unit of time (RKN: per step)."""
        return self.noise_map.forward(self.raw_noise)

    def forward(
        self,
        x: Tensor,
        times: Tensor,
        mask: Tensor | None = None,
        state: Belief | None = None,
    ) -> tuple[Float[Tensor, "batch time state"], Belief]:
        """Posterior means at every time, and the belief after the last.

        Args:
            x: (batch, time, input), observations; NaN = missing where ``mask`` is None.
            times: (batch, time) or (time,), absolute, not decreasing, of any float or integer type.
            mask: (batch, time) or (batch, time, input), True = observed. A missing feature enters as zero; a time with
                no feature observed is not updated.
            state: a belief to continue from, as returned by an earlier call.
        """
        check_series("x", x, self.input_size)
        features = as_mask(mask, x)
        y, y_var = self.observe(observed_values("x", x, features))
        observed = features.any(-1, keepdim=True).expand_as(y)
        _, posterior = self._filtered(y, y_var, times, observed, state)
        return posterior.mean, posterior.at(-1)

    def filter(
        self,
        y: Tensor,
        y_var: Tensor,
        times: Tensor,
        mask: Tensor | None = None,
        state: Belief | None = None,
    ) -> FilterResult:
        """The bare continuous-discrete Kalman filter on latent observations ``y`` with variances ``y_var``.

        Both are (batch, time, obs), obs = hidden_size / 2: for models with an encoder of their own. ``mask`` is
        (batch, time) or (batch, time, obs); NaN in ``y`` = missing where it is None. The gain is what the prior and
        ``y_var`` make it, whether or not the time is observed.
        """
        check_series("y", y, self.obs_size)
        require(
            isinstance(y_var, Tensor) and y_var.shape == y.shape,
            f"`y_var` must have the shape of `y`, {tuple(y.shape)}, got {tuple(getattr(y_var, 'shape', ()))}.",
        )
        observed = as_mask(mask, y)
        y = observed_values("y", y, observed)
        observed_values("y_var", y_var, observed)
        if not torch.compiler.is_compiling() and bool((observed & (y_var < 0)).any()):
            series, step, i = (int(n) for n in (observed & (y_var < 0)).nonzero()[0])
            raise ValueError(
                f"`y_var` must not be negative: series {series}, step {step}, dimension {i} is "
                f"{y_var[series, step, i].item()}. Pass variances, not log variances."
            )
        y_var = torch.nan_to_num(y_var, _UNKNOWN, _UNKNOWN)
        prior, posterior = self._filtered(y, y_var, times, observed, state)
        return FilterResult(prior, posterior, gain(prior, y_var))

    def propagate(self, state: Belief, delta: Tensor | float) -> Belief:
        """The belief ``delta`` after ``state``: a number or (batch,), in the unit of ``times``, not negative."""
        like = state.mean
        gap = torch.as_tensor(delta, dtype=torch.float64 if isinstance(delta, float) else None, device=like.device)
        require(
            torch.compiler.is_compiling() or bool((torch.isfinite(gap) & (gap >= 0)).all()),
            f"`delta` must be finite and not negative, got {delta}.",
        )
        gap = gap.expand(like.shape[0])
        transition = self.transition()
        scaled = gap.to(like.dtype) * self.time_scale
        later = transition.predict(state, scaled, transition.plan(scaled))
        return later._replace(time=None if state.time is None else state.time + gap)

    def step(
        self,
        x_t: Tensor,
        time: Tensor | float,
        state: Belief | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Float[Tensor, "batch state"], Belief]:
        """One observation (batch, input) at one time, for streams: the posterior mean, and the belief to go on from."""
        require(x_t.ndim == 2, f"`x_t` must have the shape (batch, {self.input_size}), got {tuple(x_t.shape)}.")
        time = torch.as_tensor(time, dtype=torch.float64 if isinstance(time, float) else None, device=x_t.device)
        times = time.expand(x_t.shape[0])[:, None]
        output, belief = self(x_t[:, None], times, None if mask is None else mask[:, None], state)
        return output[:, 0], belief

    def observe(
        self, x: Float[Tensor, "batch time input"]
    ) -> tuple[Float[Tensor, "batch time obs"], Float[Tensor, "batch time obs"]]:
        """The layer's own encoder: two linear heads, the second made positive."""
        x = x.to(self.observation.weight.dtype)
        return self.observation(x), self.variance_map.forward(self.observation_variance(x))

    def initial(self, batch: int) -> Belief:
        """The belief before anything is seen: mean 0, trainable variance (10 at the start), side 0."""
        variance = self.initial_map.forward(self.raw_initial_variance).expand(batch, -1)
        upper, lower = variance.chunk(2, -1)
        return Belief(torch.zeros_like(variance), upper, lower, torch.zeros_like(upper))

    def _moves(
        self, delta: Float[Tensor, "batch time"], observed: Bool[Tensor, "batch time"], continued: bool
    ) -> Bool[Tensor, "batch time"]:
        """Where the state is carried forward before an update: over every gap that is not zero."""
        return delta != 0

    def _filtered(
        self,
        y: Float[Tensor, "batch time obs"],
        y_var: Float[Tensor, "batch time obs"],
        times: Tensor,
        observed: Bool[Tensor, "batch time obs"],
        state: Belief | None,
    ) -> tuple[Belief, Belief]:
        batch, steps, _ = y.shape
        dtype = self.raw_noise.dtype
        start = self.initial(batch) if state is None else state
        require(
            start.mean.shape == (batch, self.hidden_size),
            f"`state` must hold {batch} series of size {self.hidden_size}, "
            f"its mean has the shape {tuple(start.mean.shape)}.",
        )
        times = as_times(times, batch, steps, start.time)
        delta = gaps(times, start.time, self.time_scale, dtype)
        moves = self._moves(delta, observed.any(-1), state is not None)
        transition = self.transition()
        y, y_var = y.to(dtype), y_var.to(dtype)
        run = native.filter_sequence if native.available(transition, y, delta) else filter_sequence
        prior, posterior = run(transition, start, y, y_var, observed, delta, moves)
        return prior._replace(time=times), posterior._replace(time=times)

    def _coefficients(self) -> Coefficients:
        return Coefficients(self.coefficients.weight, self.coefficients.bias)

    def extra_repr(self) -> str:
        """Sizes, as `torch.nn.GRU` shows them."""
        band = "" if self.bandwidth is None else f", bandwidth={self.bandwidth}"
        return f"{self.input_size}, {self.hidden_size}, num_basis={self.num_basis}{band}, time_scale={self.time_scale}"
