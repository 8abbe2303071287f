"""Scores from sums and counts over a complete set, instead of means of batch means."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cru.data import Batch
from cru.functional.likelihood import VARIANCE_FLOOR, bernoulli_nll, gaussian_nll
from cru.models import Prediction
from cru.shapes import Bool, Float, Float64

REGIONS = ("all", "hidden")
GAUSSIAN = ("mse", "mae", "nll", "crps", "coverage50", "coverage90")
BERNOULLI = ("mse", "mae", "nll")
_HALF_WIDTH = {"coverage50": NormalDist().inv_cdf(0.75), "coverage90": NormalDist().inv_cdf(0.95)}


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of a model on a set, over all targets ("all") and over targets that were not inputs ("hidden").

    ``scored`` is the region of the main score. ``mse``, ``mae``, ``crps`` and coverages are means over target
    entries. ``nll`` is the sum over the entries of a time point, averaged over time points, as in the paper. A region
    without targets has no scores.
    """

    scored: str
    regions: dict[str, dict[str, float]]
    features: dict[str, dict[str, list[float | None]]]  # None where a feature has no target

    def __getitem__(self, metric: str) -> float:
        return self.regions[self.scored].get(metric, math.nan)

    def as_dict(self) -> dict[str, Any]:
        """Convert to a dict for JSON, without the features."""
        return {"scored": self.scored, **self.regions}


class ScoreSums:
    """Sums of scores over batches. `reduce` merges several processes, and `scores` returns the result.

    >>> from cru.evaluation import ScoreSums
    >>> score_sums = ScoreSums(target_shape=(2,), likelihood="gaussian")
    >>> score_sums.scores()["mse"]
    nan
    """

    def __init__(self, target_shape: tuple[int, ...], likelihood: str, *, scored: str = "all") -> None:
        self.metrics = BERNOULLI if likelihood == "bernoulli" else GAUSSIAN
        self.scored = scored
        self.flat = len(target_shape) == 1
        self.width = target_shape[0] if self.flat else 1  # pixels are counted together
        self.sums = torch.zeros(len(REGIONS), len(self.metrics), self.width, dtype=torch.float64)
        self.counts = torch.zeros(len(REGIONS), self.width, dtype=torch.float64)  # target entries
        self.points = torch.zeros(len(REGIONS), dtype=torch.float64)  # time points with a target
        self.of_series = torch.zeros(len(REGIONS), self.width, dtype=torch.float64)  # sums of the MSE of each series
        self.series = torch.zeros(1, dtype=torch.float64)

    @torch.no_grad()
    def add(self, prediction: Prediction, batch: Batch) -> None:
        """Add a batch."""
        entries = self._entries(prediction, batch)
        shape = batch.targets.shape
        for region, mask in enumerate((batch.target_mask, batch.target_mask & batch.hidden)):
            full = mask.expand(shape).flatten(2)
            for metric, values in enumerate(entries):
                self.sums[region, metric] += self._total(torch.where(full, values, 0.0))
            self.counts[region] += self._total(full)
            self.points[region] += full.any(-1).sum().cpu()
            if self.flat:
                each = torch.where(full, entries[0], 0.0).sum(1) / full.sum(1).clamp(min=1)
                self.of_series[region] += each.sum(0, dtype=torch.float64).cpu()
        self.series += len(batch.targets)

    def reduce(self, total: Callable[[Float64[Tensor, " n"]], Float64[Tensor, " n"]]) -> None:
        """Replace all sums by their ``total`` over processes."""
        parts = (self.sums, self.counts, self.points, self.of_series, self.series)
        flat = total(torch.cat([part.flatten() for part in parts])).cpu()
        for part, fresh in zip(parts, torch.split(flat, [part.numel() for part in parts]), strict=True):
            part.copy_(fresh.reshape(part.shape))

    def scores(self) -> Scores:
        """Divide sums by counts."""
        regions: dict[str, dict[str, float]] = {}
        features: dict[str, dict[str, list[float | None]]] = {}
        for region, name in enumerate(REGIONS):
            counts, points = self.counts[region], self.points[region]
            regions[name], features[name] = {}, {}
            if not points > 0:
                continue
            for metric, sums in zip(self.metrics, self.sums[region], strict=True):
                regions[name][metric] = float(sums.sum() / (points if metric == "nll" else counts.sum()))
                each = zip(sums.tolist(), counts.tolist(), strict=True)
                features[name][metric] = [total / count if count else None for total, count in each]
            if self.flat:
                features[name]["mse_of_series"] = (self.of_series[region] / self.series).tolist()
            regions[name]["count"] = float(counts.sum())
        return Scores(scored=self.scored, regions=regions, features=features)

    def _entries(self, prediction: Prediction, batch: Batch) -> list[Float[Tensor, "batch time entry"]]:
        """Compute every metric of every target entry, in the order of `metrics`."""
        mean = prediction.mean.flatten(2).double()
        targets = batch.targets.flatten(2).double()
        error = (targets - mean).abs()
        counted: Bool[Tensor, "batch time entry"] = torch.ones_like(targets, dtype=torch.bool)
        if prediction.var is None:
            return [error**2, error, _each(bernoulli_nll, targets, mean, counted)]
        var = prediction.var.flatten(2).double().clamp(min=VARIANCE_FLOOR)
        std = var.sqrt()
        nll = _each(gaussian_nll, targets, mean, var, counted)
        inside = [(error <= quantile * std).double() for quantile in _HALF_WIDTH.values()]
        return [error**2, error, nll, gaussian_crps(error / std) * std, *inside]

    def _total(self, entries: Tensor) -> Float64[Tensor, " width"]:
        total = entries.sum((0, 1), dtype=torch.float64).cpu()
        return total if self.width == total.numel() else total.sum().reshape(1)


def rubanova_mse(
    mse_of_series: Sequence[float], scale: Sequence[float], ranges: Sequence[tuple[Sequence[float], Sequence[float]]]
) -> float:
    """Compute the MSE (mean squared error) of Rubanova et al. (2019): the mean of the MSE of each series and feature.

    A feature that a series never has counts as 0. All sets share one scale, from the smallest to the largest value.

    Args:
        mse_of_series: for each feature, the mean over series, as in `Scores.features`.
        scale: the range of each feature that scales the scored set.
        ranges: the smallest and the largest value of each feature in each set.

    >>> from cru.evaluation.metrics import rubanova_mse
    >>> rubanova_mse([0.4], [1.0], [([0.0], [1.0]), ([1.0], [2.0])])
    0.1
    """
    low, high = (np.array(ends, np.float64) for ends in zip(*ranges, strict=True))
    whole = high.max(0) - low.min(0)
    factor = np.asarray(scale) / np.where(whole > 0, whole, 1.0)
    return float(np.mean(np.asarray(mse_of_series) * factor**2))


def gaussian_crps(z: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Compute the CRPS (continuous ranked probability score) of N(0, 1) at z (Gneiting & Raftery 2007).

    It is z (2 Φ(z) - 1) + 2 φ(z) - 1/√π. For N(μ, σ²), multiply it by σ.

    >>> from cru.evaluation.metrics import gaussian_crps
    >>> gaussian_crps(torch.zeros(1))
    tensor([0.2337])
    """
    density = torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi)


def _each(nll: Callable[..., Tensor], *entries: Tensor) -> Tensor:
    """Apply a likelihood of `cru.functional`, which sums over entries, to each entry separately."""
    return nll(*(tensor.flatten(1)[..., None] for tensor in entries)).reshape(entries[0].shape)
