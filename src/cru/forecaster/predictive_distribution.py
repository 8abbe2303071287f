"""Predictive distributions: the conversion of scaled predictions to calibrated values in the user's units."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from cru.data import Scaler, SeriesSet
from cru.forecaster.calibration import CALIBRATION, Z90, Calibration
from cru.forecaster.normal_scores import DECIMALS
from cru.functional.likelihood import VARIANCE_FLOOR
from cru.models.base import Prediction
from cru.shapes import Bool, Float

if TYPE_CHECKING:
    from cru.forecaster.scoring import WithheldErrors


@dataclass(frozen=True)
class DistributionConstants:
    """Constants of calibrated distributions."""

    rounding: float = 4e-7  # relative float32 rounding of a center: a zero-width interval must contain its own value
    mean_quantiles: tuple[float, ...] = tuple(
        k / 100 for k in range(5, 100, 10)
    )  # probabilities; their mean is the mean
    min_total: float = 1e-12  # smallest sum of the probabilities of all categories
    # Probabilities of the quantiles that are compared with the lowest possible value.
    low_quantiles: tuple[float, ...] = (0.005, 0.025, 0.05, 0.1, 0.25, 0.5)
    mean_weight_rows: int = 20_000  # most rows that set the weight of the mean
    max_ratio: float = 2.0  # on a logarithmic scale, quantiles are at most the cap or this multiple of the center


DISTRIBUTION = DistributionConstants()


class ScaledPrediction(NamedTuple):
    """Predictions of a model in scaled units, before calibration: a mean, and a split normal distribution."""

    mean: Float[np.ndarray, "n variable"]
    center: Float[np.ndarray, "n variable"]  # of the split normal distribution
    lower: Float[np.ndarray, "n variable"]  # scale below the center
    upper: Float[np.ndarray, "n variable"]  # scale above the center

    @staticmethod
    def of(prediction: Prediction) -> "ScaledPrediction":
        """Convert the prediction of a model to arrays with one row for each series and time point.

        Raises:
            ValueError: a mean or variance is not finite, or a variance is negative.
        """
        assert prediction.var is not None  # features are Gaussian
        around = prediction.intermediates.get("center", prediction.mean)
        ratio = prediction.intermediates.get("skew", torch.zeros_like(around))
        tensors = (prediction.mean, prediction.var, around, ratio)
        mean, var, center, skew = (part.double().flatten(0, 1).numpy() for part in tensors)
        if not (np.isfinite(mean).all() and np.isfinite(var).all() and (var >= 0).all()):
            raise ValueError(
                "the model must return finite means and variances of at least 0, got other numbers. Its weights or a "
                "stream state are damaged. Load the model again, or fit it again."
            )
        std = np.sqrt(np.maximum(var, VARIANCE_FLOOR))
        return ScaledPrediction(mean, center, std * np.exp(-skew / 2), std * np.exp(skew / 2))

    def take(self, rows: Any) -> "ScaledPrediction":
        """Return the given rows."""
        return ScaledPrediction._make(part[rows] for part in self)

    def standardise(self, values: Float[np.ndarray, "*n variable"]) -> Float[np.ndarray, "n variable"]:
        """Return value minus center, divided by the scale on that side of the center."""
        error = values - self.center
        z: np.ndarray = error / np.where(error < 0, self.lower, self.upper)
        return z

    def value(self, z: Float[np.ndarray, "*m n variable"]) -> Float[np.ndarray, "*m n variable"]:
        """Convert standardised errors back to values: the inverse of `standardise`."""
        value: np.ndarray = self.center + z * np.where(z < 0, self.lower, self.upper)
        return value

    def with_constants(self, constant: Bool[np.ndarray, " variable"]) -> "ScaledPrediction":
        """Set the mean and center of constant variables to their value, which is 0 in scaled units."""
        return self._replace(mean=np.where(constant, 0.0, self.mean), center=np.where(constant, 0.0, self.center))


class CalibratedPrediction(NamedTuple):
    """Calibrated predictions in the user's units, one row for each requested time."""

    mean: Float[np.ndarray, "n variable"]
    median: Float[np.ndarray, "n variable"]
    std: Float[np.ndarray, "n variable"]
    bounds: dict[str, Float[np.ndarray, "n variable"]]  # by names such as "lo-90" and "hi-90"

    @property
    def columns(self) -> dict[str, Float[np.ndarray, "n variable"]]:
        """All predictions, by their names in the columns of a frame."""
        return {"mean": self.mean, "median": self.median, "std": self.std, **self.bounds}


