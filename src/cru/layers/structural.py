"""The structural layer: each variable is the sum of level, OU processes, oscillators and a shared seasonal mean."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from cru import native
from cru.functional import structural
from cru.functional.gaps import ROUNDING_ULPS
from cru.functional.structural import Components, Filtered, Smoothed, StructuralState
from cru.layers.checks import (
    as_mask,
    as_moments,
    as_times,
    check_count,
    check_device,
    check_dtype,
    check_series,
    observed_values,
    require,
)
from cru.shapes import Bool, Float, Float64

MIN_NOISE = 1e-4  # of the variance of standardised values


@dataclass(frozen=True)
class InitialComponents:
    """Initial variances of a new layer, of standardised values, and the initial damping of its oscillators."""

    level_var: float = 0.3
    ou_var: float = 0.5  # of all Ornstein-Uhlenbeck processes together
    oscillator_var: float = 0.05
    noise_var: float = 0.1
    oscillator_time_constant: float = 20.0  # in periods


INITIAL = InitialComponents()


class ComponentEstimates(NamedTuple):
    """Mean and variance of every component of the signal given the observations, with the component names."""

    names: tuple[str, ...]
    mean: Float[Tensor, "batch time variable component"]
    var: Float[Tensor, "batch time variable component"]


def cos_sin(times: Float64[Tensor, "*any"], periods: Iterable[float]) -> Float64[Tensor, "*any wave"]:
    """Compute cosine and sine of the phase of each period, in float64."""
    phase = 2 * math.pi * (times[..., None] / torch.tensor(tuple(periods), dtype=torch.float64, device=times.device))
    return torch.stack([phase.cos(), phase.sin()], -1).flatten(-2)


class StructuralLayer(nn.Module):
    """A structural time-series layer: one Gaussian process per variable, at a cost linear in the observations.

    y(t) = seasonal mean(t) + level + Σ OU processes + Σ damped oscillators + noise. All series share the seasonal mean
    and the hyperparameters. An oscillator consists of two OU coefficients, which multiply cos and sin of its phase.

    Means and variances are those of the signal without noise. Add `hyperparameters.noise` for new observations. The
    initial values of the parameters suit standardised values. A state is float64 and continues a series exactly.

    Example:
        >>> from cru import StructuralLayer
        >>> layer = StructuralLayer(2, time_constants=[1.0, 10.0], periods=[24.0])
        >>> layer.names
        ('level', 'ou 1', 'ou 10', 'period 24', 'seasonal mean')
        >>> times = torch.arange(5.0, dtype=torch.float64)
        >>> filtered = layer.filter(torch.randn(3, 5, 2), times)
        >>> mean, var = layer.forecast(filtered.state, times[-1:] + 1)
        >>> mean.shape
        torch.Size([3, 1, 2])

    Args:
        size: number of variables.
        time_constants: initial time constants of the OU processes, in the unit of ``times``.
        periods: one period per oscillator. List harmonics as separate periods.
        season: periods of the seasonal mean that all series share. Default: ``periods``. It may have more harmonics
            than there are oscillators, because they need no state.
        level: time constant of the level, which is not trained. It should far exceed the length of a series.
        device: device of the parameters.
        dtype: type of the parameters and results, torch.float32 or torch.float64.

    Raises:
        ValueError: if an argument is not valid.
    """

    def __init__(
        self,
        size: int,
        time_constants: Iterable[float],
        periods: Iterable[float] = (),
        *,
        season: Iterable[float] | None = None,
        level: float = 1e6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_count("size", size)
        check_dtype(dtype or torch.get_default_dtype())
        self.size, self.level = size, float(level)
        self.time_constants, self.periods = tuple(map(float, time_constants)), tuple(map(float, periods))
        self.season_periods = self.periods if season is None else tuple(map(float, season))
        given = {"level": (self.level,), "time_constants": self.time_constants, "periods": self.periods}
        given["season"] = self.season_periods
        for name, numbers in given.items():
            wrong = [number for number in numbers if not 0 < number < math.inf]
            require(not wrong, f"`{name}` must be positive and finite, got {wrong[0] if wrong else None}.")
        flat, waves = 1 + len(self.time_constants), len(self.periods)
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.log_rate = nn.Parameter(torch.empty(size, flat - 1 + waves, **where))  # of all components except the level
        self.log_var = nn.Parameter(torch.empty(size, flat + waves, **where))
        self.log_noise = nn.Parameter(torch.empty(size, **where))
        self.season = nn.Parameter(torch.empty(size, 2 * len(self.season_periods), **where))  # on cos and sin
        component = [*range(flat), *(flat + k // 2 for k in range(2 * waves))]
        self.register_buffer("component", torch.tensor(component, device=device), persistent=False)
        self.component: Tensor  # the component of each coefficient
        self._frozen: Components | None = None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set all parameters to the values of a new layer."""
        count, waves = len(self.time_constants), len(self.periods)
        constants = [*self.time_constants, *(INITIAL.oscillator_time_constant * period for period in self.periods)]
        variances = [INITIAL.level_var] + [INITIAL.ou_var / max(count, 1)] * count + [INITIAL.oscillator_var] * waves
        self.log_rate.copy_(-torch.tensor(constants, dtype=torch.float64).log())
        self.log_var.copy_(torch.tensor(variances, dtype=torch.float64).log())
        self.log_noise.fill_(math.log(INITIAL.noise_var))
        self.season.zero_()

    @property
    def dtype(self) -> torch.dtype:
        """The type of the results. The layer computes in float64."""
        return self.log_noise.dtype

    @property
    def names(self) -> tuple[str, ...]:
        """The components: "level", "ou" with the initial time constant, "period" with the period, "seasonal mean"."""
        return (
            "level",
            *(f"ou {constant:g}" for constant in self.time_constants),
            *(f"period {period:g}" for period in self.periods),
            *(("seasonal mean",) if self.season_periods else ()),
        )

    @torch.no_grad()
    def freeze(self) -> None:
        """Compute the hyperparameters once. Use it for a copy whose parameters never change again."""
        self._frozen = self.hyperparameters

    @property
    def hyperparameters(self) -> Components:
        """Rates, variances and noise on their natural scale, one for each coefficient."""
        if self._frozen is not None:
            return self._frozen
        level = torch.full_like(self.log_noise, -math.log(self.level))[:, None]
        rate = torch.cat([level, self.log_rate], 1).exp()
        index = self.component
        return Components(rate[:, index], self.log_var.exp()[:, index], self.log_noise.exp() + MIN_NOISE)

    def regressors(self, times: Float64[Tensor, "batch time"]) -> Float64[Tensor, "batch time coefficient"]:
        """Compute h(t): 1 for the level and the OU processes, cos and sin for each oscillator."""
        waves = cos_sin(times, self.periods)
        return torch.cat([waves.new_ones(*times.shape, 1 + len(self.time_constants)), waves], -1)

    def seasonal_mean(self, times: Float64[Tensor, "batch time"]) -> Float64[Tensor, "batch time variable"]:
        """Compute the seasonal mean that all series share."""
        return cos_sin(times, self.season_periods) @ self.season.double().T

    def forward(
        self, values: Tensor, times: Tensor, mask: Tensor | None = None, state: StructuralState | None = None
    ) -> Filtered:
        """Call `filter` with the same arguments."""
        return self.filter(values, times, mask, state)

    def filter(
        self, values: Tensor, times: Tensor, mask: Tensor | None = None, state: StructuralState | None = None
    ) -> Filtered:
        """Predict every row from strictly earlier rows.

        Args:
            values: (batch, time, variable). NaN means missing if ``mask`` is None.
            times: (batch, time) or (time,), absolute, not decreasing. Several rows may have the same time.
            mask: (batch, time) or (batch, time, variable), True = observed.
            state: the state to continue from, as an earlier call returned it.

        Returns:
            Mean and variance of the signal, negative log likelihood, and the state after the last row.

        Raises:
            ValueError: if an argument has a wrong shape, type or value.
        """
        data, mean = self._inputs(values, times, mask, state)
        kind = native if self._compiled(data) else structural
        found = kind.filter_structural(*data)
        mean, var, nll = (result.to(self.dtype) for result in (found.mean + mean, found.var, found.nll))
        return Filtered(mean, var, nll, found.state)

    def smooth(
        self, values: Tensor, times: Tensor, mask: Tensor | None = None, state: StructuralState | None = None
    ) -> Smoothed:
        """Estimate every row from all rows, and from all other rows. The arguments are those of `filter`."""
        data, mean = self._inputs(values, times, mask, state)
        found = self._smoother(data)(*data)
        results = (found.mean + mean, found.var, found.loo_mean + mean, found.loo_var)
        return Smoothed(*(result.to(self.dtype) for result in results))

    def nll(
        self, values: Tensor, times: Tensor, mask: Tensor | None = None, state: StructuralState | None = None
    ) -> Float[Tensor, "batch variable"]:
        """Compute the negative log likelihood for training, summed over the observed rows.

        The arguments are those of `filter`. The compiled likelihood skips unobserved rows.
        """
        data, _ = self._inputs(values, times, mask, state)
        if native.structural_available(data[3], *(state or ())):
            return native.nll_structural(*data).to(self.dtype)
        return structural.filter_structural(*data).nll.to(self.dtype)

    def components(
        self,
        values: Tensor,
        times: Tensor,
        mask: Tensor | None = None,
        state: StructuralState | None = None,
        *,
        groups: Sequence[int] | None = None,
        causal: bool = False,
    ) -> ComponentEstimates:
        """Estimate every component from all rows.

        The means add up to the mean of `smooth`. The variances do not add up, because the components are correlated.
        The seasonal mean has no variance.

        Args:
            values: as in `filter`.
            times: as in `filter`.
            mask: as in `filter`.
            state: as in `filter`.
            groups: the number of a group, from 0, for each component except the seasonal mean. The result has the sum
                of each group. None: every component is a group.
            causal: whether to estimate every row only from the rows up to it.

        Returns:
            Mean and variance of each group, then of the seasonal mean.

        Raises:
            ValueError: if an argument has a wrong shape, type or value.
        """
        each = self.names[: 1 + len(self.time_constants) + len(self.periods)]
        chosen = range(len(each)) if groups is None else groups
        require(
            len(chosen) == len(each) and sorted(set(chosen)) == list(range(max(chosen) + 1)),
            f"`groups` must give each of the {len(each)} components a number from 0, without gaps, got {groups}.",
        )
        data, shared = self._inputs(values, times, mask, state)
        group = torch.tensor(list(chosen), device=self.component.device)[self.component]
        smooth = native.smooth_components if self._compiled(data) else structural.smooth_components
        mean, var = (structural.filter_components if causal else smooth)(*data[:5], group, data[5])
        names = tuple(
            " + ".join(name for name, number in zip(each, chosen, strict=True) if number == k)
            for k in range(max(chosen) + 1)
        )
        if self.season_periods:
            mean, var = torch.cat([mean, shared[..., None]], -1), torch.nn.functional.pad(var, (0, 1))
            names += ("seasonal mean",)
        return ComponentEstimates(names, mean.to(self.dtype), var.to(self.dtype))

    def sample(
        self,
        values: Tensor,
        times: Tensor,
        n: int,
        mask: Tensor | None = None,
        state: StructuralState | None = None,
        *,
        generator: Generator | None = None,
    ) -> Float[Tensor, "n batch time variable"]:
        """Draw joint samples of the signal at all rows, given all observations.

        Args:
            values: as in `filter`.
            times: as in `filter`.
            n: number of samples.
            mask: as in `filter`.
            state: as in `filter`.
            generator: the random generator.

        Raises:
            ValueError: if an argument has a wrong shape, type or value.
        """
        check_count("n", n)
        data, mean = self._inputs(values, times, mask, state)
        drawn = structural.sample_structural(*data[:5], n, generator, data[5], smooth=self._smoother(data))
        return (drawn + mean).to(self.dtype)

    def forecast(
        self, state: StructuralState, times: Tensor
    ) -> tuple[Float[Tensor, "batch query variable"], Float[Tensor, "batch query variable"]]:
        """Predict mean and variance of the signal.

        Args:
            state: the state after the last observation.
            times: (query,) or (batch, query), in any order, not before the time of ``state``.

        Returns:
            Mean and variance, each (batch, query, variable).

        Raises:
            ValueError: if ``state`` or ``times`` is not valid.
        """
        state = self._checked(state, None)
        batch, shape = len(state.time), tuple(getattr(times, "shape", ()))
        require(
            len(shape) == 1 or (len(shape) == 2 and shape[0] == batch),
            f"`times` must have the shape (query,) or (batch, query) = ({batch}, query), got {shape}.",
        )
        times = times.double().expand(batch, -1)
        _check_later("times", times, state)
        h = self.regressors(times)
        mean, var = structural.forecast_structural(state, times, h, self.hyperparameters)
        return (mean + self.seasonal_mean(times)).to(self.dtype), var.to(self.dtype)

    def propagate(self, state: StructuralState, time: Tensor | float | int) -> StructuralState:
        """Move a state to a later time.

        Args:
            state: the state after the last observation.
            time: the absolute time, a number or (batch,), not before that of the state.

        Returns:
            The state at this time.

        Raises:
            ValueError: ``state`` or ``time`` is not valid.
        """
        state = self._checked(state, None)
        moment = as_moments("time", time, len(state.time), state.time.device).double()
        _check_later("time", moment[:, None], state)
        return structural.propagate(state, torch.maximum(moment, state.time), self.hyperparameters)

    def initial(self, times: Float64[Tensor, "batch time"]) -> StructuralState:
        """Return the state before any observation, at the first of ``times``."""
        return structural.initial_state(self.hyperparameters, times)

    def extra_repr(self) -> str:
        """Return the sizes, as `torch.nn.GRU` shows them."""
        sizes = f"{self.size}, time_constants={self.time_constants}, periods={self.periods}"
        return f"{sizes}, season={self.season_periods}, level={self.level:g}"

    def _inputs(
        self, values: Tensor, times: Tensor, mask: Tensor | None, state: StructuralState | None
    ) -> tuple[tuple[Tensor, Tensor, Bool[Tensor, "..."], Tensor, Components, StructuralState | None], Tensor]:
        """Return the arguments of the functions in float64, without the seasonal mean, and that mean."""
        check_dtype(self.dtype)
        check_series("values", values, self.size)
        check_device("values", values, self.log_noise.device)
        observed = as_mask(mask, values)
        known = observed_values("values", values.double(), observed)
        times = as_times(times, observed, None).double()
        state = None if state is None else self._checked(state, len(values))
        h = self.regressors(times)
        mean = self.seasonal_mean(times)
        return (times, known - mean, observed, h, self.hyperparameters, state), mean

    def _compiled(self, data: tuple[Any, ...]) -> bool:
        times, values, _, h, hyperparameters, state = data
        return native.structural_available(h, times, values, *hyperparameters, *(state or ()))

    def _smoother(self, data: tuple[Any, ...]) -> Any:
        return native.smooth_structural if self._compiled(data) else structural.smooth_structural

    def _checked(self, state: StructuralState, batch: int | None) -> StructuralState:
        """Check shapes and values of ``state`` and convert it to float64."""
        require(
            isinstance(state, StructuralState),
            f"`state` must be a `StructuralState` as `filter` returns it, got {type(state).__name__}.",
        )
        batch = len(state.time) if batch is None else batch
        each = (batch, self.size, len(self.component))
        for name, field, shape in zip(state._fields, state, (each, (*each, each[-1]), (batch,)), strict=True):
            require(
                tuple(field.shape) == shape,
                f"`state.{name}` must have the shape {shape}, got {tuple(field.shape)}.",
            )
            check_device(f"state.{name}", field, self.log_noise.device)
            require(
                torch.compiler.is_compiling() or bool(torch.isfinite(field).all()),
                f"`state.{name}` must be finite. Start without a state, or continue from an earlier one.",
            )
        return StructuralState(*(field.double() for field in state))


def _check_later(name: str, times: Float64[Tensor, "batch query"], state: StructuralState) -> None:
    """Raise ValueError if a time is not finite, or before that of ``state`` by more than a rounding error."""
    if torch.compiler.is_compiling():
        return
    slack = ROUNDING_ULPS * torch.finfo(torch.float64).eps * times.abs()
    wrong = ~torch.isfinite(times) | (times < state.time[:, None] - slack)
    if bool(wrong.any()):
        series, step = (int(i) for i in wrong.nonzero()[0])
        raise ValueError(
            f"`{name}` must be finite and not before the time of its state: series {series} has "
            f"{times[series, step].item()}, its state has {state.time[series].item()}."
        )
