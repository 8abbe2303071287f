"""The distribution of standardised one-step errors, with tails beyond the data, and of runs of equal values."""

from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from cru.data import SeriesSet
from cru.forecaster.calibration import CALIBRATION
from cru.shapes import Bool, Float, Int64

_OUTER = np.array([0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03])
ERROR_PROBABILITIES = np.concatenate([_OUTER, np.arange(2, 49) / 50, 1 - _OUTER[::-1]])  # of the stored quantiles
TAIL = float(ERROR_PROBABILITIES[0])  # the tails begin at the first and the last quantile


class Situation(IntEnum):
    """What a prediction can use. The errors of each situation have their own distribution."""

    FIRST_ROW = 0  # nothing is observed before
    NEVER_OBSERVED = 1  # only other variables are observed before
    AFTER_LONG_GAP = 2  # the time since the last row is long
    AFTER_SHORT_GAP = 3  # the time since the last row is short


@dataclass(frozen=True)
class OneStepConstants:
    """Constants of the distribution of one-step errors and of its tails."""

    min_errors: int = CALIBRATION.min_errors  # fewest errors of a variable in one situation
    long_gap: float = 2.0  # a longer gap, in typical gaps, is long
    excesses: int = 50  # fewest errors that a generalised Pareto distribution is fitted to, if a tail has as many
    prior_mean_excess: float = 0.25  # typical mean excess, in units of its distance from the median
    prior_shape: float = 0.2  # typical shape of a tail
    mean_weight: int = 3  # excesses at which the data have the same weight as the typical mean excess
    shape_weight: int = 50  # excesses at which the data have the same weight as the typical shape
    max_tail: float = 0.04  # largest share of all errors in a tail
    min_p_value: float = 1e-300  # smallest p-value
    decimals: int = 6  # of the saved quantiles and tails
    values_at_once: int = 65_536  # p-values computed at once
    shapes: tuple[float, float] = (0.02, 0.9)  # bounds: above 0, so no p-value is 0; below 1, so a tail has a mean
    min_scale: float = 1e-6  # of a tail
    normal_errors: int = 100_000  # errors of a normal distribution, which replace errors where there are too few
    max_repeated: float = 0.5  # runs are not used for a variable that equals its last observation more often


ONE_STEP = OneStepConstants()
REPEAT_LEVELS = np.array([0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001])


class SituationErrors(NamedTuple):
    """Distribution of the errors in one situation."""

    quantiles: Float[np.ndarray, " probability"]
    tails: Float[np.ndarray, "..."]  # scale and shape of the generalised Pareto tail below and above


