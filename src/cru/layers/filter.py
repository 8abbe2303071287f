"""The base class of the layers: a continuous-discrete Kalman filter as an `nn.Module`."""

import inspect
from typing import Any, TypedDict, Unpack, get_origin

import torch
from torch import Tensor, nn

from cru.functional import MAX_VARIANCE, MIN_VARIANCE, Belief, FilterResult, bounds, gaps, positive
from cru.functional.belief import clamp
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
from cru.shapes import Bool, Float

INITIAL_VARIANCE = 10.0
"""Variance of the initial state of a new layer."""
INITIAL_NOISE = 0.1
"""Process noise of a new layer."""


class LayerOptions(TypedDict, total=False):
    """Options of every layer. `KalmanLayer` describes them and has their defaults."""

    time_scale: float
    noise_map: str
    variance_map: str
    device: torch.device | str | None
    dtype: torch.dtype | None


class KalmanLayer(nn.Module):
    """A layer that encodes observations linearly and filters them. The interface is that of `torch.nn.GRU` with times.

    A subclass adds its parameters, the predict step `_predict` and the filter over a sequence `_filter_sequence`.

    Args:
        input_size: number of features of an observation.
        hidden_size: size M of the state, even. A latent observation has D = M / 2 dimensions.
        time_scale: factor on the gaps between times.
        noise_map: map that makes the process noise positive, one of the names in `cru.functional.positive`.
        variance_map: map that makes the observation variance positive.
        device: device of the parameters.
        dtype: type of the parameters and of the computation, torch.float32 or torch.float64.

    Raises:
        ValueError: if a size, a scale, a map or a type is not valid.
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
        where: dict[str, Any] = {"device": torch.device(device) if device is not None else None, "dtype": dtype}
        self.observation = nn.Linear(input_size, self.obs_size, **where)
        self.observation_variance = nn.Linear(input_size, self.obs_size, **where)
        self.raw_noise = nn.Parameter(self.noise_map.start(INITIAL_NOISE, hidden_size, **where))
        self.raw_initial_variance = nn.Parameter(self.initial_map.start(INITIAL_VARIANCE, hidden_size, **where))

    def __init_subclass__(cls, **options: Any) -> None:
        """Make `inspect.signature` and `help` show the options that a constructor takes as ``Unpack[...]``."""
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            _, *own = inspect.signature(cls.__init__).parameters.values()
            named = [each for each in own if get_origin(each.annotation) is not Unpack]
            if len(named) < len(own):  # the constructor passes these options on to its base
                base = inspect.signature(cls.__mro__[1]).parameters.values()
                named += [each for each in base if each.kind is each.KEYWORD_ONLY]
            cls.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set all parameters to the values of a new layer."""
        for part in self.children():  # in the order of construction, which is the order of the random numbers
            part.reset_parameters()  # type: ignore[operator]
        where: dict[str, Any] = {"device": self.raw_noise.device, "dtype": self.dtype}
        self.raw_noise.copy_(self.noise_map.start(INITIAL_NOISE, self.hidden_size, **where))
        self.raw_initial_variance.copy_(self.initial_map.start(INITIAL_VARIANCE, self.hidden_size, **where))

    @property
    def dtype(self) -> torch.dtype:
        """The type of the parameters, in which the layer computes."""
        return self.raw_noise.dtype

    @property
    def noise(self) -> Float[Tensor, " state"]:
        """The process noise q: the variance that the state gains per unit of time (RKN: per step)."""
        return self.noise_map.forward(self.raw_noise)

    def forward(
        self,
        x: Tensor,
        times: Tensor,
        mask: Tensor | None = None,
        state: Belief | None = None,
    ) -> tuple[Float[Tensor, "batch time state"], Belief]:
        """Filter a batch of series.

        Args:
            x: (batch, time, input), observations. NaN means missing if ``mask`` is None.
            times: (batch, time) or (time,), absolute, not decreasing, of any float or integer type.
            mask: (batch, time) or (batch, time, input), True = observed. A missing feature enters as zero. A time
                without any observed feature is not updated.
            state: the belief to continue from, as an earlier call returned it.

        Returns:
            The posterior means at every time, and the belief after the last time.

        Raises:
            ValueError: if an argument has a wrong shape, type or value.
        """
        check_series("x", x, self.input_size)
        with torch.autocast(x.device.type, enabled=False):
            features = as_mask(mask, x)
            y, y_var = self.observe(observed_values("x", x.to(self.dtype), features))
            observed = features.any(-1, keepdim=True).expand_as(y)
            state = None if state is None else as_state(state, len(y), self.hidden_size, self.raw_noise)
            times = as_times(times, observed, None if state is None else state.time)
            _, posterior = self._filter_sequence(*self._prepare_inputs(y, y_var, times, observed, state))
        # The gradient of the filter needs its output, so the caller receives copies.
        return posterior.mean.clone(), posterior._replace(time=times).at(-1)

    def filter(
        self,
        y: Tensor,
        y_var: Tensor,
        times: Tensor,
        mask: Tensor | None = None,
        state: Belief | None = None,
    ) -> FilterResult:
        """Filter latent observations. Models with their own encoders call this method.

        Args:
            y: (batch, time, obs), latent observations, obs = hidden_size / 2. NaN means missing if ``mask`` is None.
            y_var: (batch, time, obs), their variances.
            times: as for `forward`.
            mask: (batch, time) or (batch, time, obs), True = observed.
            state: as for `forward`.

        Returns:
            The priors and posteriors at every time. The gain is computed on access.

        Raises:
            ValueError: if an argument has a wrong shape, type or value.
        """
        y, y_var, observed = self._validate_observations(y, y_var, mask)
        with torch.autocast(y.device.type, enabled=False):
            state = None if state is None else as_state(state, len(y), self.hidden_size, self.raw_noise)
            times = as_times(times, observed, None if state is None else state.time)
            prior, posterior = self._filter_sequence(*self._prepare_inputs(y, y_var, times, observed, state))
        return FilterResult(prior._replace(time=times), posterior._replace(time=times), y_var)

    def advance(
        self,
        y: Float[Tensor, "batch time obs"],
        y_var: Float[Tensor, "batch time obs"],
        times: Float[Tensor, "batch time"],
        observed: Bool[Tensor, "batch time"],
        state: Belief | None = None,
    ) -> Belief:
        """Return the last posterior of `filter` without checks. In streaming, checks would cost more than the filter.

        Args:
            y: latent observations.
            y_var: their variances.
            times: absolute times, not decreasing.
            observed: True where something is observed.
            state: the belief to continue from.

        Returns:
            The belief after the last time.
        """
        seen = observed[..., None].expand_as(y)
        _, posterior = self._filter_sequence(*self._prepare_inputs(y, y_var, times, seen, state))
        return posterior._replace(time=times).at(-1)

    def propagate(self, state: Belief, delta: Tensor | float | int) -> Belief:
        """Predict the belief after a gap.

        Args:
            state: the belief to start from.
            delta: the gap, a number or (batch,), in the unit of ``times``, not negative.

        Returns:
            The belief after the gap.

        Raises:
            ValueError: if ``state`` or ``delta`` is not valid.
        """
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
        return later._replace(time=None if state.time is None else _add_gap(state.time, gap))

    def step(
        self,
        x_t: Tensor,
        time: Tensor | float | int,
        state: Belief | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Float[Tensor, "batch state"], Belief]:
        """Filter one observation. Streaming calls this method.

        Args:
            x_t: (batch, input), the observation.
            time: its time, a number or (batch,).
            state: the belief to continue from.
            mask: (batch,) or (batch, input), True = observed.

        Returns:
            The posterior mean, and the belief to continue from.

        Raises:
            ValueError: if an argument has a wrong shape, type or value.
        """
        shape = tuple(getattr(x_t, "shape", ()))
        require(len(shape) == 2, f"`x_t` must be a tensor of the shape (batch, {self.input_size}), got {shape}.")
        times = as_moments("time", time, len(x_t), x_t.device)[:, None]
        output, belief = self(x_t[:, None], times, mask[:, None] if isinstance(mask, Tensor) else mask, state)
        return output[:, 0], belief

    def observe(
        self, x: Float[Tensor, "batch time input"]
    ) -> tuple[Float[Tensor, "batch time obs"], Float[Tensor, "batch time obs"]]:
        """Encode observations with two linear maps. Values beyond the bound of a mean are clamped to it.

        Args:
            x: observations, finite.

        Returns:
            Latent observations and their variances.
        """
        check_dtype(self.dtype)
        limit = bounds(self.dtype).mean
        with torch.autocast(x.device.type, enabled=False):
            x = clamp(x.to(self.dtype), -limit, limit)
            return self.observation(x), self.variance_map.forward(self.observation_variance(x))

    def initial(self, batch: int) -> Belief:
        """Return the belief before any observation: mean 0, side 0, and a trained variance that starts at 10."""
        variance = self.initial_map.forward(self.raw_initial_variance).expand(batch, -1)
        upper, lower = variance.chunk(2, -1)
        return Belief(torch.zeros_like(variance), upper, lower, torch.zeros_like(upper))

    def freeze(self) -> None:
        """Compute results that depend on the parameters alone, once. This class has none."""

    def extra_repr(self) -> str:
        """Return the sizes, as `torch.nn.GRU` shows them."""
        return f"{self.input_size}, {self.hidden_size}, time_scale={self.time_scale}"

    def _validate_observations(self, y: Tensor, y_var: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Check latent observations and variances. Return both in the type of the layer, and the mask."""
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

    def _prepare_inputs(
        self, y: Tensor, y_var: Tensor, times: Tensor, observed: Tensor, state: Belief | None
    ) -> tuple[Belief, Tensor, Tensor, Tensor, Tensor]:
        """Return the arguments of `_filter_sequence`: start, clamped observations and variances, mask and gaps."""
        start = self.initial(len(y)) if state is None else state
        limit = bounds(self.dtype).mean
        delta = gaps(times, start.time, self.time_scale, self.dtype)
        return start, y.clamp(-limit, limit), y_var.clamp(MIN_VARIANCE, MAX_VARIANCE), observed, delta

    def _filter_sequence(
        self,
        start: Belief,
        y: Float[Tensor, "batch time obs"],
        y_var: Float[Tensor, "batch time obs"],
        observed: Bool[Tensor, "batch time obs"],
        delta: Float[Tensor, "batch time"],
    ) -> tuple[Belief, Belief]:
        """Return priors and posteriors over a sequence. ``start`` has a time if it continues an earlier sequence."""
        raise TypeError("KalmanLayer is a base class: use CRU, FastCRU, RKN or PairedCRU")

    def _predict(self, state: Belief, delta: Float[Tensor, " batch"]) -> Belief:
        """Return the prior after a gap."""
        raise TypeError("KalmanLayer is a base class: use CRU, FastCRU, RKN or PairedCRU")


def _add_gap(time: Tensor, gap: Tensor) -> Tensor:
    """Return ``time + gap`` in the type of ``time``. An integer time stays an integer if the gap is one."""
    if time.is_floating_point() or not gap.is_floating_point():
        return time + gap.to(time.dtype)
    whole = not torch.compiler.is_compiling() and bool((gap == gap.round()).all())
    return time + gap.to(time.dtype) if whole else time.double() + gap
