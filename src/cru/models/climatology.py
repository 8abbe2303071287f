"""The seasonal mean of the training set, moved by each series' own offset."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from cru.functional.fill import running_mean
from cru.models.base import Batch, Spec
from cru.models.naive import Echo, NaiveConfig

_FINEST = 4096  # cells of the histogram over the training times in which a period is looked for


@dataclass(frozen=True, kw_only=True)
class ClimatologyConfig(NaiveConfig):
    """How the season is found."""

    period: float | None = None  # in the unit of the times, 365.25 for days; None: found in the training set
    bins: int = 73  # phases of a period that have a mean of their own: 5 days of a year
    offset: bool = True  # add the mean of what the series has so far lain above its season

    def __post_init__(self) -> None:
        if self.period is not None and not self.period > 0:
            raise ValueError(f"`period` must be positive, got {self.period}.")
        if self.bins < 1:
            raise ValueError(f"`bins` must be at least 1, got {self.bins}.")


class Climatology(Echo):
    """season(t mod period) + mean of (value - season) over the series so far.

    Without a period given, the one is taken whose sine and cosine explain most of the training set, among those of
    which at least two fit into its times.
    """

    Config: ClassVar[type] = ClimatologyConfig
    config: ClimatologyConfig
    season: Tensor
    period: Tensor

    def __init__(self, spec: Spec, config: ClimatologyConfig) -> None:
        super().__init__(spec, config)
        self.register_buffer("season", torch.zeros(config.bins, *spec.target_shape))
        period = config.period or (spec.time_end - spec.time_start) or 1.0
        self.register_buffer("period", torch.tensor(period))

    def phase(self, times: Float[Tensor, "*any"]) -> Int64[Tensor, "*any"]:
        """The bin of the season that a time lies in."""
        period = self.period.to(times.dtype)
        share = torch.remainder(times, period) / period
        return (share * self.config.bins).long().clamp(0, self.config.bins - 1)

    def find(self, batches: Sequence[Batch]) -> None:
        """The period, then the mean of every phase; a phase never seen has the mean of all."""
        if self.config.period is None and self.spec.time_end > self.spec.time_start:
            span = self.spec.time_end - self.spec.time_start
            total, count = self._histogram(batches, self._cell, _FINEST)
            self.period.copy_(_strongest_period(total, count, span))
        total, count = self._histogram(batches, self.phase, self.config.bins)
        known = torch.where(count > 0, total / count.clamp(min=1), self.mean.double())
        self.season.copy_(known)

    def rule(self, batch: Batch) -> Float[Tensor, "batch time *target"]:
        """The season, and what the series has so far lain above it."""
        season = self.season[self.phase(batch.times)]
        if not self.config.offset:
            return season
        offset, _ = running_mean(self.inputs(batch) - season, batch.mask)
        return season + offset

    def _cell(self, times: Tensor) -> Tensor:
        start, end = self.spec.time_start, self.spec.time_end
        return ((times - start) / (end - start) * _FINEST).long().clamp(0, _FINEST - 1)

    def _histogram(
        self, batches: Sequence[Batch], place: Callable[[Tensor], Tensor], size: int
    ) -> tuple[Tensor, Tensor]:
        """Sum and count of the targets in each of ``size`` places that ``place`` puts their times into."""
        total = torch.zeros(size, *self.spec.target_shape, dtype=torch.float64, device=self.season.device)
        count = torch.zeros_like(total)
        for batch in batches:
            mask = batch.target_mask.expand_as(batch.targets).flatten(0, 1)
            where = place(batch.times).flatten()
            total.index_add_(0, where, torch.where(mask, batch.targets.flatten(0, 1).double(), 0.0))
            count.index_add_(0, where, mask.double())
        return total, count


def _strongest_period(total: Tensor, count: Tensor, span: float) -> Tensor:
    """The peak of the periodogram of a histogram, entries weighing the same whatever their scale."""
    total, count = total.flatten(1), count.flatten(1)
    deviation = total - count * (total.sum(0) / count.sum(0).clamp(min=1))
    cells = total.shape[0]
    middle = (torch.arange(cells, dtype=total.dtype, device=total.device) + 0.5) / cells
    cycles = torch.arange(2.0, 100.0, 0.25, dtype=total.dtype, device=total.device)  # in the whole span
    angle = 2 * torch.pi * cycles[:, None] * middle
    power = (angle.cos() @ deviation).square() + (angle.sin() @ deviation).square()
    scale = deviation.square().sum(0).clamp(min=torch.finfo(total.dtype).tiny)
    best = (power / scale).sum(1).argmax()
    return span / cycles[best]