@dataclass(frozen=True, eq=False)
class OneStepErrorDistribution:
    """Distribution of the standardised one-step errors of each variable, and of its runs of equal values.

    The error is value minus center, divided by the predicted scale on its side of the center. The prediction uses the
    rows before. Each `Situation` has a distribution of its own.

    The distribution function is linear between the stored quantiles. Beyond the first and the last one, it has
    generalised Pareto tails: P(excess > x) = 0.0005 (1 + shape · x / scale)^(-1 / shape). Where there are too few
    errors, the outer quantiles are those of the tail.
    """

    quantiles: Float[np.ndarray, "situation variable probability"]
    tails: Float[np.ndarray, "situation variable 2 2"]
    long_gap: float  # a longer time since the last row is long
    counts: Int64[np.ndarray, " variable"]  # observations in the training table
    repeats: Int64[np.ndarray, "variable level"]  # shortest run of equal values at each of `REPEAT_LEVELS`, 0: none

    @staticmethod
    def fit(
        errors: Float[np.ndarray, "row variable"],
        counted: Bool[np.ndarray, "row variable"],
        situation: Int64[np.ndarray, "row variable"],
        series: SeriesSet,
        long_gap: float,
    ) -> "OneStepErrorDistribution":
        """Estimate the distribution.

        A variable with fewer than `OneStepConstants.min_errors` errors in a situation has the errors of all variables,
        or those of `Situation.AFTER_SHORT_GAP`.

        Args:
            errors: standardised one-step errors of a part of the table.
            counted: mask of the errors to use.
            situation: situation of each error.
            series: the complete table, for the runs of equal values.
            long_gap: the longest time since the last row that is a short gap.
        """
        size = errors.shape[1]
        normal = _normal_errors()

        def own_errors(among: np.ndarray, otherwise: list[SituationErrors]) -> list[SituationErrors]:
            own = (errors[among[:, k], k] for k in range(size))
            return [
                _fit_situation(each) if len(each) >= ONE_STEP.min_errors else otherwise[k] for k, each in enumerate(own)
            ]

        def shared_errors(among: np.ndarray, otherwise: list[SituationErrors]) -> list[SituationErrors]:
            return [_fit_situation(errors[among])] * size if among.sum() >= ONE_STEP.min_errors else otherwise

        soon = counted & (situation == Situation.AFTER_SHORT_GAP)
        usual = own_errors(soon, shared_errors(soon, [normal] * size))
        early = counted & (situation <= Situation.NEVER_OBSERVED)
        rare = shared_errors(early, usual)
        each = {
            Situation.FIRST_ROW: own_errors(counted & (situation == Situation.FIRST_ROW), rare),
            Situation.NEVER_OBSERVED: own_errors(counted & (situation == Situation.NEVER_OBSERVED), rare),
            Situation.AFTER_LONG_GAP: own_errors(counted & (situation == Situation.AFTER_LONG_GAP), usual),
            Situation.AFTER_SHORT_GAP: usual,
        }
        found = [each[situation] for situation in Situation]
        return OneStepErrorDistribution(
            np.array([[fitted.quantiles for fitted in row] for row in found]).reshape(
                len(Situation), size, len(ERROR_PROBABILITIES)
            ),
            np.array([[fitted.tails for fitted in row] for row in found]).reshape(len(Situation), size, 2, 2),
            float(long_gap),
            series.mask.sum(0).astype(np.int64),
            _repeat_limits(series),
        )

    def situation(
        self, since: Float[np.ndarray, "..."], observed_before: Bool[np.ndarray, "..."]
    ) -> Int64[np.ndarray, "..."]:
        """Return the situation of each error.

        Args:
            since: time since the last row, infinite for the first row of a series.
            observed_before: whether the variable is observed in an earlier row.
        """
        return situation_of(since, observed_before, self.long_gap)

    def p_values(
        self,
        errors: Float[np.ndarray, " n"],
        situation: Int64[np.ndarray, " n"],
        variable: Int64[np.ndarray, " n"],
    ) -> Float[np.ndarray, " n"]:
        """Return the probability of an error at least as far from the median, in rank, on either side.

        An error that equals stored quantiles has the mean of their probabilities.

        Args:
            errors: standardised one-step errors.
            situation: situation of each error.
            variable: variable of each error.
        """
        found = np.empty(len(errors))
        for first in range(0, len(errors), ONE_STEP.values_at_once):
            part = slice(first, first + ONE_STEP.values_at_once)
            found[part] = self._p_values(errors[part], situation[part], variable[part])
        return found

    def _p_values(self, errors: np.ndarray, situation: np.ndarray, variable: np.ndarray) -> np.ndarray:
        z, quantiles, tails = errors[:, None], self.quantiles[situation, variable], self.tails[situation, variable]
        below, reached = (quantiles < z).sum(1), (quantiles <= z).sum(1)
        number, last = np.arange(len(errors)), len(ERROR_PROBABILITIES) - 1
        left, right = np.clip(below - 1, 0, last), np.clip(below, 0, last)
        low, high = quantiles[number, left], quantiles[number, right]
        share = np.clip((errors - low) / np.where(high > low, high - low, 1.0), 0, 1)
        inner = (1 - share) * ERROR_PROBABILITIES[left] + share * ERROR_PROBABILITIES[right]
        tied = (ERROR_PROBABILITIES[right] + ERROR_PROBABILITIES[np.clip(reached - 1, 0, last)]) / 2
        probability = np.where(reached > below, tied, inner)
        excess = np.maximum(np.stack([quantiles[:, 0] - errors, errors - quantiles[:, -1]], 1), 0)
        scale, shape = tails[..., 0], tails[..., 1]
        outer = TAIL * np.maximum(1 + shape * excess / scale, 1.0) ** (-1 / shape)
        lower = np.where(excess[:, 0] > 0, outer[:, 0], probability)
        upper = np.where(excess[:, 1] > 0, outer[:, 1], 1 - probability)
        p: np.ndarray = np.clip(2 * np.minimum(lower, upper), ONE_STEP.min_p_value, 1.0)
        return p

    def p_repeats(self, runs: Int64[np.ndarray, " n"], variable: Int64[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return an upper bound of the probability of a run of equal values at least as long.

        Args:
            runs: number of equal values in a row, up to an observation.
            variable: variable of each observation.
        """
        limits = self.repeats[variable]
        reached = (limits > 0) & (runs[:, None] >= limits)
        p: np.ndarray = np.where(reached, REPEAT_LEVELS, 1.0).min(1, initial=1.0)
        return p

    def to_dict(self) -> dict[str, Any]:
        """Return the distribution as a dictionary that can be written as JSON."""
        return {
            "quantiles": self.quantiles.tolist(),
            "tails": self.tails.tolist(),
            "long_gap": self.long_gap,
            "counts": self.counts.tolist(),
            "repeats": self.repeats.tolist(),
        }

    @staticmethod
    def from_dict(saved: dict[str, Any]) -> "OneStepErrorDistribution":
        """Restore a distribution from the output of `to_dict`."""
        counts, repeats = (np.array(saved[key], np.int64) for key in ("counts", "repeats"))
        return OneStepErrorDistribution(
            np.array(saved["quantiles"]), np.array(saved["tails"]), float(saved["long_gap"]), counts, repeats
        )


def situation_of(
    since: Float[np.ndarray, "..."], observed_before: Bool[np.ndarray, "..."], long_gap: float
) -> Int64[np.ndarray, "..."]:
    """Return the situation of each error. The arguments are those of `OneStepErrorDistribution.situation`."""
    usual = np.where(since > long_gap, Situation.AFTER_LONG_GAP, Situation.AFTER_SHORT_GAP)
    found: np.ndarray = np.where(
        np.isinf(since), Situation.FIRST_ROW, np.where(observed_before, usual, Situation.NEVER_OBSERVED)
    )
    return found


def run_lengths(series: SeriesSet) -> Int64[np.ndarray, "row variable"]:
    """Count the equal values of a variable in a row, up to each observation: 1 if it differs from the last one.

    The count is 0 where the variable is not observed.
    """
    found = np.zeros(series.mask.shape, np.int64)
    owner = series.series_index
    for k in range(len(series.names)):
        rows = np.flatnonzero(series.mask[:, k])
        values, position = series.values[rows, k], np.arange(len(rows))
        starts = np.ones(len(rows), bool)
        starts[1:] = (values[1:] != values[:-1]) | (owner[rows[1:]] != owner[rows[:-1]])
        found[rows, k] = position - np.maximum.accumulate(np.where(starts, position, 0)) + 1
    return found


def _repeat_limits(series: SeriesSet) -> Int64[np.ndarray, "variable level"]:
    """Return the shortest run of equal values that is as rare as each of `REPEAT_LEVELS`.

    With n observations, of which m have a run of at least r, the conformal p-value of r is (m + 1) / (n + 1).
    """
    runs = run_lengths(series)
    limits = np.zeros((runs.shape[1], len(REPEAT_LEVELS)), np.int64)
    for k in range(len(limits)):
        own = np.sort(runs[series.mask[:, k], k])
        if not len(own) or (own >= 2).mean() > ONE_STEP.max_repeated:
            continue
        lengths = np.unique(np.append(own, own + 1))
        lengths = lengths[lengths >= 2]
        p = (len(own) - np.searchsorted(own, lengths) + 1) / (len(own) + 1)
        for number, level in enumerate(REPEAT_LEVELS):
            rare = lengths[p <= level]
            limits[k, number] = rare[0] if len(rare) else 0
    return limits


def _fit_situation(errors: Float[np.ndarray, " n"]) -> SituationErrors:
    """Estimate quantiles, by Weibull's method, and tails."""
    lower, upper = _fit_upper_half(-errors), _fit_upper_half(errors)
    quantiles = np.concatenate([-lower.quantiles[::-1], upper.quantiles[1:]])
    tails = np.array([lower.tails, upper.tails])
    return SituationErrors(
        np.maximum.accumulate(np.round(quantiles, ONE_STEP.decimals)), np.round(tails, ONE_STEP.decimals)
    )


@cache
def _normal_errors() -> SituationErrors:
    """Return the distribution of standard normal errors."""
    fitted = _fit_situation(
        np.array([NormalDist().inv_cdf((k + 0.5) / ONE_STEP.normal_errors) for k in range(ONE_STEP.normal_errors)])
    )
    for part in fitted:
        part.setflags(write=False)  # all forecasters share it
    return fitted


def _fit_upper_half(errors: Float[np.ndarray, " n"]) -> SituationErrors:
    """Estimate the quantiles from the median upward, and scale and shape of the tail beyond the last one.

    A generalised Pareto distribution is fitted to the `OneStepConstants.excesses` largest errors. Its mean and shape
    are averaged with those of a typical tail. The quantiles beyond its lower limit are those of this distribution.
    """
    above = ERROR_PROBABILITIES[len(ERROR_PROBABILITIES) // 2 :]
    quantiles = np.quantile(errors, above, method="weibull")
    rare = 1 - above
    start = int(np.flatnonzero((rare * len(errors) >= ONE_STEP.excesses) | (rare >= ONE_STEP.max_tail))[-1])
    limit = quantiles[start]
    excess = np.sort(errors[errors > limit] - limit)
    count, typical = len(excess), ONE_STEP.prior_mean_excess * (limit - quantiles[0])
    mean = (excess.sum() + ONE_STEP.mean_weight * typical) / (count + ONE_STEP.mean_weight)
    shape = (count * _fit_shape(excess) + ONE_STEP.shape_weight * ONE_STEP.prior_shape) / (
        count + ONE_STEP.shape_weight
    )
    scale = max(mean * (1 - shape), ONE_STEP.min_scale)
    beyond = slice(start + 1, None)
    quantiles[beyond] = limit + scale / shape * ((rare[start] / rare[beyond]) ** shape - 1)
    scale += shape * (quantiles[-1] - limit)  # a generalised Pareto tail beyond a larger limit is one, too
    return SituationErrors(quantiles, np.array([scale, shape]))


def _fit_shape(excess: Float[np.ndarray, " n"]) -> float:
    """Estimate the shape of a generalised Pareto distribution, within `OneStepConstants.shapes`.

    The estimate is that of probability-weighted moments (Hosking and Wallis 1987).

    Args:
        excess: positive excesses in ascending order.
    """
    count = len(excess)
    if count == 0:
        return ONE_STEP.prior_shape
    above = 1 - (np.arange(1, count + 1) - 0.35) / count
    mean, weighted = float(excess.mean()), float((above * excess).mean())
    shape = 2 - mean / (mean - 2 * weighted) if mean > 2 * weighted else ONE_STEP.shapes[0]
    return float(np.clip(shape, *ONE_STEP.shapes))
