"""The shared machine of the layer family: a continuous-discrete Kalman filter as an `nn.Module`."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from cru.functional import (
    MAX_VARIANCE,
    MIN_VARIANCE,
    Belief,
    FilterResult,
    bounds,
    gain,
    gaps,
    positive,
)
from cru.functional.belief import held
from cru.layers.checks import (
    as_mask,
    as_moments,
    as_state,
    as_times,
    check_dtype,
    check_series,
    check_sizes,
    check_time_scale,
    observed_values,
    require,
)

INITIAL_VARIANCE = 10.0
INITIAL_NOISE = 0.1


class KalmanLayer(nn.Module):
    """Encode each observation linearly, filter, return posterior means: the interface of `torch.nn.GRU`, with times.

    A subclass adds its parameters, the predict step and the filter over a sequence. Everything else is here.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        time_scale: float = 1.0,
        noise_map: str = "softplus",
        variance_map: str = "elu+1",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(input_size, hidden_size)
        check_dtype(dtype or torch.get_default_dtype())
        check_time_scale(time_scale)
        self.input_size, self.hidden_size, self.obs_size = input_size, hidden_size, hidden_size // 2
        self.time_scale = float(time_scale)
        self.noise_map, self.variance_map = positive(noise_map), positive(variance_map)
        self.initial_map = positive("softplus")
        where = {"device": torch.device(device) if device is not None else None, "dtype": dtype}

        self.observation = nn.Linear(input_size, self.obs_size, **where)  # type: ignore[arg-type]
        self.observation_variance = nn.Linear(input_size, self.obs_size, **where)  # type: ignore[arg-type]
        self.raw_noise = nn.Parameter(self.noise_map.start(INITIAL_NOISE, hidden_size, **where))  # type: ignore[arg-type]
        start = self.initial_map.start(INITIAL_VARIANCE, hidden_size, **where)  # type: ignore[arg-type]
        self.raw_initial_variance = nn.Parameter(start)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Begin anew, with the numbers that a new layer would have."""
        for part in self.children():  # in the order in which they were made
            part.reset_parameters()  # type: ignore[operator]
        where = {"device": self.raw_noise.device, "dtype": self.dtype}
        self.raw_noise.copy_(self.noise_map.start(INITIAL_NOISE, self.hidden_size, **where))  # type: ignore[arg-type]
        start = self.initial_map.start(INITIAL_VARIANCE, self.hidden_size, **where)  # type: ignore[arg-type]
        self.raw_initial_variance.copy_(start)

    @property
    def dtype(self) -> torch.dtype:
        """The type that the layer computes in: that of its parameters."""
        return self.raw_noise.dtype

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
        with torch.autocast(x.device.type, enabled=False):
            features = as_mask(mask, x)
            y, y_var = self.observe(observed_values("x", x.to(self.dtype), features))
            observed = features.any(-1, keepdim=True).expand_as(y)
            _, posterior = self._filtered(y, y_var, times, observed, state)
        return posterior.mean.clone(), posterior.at(-1)  # the filter needs its own for its gradient

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
        y, y_var, observed = self._latent(y, y_var, mask)
        with torch.autocast(y.device.type, enabled=False):
            prior, posterior = self._filtered(y, y_var, times, observed, state)
            return FilterResult(prior, posterior, gain(prior, y_var))

    def advance(
        self,
        y: Float[Tensor, "batch time obs"],
        y_var: Float[Tensor, "batch time obs"],
        times: Float[Tensor, "batch time"],
        observed: Bool[Tensor, "batch time"],
        state: Belief | None = None,
    ) -> Belief:
        """The last posterior of `filter`, of numbers that need no check: in a stream, checks would take longer."""
        return self._trusted(y, y_var, times, observed[..., None].expand_as(y), state)[1].at(-1)

    def _latent(self, y: Tensor, y_var: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Latent observations, variances and what is observed of them, checked and in the layer's type."""
        check_dtype(self.dtype)
        check_series("y", y, self.obs_size)
        require(
            isinstance(y_var, Tensor) and y_var.shape == y.shape,
            f"`y_var` must have the shape of `y`, {tuple(y.shape)}, got {tuple(getattr(y_var, 'shape', ()))}.",
        )
        observed = as_mask(mask, y)
        y = observed_values("y", y.to(self.dtype), observed)
        observed_values("y_var", y_var, observed)
        if not torch.compiler.is_compiling() and bool((observed & (y_var < 0)).any()):
            series, step, i = (int(n) for n in (observed & (y_var < 0)).nonzero()[0])
            raise ValueError(
                f"`y_var` must not be negative: series {series}, step {step}, dimension {i} is "
                f"{y_var[series, step, i].item()}. Pass variances, not log variances."
            )
        y_var = torch.nan_to_num(y_var.to(self.dtype), MAX_VARIANCE, MAX_VARIANCE)
        return y, y_var, observed

    def propagate(self, state: Belief, delta: Tensor | float | int) -> Belief:
        """The belief ``delta`` after ``state``: a number or (batch,), in the unit of ``times``, not negative."""
        check_dtype(self.dtype)
        state = as_state(state, None, self.hidden_size, self.raw_noise)
        gap = as_moments("delta", delta, len(state.mean), state.mean.device)
        require(
            torch.compiler.is_compiling() or bool((torch.isfinite(gap) & (gap >= 0)).all()),
            f"`delta` must be finite and not negative, got {delta}.",
        )
        with torch.autocast(gap.device.type, enabled=False):
            scaled = gaps(gap[:, None], torch.zeros_like(gap), self.time_scale, self.dtype)[:, 0]
            later = self._predict(state, scaled)
        return later._replace(time=None if state.time is None else _later(state.time, gap))

    def step(
        self,
        x_t: Tensor,
        time: Tensor | float | int,
        state: Belief | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Float[Tensor, "batch state"], Belief]:
        """One observation (batch, input) at one time, for streams: the posterior mean, and the belief to go on from."""
        shape = tuple(getattr(x_t, "shape", ()))
        require(len(shape) == 2, f"`x_t` must be a tensor of the shape (batch, {self.input_size}), got {shape}.")
        times = as_moments("time", time, len(x_t), x_t.device)[:, None]
        output, belief = self(x_t[:, None], times, mask[:, None] if isinstance(mask, Tensor) else mask, state)
        return output[:, 0], belief

    def observe(
        self, x: Float[Tensor, "batch time input"]
    ) -> tuple[Float[Tensor, "batch time obs"], Float[Tensor, "batch time obs"]]:
        """The layer's own encoder: two linear heads, the second made positive. Readings have the bound of a mean."""
        check_dtype(self.dtype)
        limit = bounds(self.dtype).mean
        with torch.autocast(x.device.type, enabled=False):
            x = held(x.to(self.dtype), -limit, limit)
            return self.observation(x), self.variance_map.forward(self.observation_variance(x))

    def initial(self, batch: int) -> Belief:
        """The belief before anything is seen: mean 0, trainable variance (10 at the start), side 0."""
        variance = self.initial_map.forward(self.raw_initial_variance).expand(batch, -1)
        upper, lower = variance.chunk(2, -1)
        return Belief(torch.zeros_like(variance), upper, lower, torch.zeros_like(upper))

    def freeze(self) -> None:
        """Compute what follows from the parameters alone once and for all. Here: nothing."""

    def _predict(self, state: Belief, delta: Float[Tensor, " batch"]) -> Belief:
        """The prior after a gap."""
        raise TypeError("KalmanLayer is a base class: use CRU, FastCRU, RKN or PairedCRU")

    def _run(
        self,
        start: Belief,
        y: Float[Tensor, "batch time obs"],
        y_var: Float[Tensor, "batch time obs"],
        observed: Bool[Tensor, "batch time obs"],
        delta: Float[Tensor, "batch time"],
    ) -> tuple[Belief, Belief]:
        """Priors and posteriors over a sequence; ``start`` has a time where it continues an earlier one."""
        raise TypeError("KalmanLayer is a base class: use CRU, FastCRU, RKN or PairedCRU")

    def _filtered(
        self,
        y: Float[Tensor, "batch time obs"],
        y_var: Float[Tensor, "batch time obs"],
        times: Tensor,
        observed: Bool[Tensor, "batch time obs"],
        state: Belief | None,
    ) -> tuple[Belief, Belief]:
        batch = len(y)
        check_dtype(self.dtype)
        start = None if state is None else as_state(state, batch, self.hidden_size, self.raw_noise)
        times = as_times(times, observed, None if start is None else start.time)
        return self._trusted(y, y_var, times, observed, start)

    def _trusted(
        self,
        y: Float[Tensor, "batch time obs"],
        y_var: Float[Tensor, "batch time obs"],
        times: Tensor,
        observed: Bool[Tensor, "batch time obs"],
        start: Belief | None,
    ) -> tuple[Belief, Belief]:
        start, y, y_var, delta = self._bounded(y, y_var, times, start)
        prior, posterior = self._run(start, y, y_var, observed, delta)
        return prior._replace(time=times), posterior._replace(time=times)

    def _bounded(
        self, y: Tensor, y_var: Tensor, times: Tensor, start: Belief | None
    ) -> tuple[Belief, Tensor, Tensor, Tensor]:
        """Where to start, observations within the bounds of the type, and the gaps."""
        start = self.initial(len(y)) if start is None else start
        limit = bounds(self.dtype).mean
        delta = gaps(times, start.time, self.time_scale, self.dtype)
        return start, y.clamp(-limit, limit), y_var.clamp(MIN_VARIANCE, MAX_VARIANCE), delta

    def extra_repr(self) -> str:
        """Sizes, as `torch.nn.GRU` shows them."""
        return f"{self.input_size}, {self.hidden_size}, time_scale={self.time_scale}"


def _later(time: Tensor, gap: Tensor) -> Tensor:
    """``time + gap`` in the type of ``time``; whole numbers stay so while they can, so that no precision is lost."""
    if time.is_floating_point() or not gap.is_floating_point():
        return time + gap.to(time.dtype)
    whole = not torch.compiler.is_compiling() and bool((gap == gap.round()).all())
    return time + gap.to(time.dtype) if whole else time.double() + gap