def calibrated(
    prediction: ScaledPrediction,
    lead: Float[np.ndarray, "n variable"],
    *,
    scaler: Scaler,
    calibration: Calibration,
    levels: Sequence[float] = (),
) -> CalibratedPrediction:
    """Convert scaled predictions to calibrated predictions in the user's units.

    Args:
        prediction: scaled predictions.
        lead: lead time of each prediction.
        scaler: the scaler of the table.
        calibration: quantiles of the standardised errors.
        levels: the level of each interval, in per cent.
    """
    found = PredictiveDistribution(prediction, lead, scaler=scaler, calibration=calibration)
    bounds = {}
    for level in levels:
        bounds[f"lo-{level:g}"], bounds[f"hi-{level:g}"] = found.interval(level)
    mean, std = found.moments()
    return CalibratedPrediction(mean, found.quantile(0.5), std, bounds)


class PredictiveDistribution:
    """The calibrated distribution of each predicted value, in the user's units and on the possible values only.

    Args:
        prediction: scaled predictions.
        lead: lead time of each prediction.
        scaler: the scaler of the table.
        calibration: quantiles of the standardised errors, and the kinds of the variables.
    """

    def __init__(
        self,
        prediction: ScaledPrediction,
        lead: Float[np.ndarray, "n variable"],
        *,
        scaler: Scaler,
        calibration: Calibration,
    ) -> None:
        self.prediction, self.lead = prediction.with_constants(calibration.constant), lead
        self.scaler, self.calibration, self.kinds = scaler, calibration, calibration.kinds
        self.center = scaler.inverse(self.prediction.center)
        self.cap = np.maximum(calibration.cap, DISTRIBUTION.max_ratio * self.center)
        self.chance = self._chance() if self.kinds.is_event.any() else np.zeros_like(self.center)

    def _chance(self) -> Float[np.ndarray, "n variable"]:
        """Return the probability of each event. The probabilities of the categories of a variable add up to 1."""
        mean, constant = self.scaler.inverse(self.prediction.mean), self.calibration.constant
        chance = np.where(constant, mean.clip(0, 1), self.calibration.normal_scores.probability(mean))
        for group in self.kinds.groups:
            chance[:, group] /= np.maximum(chance[:, group].sum(1, keepdims=True), DISTRIBUTION.min_total)
        return chance

    def quantile(self, p: float | np.ndarray, margin: float = 0.0) -> Float[np.ndarray, "n variable"]:
        """Return the smallest possible value that is not exceeded with probability ``p``.

        Args:
            p: one probability, or one for each value.
            margin: number of rounding errors to add.
        """
        value = self._unlimited(p)
        value = np.where(self.scaler.is_log, np.minimum(value, self.cap), value)
        if margin:
            rounding = np.where(
                self.calibration.constant, 0.0, DISTRIBUTION.rounding * (1 + np.abs(self.prediction.center))
            )
            value = value + margin * self.scaler.inverse_std(rounding, self.prediction.center)
        value = np.where(self._is_lowest(p), self.kinds.lowest, self.kinds.possible(value))
        return np.where(self.kinds.is_event, p > 1 - self.chance, value) if self.kinds.is_event.any() else value

    def interval(self, level: float) -> tuple[Float[np.ndarray, "n variable"], Float[np.ndarray, "n variable"]]:
        """Return the interval that contains a value with a probability of ``level`` per cent.

        The probabilities below and above the interval are equal. There is one exception: the lowest possible value,
        such as no rain, can be more probable than one side. The interval then starts at this value. Its upper bound is
        the quantile at level / 100, or at 1 - P(lowest) if that is higher.
        """
        p = 0.5 - level / 200
        low, high = self.quantile(p, -1.0), self.quantile(0.5 + level / 200, 1.0)
        bounded = ~self.kinds.is_plain & ~self.kinds.is_event
        if bounded.any():
            rest = np.maximum(level / 100, 1 - self._below)
            high = np.where(bounded & (self._below >= p), self.quantile(rest, 1.0), high)
        return low, high

    @cached_property
    def _below(self) -> Float[np.ndarray, "n variable"]:
        """Approximate probability that a value, without the limit to possible values, is at most the lowest one."""
        found, before = np.zeros(self.center.shape), None
        for p in DISTRIBUTION.low_quantiles:
            value = self._unlimited(p)
            reached = self.kinds.possible(value) <= self.kinds.lowest
            if before is None:
                found[reached] = p
            else:  # between two probabilities, the quantile is nearly linear
                earlier, q = before
                share = np.clip((self.kinds.edges - earlier) / np.maximum(value - earlier, 1e-300), 0, 1)
                found = np.where(reached, p, np.where(found == q, q + share * (p - q), found))
            before = value, p
        return found

    def _is_lowest(self, p: float | np.ndarray) -> Bool[np.ndarray, "n variable"]:
        """Return the mask of the quantiles that are the lowest possible value, because it is probable enough."""
        normal = self.calibration.normal_scores
        if not normal.lowest.any():
            return np.zeros(self.center.shape, bool)
        edge = self.prediction.standardise(self.scaler.transform(self.kinds.edges))
        return normal.at_lowest(self._scores(p), edge)

    def _unlimited(self, p: float | np.ndarray) -> Float[np.ndarray, "n variable"]:
        """Return a quantile without the limit to possible values."""
        errors = self.calibration.normal_scores.errors(self._scores(p), self.prediction.mean)
        return self.scaler.inverse(self.prediction.value(errors))

    def _scores(self, p: float | np.ndarray) -> Float[np.ndarray, "n variable"]:
        """Return quantiles of the standardised error, or of the normal score."""
        calibration = self.calibration
        return calibration.quantile(p, self.lead) if isinstance(p, float) else calibration.draw(p, self.lead)

    def moments(self) -> tuple[Float[np.ndarray, "n variable"], Float[np.ndarray, "n variable"]]:
        """Return mean and standard deviation."""
        scaler, prediction, kinds = self.scaler, self.prediction, self.kinds
        width = self._unlimited(0.95) - self._unlimited(0.05)
        std = np.maximum(width, 1e-6 * scaler.inverse_std(prediction.upper, prediction.center)) / (2 * Z90)
        mean = scaler.inverse(prediction.mean)
        if scaler.is_log.any():
            std = np.where(scaler.is_log, np.minimum(std, self.cap), std)
            average = np.mean([np.minimum(self._unlimited(p), self.cap) for p in DISTRIBUTION.mean_quantiles], 0)
            mean = np.where(scaler.is_log, self.center + self.calibration.mean_weight * (average - self.center), mean)
        mean = np.maximum(mean, kinds.lowest)
        if kinds.is_event.any():
            mean = np.where(kinds.is_event, self.chance, mean)
            std = np.where(kinds.is_event, np.sqrt(self.chance * (1 - self.chance)), std)
        return mean, std

    def draw(self, uniform: Float[np.ndarray, "n variable"]) -> Float[np.ndarray, "n variable"]:
        """Convert uniform numbers to values. Each variable of kind "category" has one category."""
        value = self.quantile(uniform)
        for group in self.kinds.groups:
            reached = np.cumsum(self.chance[:, group], 1)[:, :-1] < 1 - uniform[:, group[:1]]
            value[:, group] = reached.sum(1, keepdims=True) == np.arange(len(group))
        return value


