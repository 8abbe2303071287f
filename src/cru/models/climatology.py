"""Seasonal baselines: the seasonal mean of the training set with an offset per series, and the seasonal naive rule."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cru.functional.carry_forward import last_observation, running_mean
from cru.models.base import BatchLike, Spec
from cru.models.naive import InputRule, NaiveConfig
from cru.shapes import Float, Int64


@dataclass(frozen=True)
class SeasonConstants:
    """Constants of the seasonal baselines."""

    max_periods_back: int = 7  # seasonal naive rule: how many periods it goes back
    tolerance: float = 1 / 48  # seasonal naive rule: largest difference of times, in periods
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
    """season(t mod period) + mean of (value - season) over the series so far.

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
        """Estimate the period, then the mean of every phase. A phase without targets gets the overall mean."""
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
    """Predict the value one period ago, or up to seven periods ago if it is missing, or else the last value.

    A value counts if its time differs from a whole number of periods by less than a tolerance.
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
    """Find the peak of the periodogram of a histogram. All entries have the same weight, whatever their scale."""
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
    basis = torch.stack([torch.ones_like(angle), angle.sin(), angle.cos()], 1)
    products = (basis[:, :, None] * basis[:, None]) @ count  # (cycles, 3, 3, entry)
    moments = basis @ total
    eye = torch.eye(3, dtype=total.dtype, device=total.device)[..., None]
    ridge = CONSTANTS.relative_ridge * count.sum(0).clamp(min=1) * eye
    fitted = torch.linalg.solve((products + ridge).movedim(-1, 1), moments.movedim(-1, 1)[..., None])
    squares: Tensor = moments.movedim(-1, 1) * fitted[..., 0]
    return squares.sum((1, 2))
