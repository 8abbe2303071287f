"""Naive models without training, for comparison in every table of results."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cru.functional.carry_forward import last_observation, next_observation, running_mean
from cru.layers.checks import require
from cru.models.base import BatchLike, Model, ModelConfig, Prediction, Spec
from cru.shapes import Float, Int64


@dataclass(frozen=True, kw_only=True)
class NaiveConfig(ModelConfig):
    """The config of a naive model, which has no options."""


class Naive(Model):
    """Base class of naive models: a rule for the mean, with the mean squared error of the training set as variance.

    `prepare` computes both.
    """

    Config: ClassVar[type] = NaiveConfig
    mean: Tensor
    var: Tensor

    def __init__(self, spec: Spec, config: NaiveConfig) -> None:
        super().__init__(spec, config)
        self.register_buffer("mean", torch.zeros(spec.target_shape))
        self.register_buffer("var", torch.ones(spec.target_shape))

    def rule(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """Predict the mean."""
        raise TypeError("Naive is a base class: use cru.models.create")

    def prepare(self, batches: Iterable[BatchLike]) -> None:
        """Compute the mean of each target entry over the training set, then the mean squared error of the rule."""
        kept = batches if isinstance(batches, Sequence) else list(batches)  # two passes
        self.mean.copy_(self._average(kept, self.targets))
        self.fit_rule(kept)
        self.var.copy_(self._average(kept, lambda batch: (self.targets(batch) - self.rule(batch)).square()))

    def fit_rule(self, batches: Sequence[BatchLike]) -> None:
        """Compute further statistics of the training set that the rule needs."""

    def forward(self, batch: BatchLike, *, intermediates: bool = False) -> Prediction:
        """Apply the rule, with the same variance at all times."""
        mean = self.rule(batch)
        if self.spec.likelihood == "bernoulli":
            return Prediction(mean.clamp(0, 1))
        return Prediction(mean, self.var.expand_as(mean))

    @staticmethod
    def _average(batches: Sequence[BatchLike], of: Callable[[BatchLike], Tensor]) -> Tensor:
        """Average a quantity of each target entry over all batches, where the target mask is True."""
        total = count = torch.zeros((), dtype=torch.float64)
        for batch in batches:
            mask = batch.target_mask.expand_as(batch.targets)
            total = total + torch.where(mask, of(batch).double(), 0.0).sum((0, 1))
            count = count + mask.sum((0, 1))
        return total / count.clamp(min=1)


class Mean(Naive):
    """A rule that predicts the mean of the training set."""

    def rule(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """Predict the same mean everywhere."""
        return self.mean.expand(*batch.times.shape, *self.spec.target_shape)


class InputRule(Naive):
    """Base class of rules that predict from earlier inputs. The targets must be the inputs."""

    def __init__(self, spec: Spec, config: NaiveConfig) -> None:
        super().__init__(spec, config)
        if not spec.targets_are_inputs:
            raise ValueError(
                f"{type(self).__name__} predicts the inputs themselves, of the shape {spec.input_shape}, got a "
                f"regression to targets of the shape {spec.target_shape}. Use 'mean'."
            )


class SeriesMean(InputRule):
    """A rule that predicts the mean of the series so far, or else that of the training set."""

    def rule(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """Predict the mean up to and including each time."""
        mean, known = running_mean(self.inputs(batch), batch.mask)
        return torch.where(known, mean, self.mean)


class LastValue(InputRule):
    """A rule that predicts the last observation, or else the mean of the training set."""

    def rule(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """Predict the last observation up to and including each time."""
        last = last_observation(self.inputs(batch), batch.mask)
        return torch.where(last.known, last.value, self.mean)


class Linear(InputRule):
    """A rule that interpolates linearly between two observations. At either end, it predicts the nearest one."""

    causal: ClassVar[bool] = False

    def rule(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """Interpolate between observations."""
        values = self.inputs(batch)
        last, following = last_observation(values, batch.mask), next_observation(values, batch.mask)
        times = batch.times.reshape(*batch.times.shape, *(1,) * (values.ndim - 2)).expand(values.shape)
        start, end = times.gather(1, last.step), times.gather(1, following.step)
        share = torch.where(end > start, (times - start) / (end - start), 0.0).to(values.dtype)
        between = last.value + share * (following.value - last.value)
        either = torch.where(last.known, last.value, torch.where(following.known, following.value, self.mean))
        return torch.where(last.known & following.known, between, either)


@dataclass(frozen=True, kw_only=True)
class BlendConfig(NaiveConfig):
    """Weights of the last value and of the series mean. The rest is the weight of the mean of the training set."""

    last: float = 0.3
    series: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_not_negative("last", "series")
        total = self.last + self.series
        require(total <= 1 + 1e-9, f"`last` + `series` must be at most 1, got {total}.")


class Blend(InputRule):
    """A rule that predicts a weighted mean of the last value, the series mean and the mean of the training set."""

    Config: ClassVar[type] = BlendConfig
    config: BlendConfig

    def rule(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """Predict the weighted mean. Without an observation, predict the mean of the training set."""
        values = self.inputs(batch)
        last, (mean, known) = last_observation(values, batch.mask).value, running_mean(values, batch.mask)
        a, b = self.config.last, self.config.series
        return torch.where(known, a * last + b * mean + (1 - a - b) * self.mean, self.mean)


@dataclass(frozen=True)
class SeasonConstants:
    """Constants of the seasonal naive models."""

    max_periods_back: int = 7  # seasonal naive model: largest number of periods back in time
    tolerance: float = 1 / 48  # seasonal naive model: largest difference of times, in periods
    histogram_cells: int = 4096  # cells over the training times in the search of the period
    frequencies_per_cycle: int = 4  # coarse search: frequencies between n and n + 1 cycles in the span
    refined_frequencies: int = 201  # fine search: frequencies around the best coarse one
    relative_ridge: float = 1e-9  # ridge of the least squares fit, relative to the number of observations


CONSTANTS = SeasonConstants()


@dataclass(frozen=True, kw_only=True)
class ClimatologyConfig(NaiveConfig):
    """Options of the seasonal mean."""

    period: float | None = None  # in the unit of the times, 365.25 for days; None: estimated from the training set
    bins: int = 73  # phases with separate means: 5 days of a year each
    offset: bool = True  # whether to add the mean deviation of the series from its season so far

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("bins")
        if self.period is not None:
            self.check_positive("period")


class Climatology(InputRule):
    """A rule that predicts season(t mod period) + mean of (value - season) over the series so far.

    Without a given period, the period is the one whose sine and cosine explain most of the training set. The range of
    times holds at least two such periods. It holds at most 2048, and at most half the number of distinct times,
    because higher frequencies are aliases.
    """

    Config: ClassVar[type] = ClimatologyConfig
    config: ClimatologyConfig
    season: Tensor
    period: Tensor

    def __init__(self, spec: Spec, config: ClimatologyConfig) -> None:
        super().__init__(spec, config)
        self.register_buffer("season", torch.zeros(config.bins, *spec.target_shape))
        period = (spec.time_end - spec.time_start or 1.0) if config.period is None else config.period
        self.register_buffer("period", torch.tensor(period))

    def phase(self, times: Float[Tensor, "*any"]) -> Int64[Tensor, "*any"]:
        """Return the bin of the season for each time."""
        period = self.period.to(times.dtype)
        share = torch.remainder(times, period) / period
        return (share * self.config.bins).long().clamp(0, self.config.bins - 1)

    def fit_rule(self, batches: Sequence[BatchLike]) -> None:
        """Estimate the period, then the mean of every phase. A phase without targets has the overall mean."""
        if self.config.period is None and self.spec.time_end > self.spec.time_start:
            span = self.spec.time_end - self.spec.time_start
            total, count = self._histogram(batches, self._cell, CONSTANTS.histogram_cells)
            self.period.copy_(_strongest_period(total, count, span))
        total, count = self._histogram(batches, self.phase, self.config.bins)
        known = torch.where(count > 0, total / count.clamp(min=1), self.mean.double())
        self.season.copy_(known)

    def rule(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """Predict the season plus the mean deviation of the series so far."""
        season = self.season[self.phase(batch.times)]
        if not self.config.offset:
            return season
        offset, _ = running_mean(self.inputs(batch) - season, batch.mask)
        return season + offset

    def _cell(self, times: Tensor) -> Tensor:
        start, end, cells = self.spec.time_start, self.spec.time_end, CONSTANTS.histogram_cells
        return ((times - start) / (end - start) * cells).long().clamp(0, cells - 1)

    def _histogram(
        self, batches: Sequence[BatchLike], place: Callable[[Tensor], Tensor], size: int
    ) -> tuple[Tensor, Tensor]:
        """Sum and count the targets in each of ``size`` cells. ``place`` maps times to cells."""
        total = torch.zeros(size, *self.spec.target_shape, dtype=torch.float64, device=self.season.device)
        count = torch.zeros_like(total)
        for batch in batches:
            mask = batch.target_mask.expand_as(batch.targets).flatten(0, 1)
            where = place(batch.times).flatten()
            total.index_add_(0, where, torch.where(mask, batch.targets.flatten(0, 1).double(), 0.0))
            count.index_add_(0, where, mask.double())
        return total, count


class SeasonalNaive(Climatology):
    """A rule that predicts the value one period ago, or up to seven periods ago if it is missing, or the last value.

    A value counts if its time differs from an integer number of periods by less than a tolerance.
    """

    def rule(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """Predict the most recent value at the same phase."""
        values, mask = self.inputs(batch), batch.mask.expand_as(batch.values)
        last = last_observation(values, mask)
        found = torch.where(last.known, last.value, self.mean)
        period = self.period.to(batch.times.dtype)
        times = batch.times.contiguous()
        for cycles in range(CONSTANTS.max_periods_back, 0, -1):
            same_phase = times - cycles * period
            after = torch.searchsorted(times, same_phase.contiguous()).clamp(max=times.shape[1] - 1)
            before = (after - 1).clamp(min=0)
            distance = [(times.gather(1, step) - same_phase).abs() for step in (before, after)]
            step = torch.where(distance[0] <= distance[1], before, after)
            near = torch.minimum(*distance) <= CONSTANTS.tolerance * period
            index = step.reshape(*step.shape, *(1,) * (values.ndim - 2)).expand(values.shape)
            use = near.reshape(*near.shape, *(1,) * (values.ndim - 2)) & mask.gather(1, index)
            found = torch.where(use, values.gather(1, index), found)
        return found


def _strongest_period(total: Tensor, count: Tensor, span: float) -> Tensor:
    """Find the peak of the periodogram of a histogram. All entries have the same weight at any scale."""
    total, count = total.flatten(1), count.flatten(1)
    deviation = total - count * (total.sum(0) / count.sum(0).clamp(min=1))
    deviation = deviation / deviation.norm(dim=0).clamp(min=torch.finfo(total.dtype).tiny)
    cells, filled, fine = total.shape[0], int((count > 0).any(1).sum()), CONSTANTS.frequencies_per_cycle
    fewest, most = 2 * fine, max(2, filled // 2) * fine  # higher frequencies are aliases of lower ones
    coarse = torch.fft.rfft(deviation, n=cells * fine, dim=0)[fewest : most + 1].abs().square().sum(1)
    best = (fewest + coarse.argmax()) / fine
    refined = torch.linspace(-1, 1, CONSTANTS.refined_frequencies, dtype=total.dtype, device=total.device)
    cycles = best + refined / fine
    cycles = cycles.clamp(min=2)
    period: Tensor = span / cycles[_explained(deviation, count, cycles).argmax()]
    return period


def _explained(total: Tensor, count: Tensor, cycles: Tensor) -> Tensor:
    """Compute the sum of squares that a + b sin + c cos explains, for each number of ``cycles``.

    It equals the periodogram if sine and cosine are orthogonal. They are not over a few incomplete cycles.
    """
    turns = torch.arange(total.shape[0], dtype=total.dtype, device=total.device) / total.shape[0]
    angle = 2 * torch.pi * cycles[:, None] * turns
    sine, cosine = angle.sin(), angle.cos()
    moments = torch.stack([torch.ones_like(angle), sine, cosine], 1) @ total
    s, c, s2, c2 = (torch.stack([sine, cosine, (2 * angle).sin(), (2 * angle).cos()], 1) @ count).unbind(1)
    n = count.sum(0).expand_as(s)
    rows = (n, s, c), (s, (n - c2) / 2, s2 / 2), (c, s2 / 2, (n + c2) / 2)  # sin² = (1 - cos 2θ) / 2
    products = torch.stack([torch.stack(row, 1) for row in rows], 1)  # (cycles, 3, 3, entry)
    eye = torch.eye(3, dtype=total.dtype, device=total.device)[..., None]
    ridge = CONSTANTS.relative_ridge * count.sum(0).clamp(min=1) * eye
    fitted = torch.linalg.solve((products + ridge).movedim(-1, 1), moments.movedim(-1, 1)[..., None])
    squares: Tensor = moments.movedim(-1, 1) * fitted[..., 0]
    return squares.sum((1, 2))