def fit_mean_weight(
    calibration: Calibration, errors: "WithheldErrors", scaler: Scaler, series: SeriesSet
) -> Calibration:
    """Set the cap and the mean weight of a calibration.

    The mean weight, from 0 to 1, moves the prediction of a variable on a logarithmic scale from its center to its mean.
    It minimises the squared error of the withheld values in the user's units.

    Args:
        calibration: the fitted calibration.
        errors: the withheld values and their predictions.
        scaler: the scaler of the table.
        series: the table in the user's units, which determines the cap.
    """
    if not scaler.is_log.any():
        return calibration
    top, low = (np.where(series.mask, series.values, fill).astype(float) for fill in (-np.inf, np.inf))
    no_cap = CALIBRATION.no_cap
    cap = np.nan_to_num(top.max(0) + 0.5 * (top.max(0) - low.min(0)), posinf=no_cap, neginf=no_cap)
    capped = dataclasses.replace(calibration, cap=cap, mean_weight=np.ones(len(cap)))
    usual = errors.counted & errors.usual
    rows = np.flatnonzero((usual & scaler.is_log).any(1))
    rows = rows[:: max(1, len(rows) // DISTRIBUTION.mean_weight_rows)]
    some, usual = errors.take(rows), usual[rows]
    whole = calibrated(some.prediction, some.lead, scaler=scaler, calibration=capped).mean
    center = scaler.inverse(some.center)
    above, missed = whole - center, scaler.inverse(some.values) - center
    product, square = (np.where(usual, part, 0).sum(0) for part in (above * missed, above * above))
    weight = np.where(scaler.is_log & (square > 0), np.clip(product / np.maximum(square, 1e-300), 0, 1), 0)
    return dataclasses.replace(calibration, cap=cap, mean_weight=np.round(weight, DECIMALS))
