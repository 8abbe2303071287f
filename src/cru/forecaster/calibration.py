"""Calibration of prediction intervals with the quantiles of standardised errors on held-out data."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cru.data import Scaler
from cru.forecaster.kinds import Kinds
from cru.forecaster.masking import FEW_SERIES
from cru.forecaster.normal_scores import CALIBRATION_PROBABILITIES, DECIMALS, NormalScores, fit_logistic
from cru.shapes import Bool, Float, Int64

if TYPE_CHECKING:
    from cru.forecaster.scoring import WithheldErrors


@dataclass(frozen=True)
class CalibrationConstants:
    """Constants of the estimation of quantiles."""

    min_errors: int = 100  # fewest errors from which quantiles are estimated
    shared_weight: int = 200  # errors at which a variable's own and the common quantiles have equal weight
    series_per_range: int = 10  # series per range of lead times
    max_ranges: int = 8  # largest number of ranges of lead times
    symmetric_below: int = 50  # with fewer series, the quantiles are made symmetric around zero
    blocks_per_series: int = 40  # independent blocks that a series counts as in a table with few series
    max_correlated: int = 200  # most variables whose samples are correlated; with more, they are independent
    correlation_decimals: int = 4  # of the saved correlations
    no_cap: float = 1e300  # stands for no upper limit of quantiles
    rounding: float = 1e-6  # of a scaled value
    lead_time_share: float = 0.5  # share of the lead time in normal scores, which few series determine poorly


CALIBRATION = CalibrationConstants()
Z90 = NormalDist().inv_cdf(0.95)
# Quantiles of N(0, 1), used where there are too few errors.
NORMAL = np.array([NormalDist().inv_cdf(p) for p in CALIBRATION_PROBABILITIES])
LEAD_NEVER_OBSERVED = -1.0  # lead time of a variable not observed yet in a series that has other observations
SPECIAL_LEADS = (LEAD_NEVER_OBSERVED, np.inf, 0.0)
UNMEASURED = "There were too few withheld values to calibrate the intervals: they are the model's own."


def widening(series: int) -> float:
    """Return the factor that widens the quantiles of a table with few series.

    Split conformal prediction uses the ⌈(n + 1) · 0.9⌉ / n quantile for a 90 % interval. Here, n is the number of
    blocks, `CalibrationConstants.blocks_per_series` for each series.

    Args:
        series: number of series in the table.

    Returns:
        1.07 for one series, 1.01 for five, and 1 for `FEW_SERIES` or more.
    """
    if series >= FEW_SERIES:
        return 1.0
    probability = 0.5 + 0.45 * (1 + 1 / (CALIBRATION.blocks_per_series * max(1, series)))
    return NormalDist().inv_cdf(probability) / Z90


def guarantee(series: int) -> str:
    """Describe for the user the guarantee of intervals that are calibrated on this number of series."""
    if series >= FEW_SERIES:
        return (
            f"Intervals are calibrated on {series:,} series. On average over new series like these, a 90 % interval "
            "contains 90 % of the values."
        )
    return (
        f"Intervals are calibrated on blocks of {series:,} series and widened by {widening(series) - 1:.0%}. They hold "
        "if the future of these series is like their past. For new series they guarantee nothing."
    )


def fit_calibration(errors: "WithheldErrors", scaler: Scaler, kinds: Kinds) -> "Calibration":
    """Fit a calibration to the errors of withheld values.

    Errors of variables that are never negative become normal scores first. Events have a logistic regression. Then
    `Calibration.fit` estimates the quantiles by lead time.

    Args:
        errors: the withheld values and their predictions.
        scaler: the scaler of the table.
        kinds: the kinds of the variables.
    """
    prediction, counted = errors.prediction, errors.counted
    z = prediction.standardise(_spread_counts(errors.values, scaler, kinds))
    skewed = kinds.are("nonnegative", "count") & ~errors.constant
    mean, values, lowest = scaler.inverse(errors.mean), scaler.inverse(errors.values), scaler.transform(kinds.edges)
    at_lowest = kinds.are("nonnegative") & (errors.values <= lowest + CALIBRATION.rounding)
    lowest_error = prediction.standardise(lowest)
    normal = NormalScores.fit(z, errors.mean, lowest_error, counted & errors.usual, skewed, at_lowest)
    for k in np.flatnonzero(kinds.is_event & ~errors.constant):
        among = counted[:, k]
        normal.logistic[k] = fit_logistic(mean[among, k], np.round(values[among, k]))
    scores = normal.scores(z, errors.mean, counted)
    fitted = Calibration.fit(scores, counted, errors.lead, series=errors.series, constant=errors.constant)
    ranges = np.ix_(np.arange(SPECIAL_LEADS.index(0.0), len(fitted.leads)), normal.used)
    share = CALIBRATION.lead_time_share
    fitted.quantiles[ranges] = np.round(share * fitted.quantiles[ranges] + (1 - share) * NORMAL, DECIMALS)
    return dataclasses.replace(fitted, kinds=kinds, normal_scores=normal)


def _spread_counts(values: np.ndarray, scaler: Scaler, kinds: Kinds) -> np.ndarray:
    """Add uniform noise from -1/2 to 1/2 to counts (Machado & Santos Silva 2005).

    The result has a continuous distribution. Its quantiles, rounded to integers, are those of the counts.
    """
    if not kinds.is_count.any():
        return values
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, values.shape)
    return np.where(kinds.is_count, scaler.transform(scaler.inverse(values) + noise), values)


@dataclass(frozen=True, eq=False)
class Calibration:
    """Quantiles of the standardised error of each variable, by lead time.

    The error is value minus center, divided by the predicted scale on its side of the center. The lead time is the time
    since the last observation of any variable.

    A model can be overconfident, and its errors can be skewed. Intervals made of these quantiles correct both. For
    exchangeable series they are split conformal intervals, which need no assumption about the distribution.

    For variables that are never negative, the error becomes a normal score first (see `NormalScores`).

    Quantiles between two lead times are interpolated linearly in the logarithm of the lead time. Three lead times are
    special cases and come first: `LEAD_NEVER_OBSERVED` (the variable is not observed yet, but others are), infinity
    (nothing is observed yet) and 0 (another variable is observed at the same time).
    """

    leads: Float[np.ndarray, " lead"]
    quantiles: Float[np.ndarray, "lead variable probability"]
    correlation: Float[np.ndarray, "coupled coupled"]  # of errors at one time; empty for many variables
    constant: Bool[np.ndarray, " variable"]  # whether it has one value in the complete table
    mean_weight: Float[np.ndarray, " variable"]  # 0: predict the center, 1: predict the mean of the quantiles
    cap: Float[np.ndarray, " variable"]  # upper limit of quantiles on a logarithmic scale, in the user's units
    kinds: Kinds
    normal_scores: NormalScores

    @staticmethod
    def fit(
        errors: Float[np.ndarray, "row variable"],
        counted: Bool[np.ndarray, "row variable"],
        lead: Float[np.ndarray, "row variable"],
        *,
        series: int,
        constant: Bool[np.ndarray, " variable"],
    ) -> "Calibration":
        """Estimate the quantiles from standardised errors.

        Errors of one series are correlated. So the number of series, not of errors, sets the number of ranges of lead
        times. Below `CalibrationConstants.symmetric_below` series, the quantiles are symmetric around zero.

        Args:
            errors: standardised errors.
            counted: mask of the errors to use.
            lead: lead time of each error.
            series: number of series that the errors come from.
            constant: mask of the variables with one value in the complete table. Their quantiles are 0.
        """
        counted = counted & ~constant
        correlation = _error_correlation(errors, counted & (lead > 0))  # only at times without any observation
        if series < CALIBRATION.symmetric_below:
            errors, counted, lead = np.concatenate([errors, -errors]), np.tile(counted, (2, 1)), np.tile(lead, (2, 1))
        usual = counted & (lead >= 0) & np.isfinite(lead)
        between = lead[usual & (lead > 0)]
        bins = int(np.clip(series // CALIBRATION.series_per_range, 1, CALIBRATION.max_ranges))
        shortest, longest = np.quantile(between, (0.02, 0.98)) if len(between) else (1.0, 1.0)
        edges = np.geomspace(shortest, longest, bins + 1)[1:-1]
        group = np.where(usual & (lead > 0), np.searchsorted(edges, lead, side="left"), -1)
        kept = [usual & (group == g) for g in range(len(edges) + 1) if (group == g).any()]
        leads = [*SPECIAL_LEADS, *(float(np.median(lead[among])) for among in kept)]
        shared = _shared_quantiles(errors[usual], np.tile(NORMAL, (errors.shape[1], 1)))
        each = _own_quantiles(errors, usual, shared, borrowed=CALIBRATION.shared_weight if errors.shape[1] > 1 else 0)
        rare = [counted & (lead == special) for special in (LEAD_NEVER_OBSERVED, np.inf)]
        own = [_own_quantiles(errors, among, _shared_quantiles(errors[among], each)) for among in rare]
        own += [_own_quantiles(errors, usual & (lead == 0), each), *_quantiles_by_range(errors, kept, each)]
        quantiles = np.round(own, DECIMALS)
        quantiles[:, constant] = 0
        weight, cap = np.zeros(len(constant)), np.full(len(constant), CALIBRATION.no_cap)
        plain = Kinds.numbers(len(constant)), NormalScores.none(len(constant))
        return Calibration(np.array(leads), quantiles, correlation, constant, weight, cap, *plain)

    def widened(self, series: int) -> "Calibration":
        """Return a copy with wider quantiles for a table with fewer than `FEW_SERIES` series.

        The factor is the finite-sample correction of split conformal prediction. In such a table, the errors come from
        blocks of the same series and are correlated. So the correction counts blocks, not errors.
        """
        factor = widening(series) if self.measured else 1.0
        return dataclasses.replace(self, quantiles=np.round(factor * self.quantiles, DECIMALS))

    def of_variable(self, k: int) -> "Calibration":
        """Return the calibration of one variable alone."""
        only = slice(k, k + 1)
        return Calibration(
            leads=self.leads,
            quantiles=self.quantiles[:, only],
            correlation=np.eye(1),
            constant=self.constant[only],
            mean_weight=self.mean_weight[only],
            cap=self.cap[only],
            kinds=self.kinds.of_column(k),
            normal_scores=self.normal_scores.of_variable(k),
        )

    @property
    def measured(self) -> bool:
        """Whether any variable has quantiles estimated from errors, or all variables are constant."""
        own = bool(self.constant.all() or self.normal_scores.used.any())
        return own or not np.allclose(self.quantiles[:, ~self.constant], NORMAL, atol=1e-5)

    def quantile(self, p: float, lead: Float[np.ndarray, "n variable"]) -> Float[np.ndarray, "n variable"]:
        """Return the ``p``-quantile of the standardised error, or normal score, of each variable at its lead time."""
        upper = int(np.clip(np.searchsorted(CALIBRATION_PROBABILITIES, p), 1, len(CALIBRATION_PROBABILITIES) - 1))
        low, high = CALIBRATION_PROBABILITIES[upper - 1 : upper + 1]
        share = np.clip((p - low) / (high - low), 0, 1)
        at = (1 - share) * self.quantiles[:, :, upper - 1] + share * self.quantiles[:, :, upper]
        return self._between(at, lead)

    def uniform(self, rng: np.random.Generator, n: int) -> Float[np.ndarray, "n variable"]:
        """Draw uniform numbers between 0 and 1. The variables of a row are correlated like the errors at one time."""
        numbers = rng.standard_normal((n, self.quantiles.shape[1]))
        if len(self.correlation):
            numbers = numbers @ self._root
        uniform: np.ndarray = torch.special.ndtr(torch.from_numpy(numbers)).numpy()
        return uniform

    @cached_property
    def _root(self) -> np.ndarray:
        values, vectors = np.linalg.eigh(self.correlation)
        root: np.ndarray = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
        return root

    def draw(self, uniform: Float[np.ndarray, "n variable"], lead: Float[np.ndarray, "n variable"]) -> np.ndarray:
        """Map uniform numbers to standardised errors, or normal scores, by the inverse distribution function."""
        upper = np.clip(np.searchsorted(CALIBRATION_PROBABILITIES, uniform), 1, len(CALIBRATION_PROBABILITIES) - 1)
        low, high = CALIBRATION_PROBABILITIES[upper - 1], CALIBRATION_PROBABILITIES[upper]
        share = np.clip((uniform - low) / (high - low), 0, 1)
        below, above = (self._between(self.quantiles, lead, at) for at in (upper - 1, upper))
        drawn: np.ndarray = (1 - share) * below + share * above
        return drawn

    def _between(
        self,
        table: Float[np.ndarray, "lead variable ..."],
        lead: Float[np.ndarray, "n variable"],
        *rest: Int64[np.ndarray, "n variable"],
    ) -> Float[np.ndarray, "n variable"]:
        """Interpolate ``table`` linearly in the logarithm of the lead time.

        Args:
            table: one entry for each calibrated lead time and variable.
            lead: requested lead times.
            rest: indices into the further dimensions of ``table``.
        """
        inner = np.arange(len(SPECIAL_LEADS), len(self.leads))
        place = np.full(lead.shape, float(SPECIAL_LEADS.index(0.0)))  # used if there are no positive lead times
        if len(inner):
            with np.errstate(divide="ignore"):
                place = np.interp(np.log(np.maximum(lead, 0)), np.log(self.leads[inner]), inner)
        for number, special in enumerate(SPECIAL_LEADS):
            place[lead == special] = number
        lower = np.floor(place).astype(np.int64)
        share, variable = place - lower, np.arange(table.shape[1])
        low, high = (table[at, variable, *rest] for at in (lower, np.minimum(lower + 1, len(table) - 1)))
        mixed: np.ndarray = (1 - share) * low + share * high
        return mixed

    def to_dict(self) -> dict[str, Any]:
        """Return the calibration as a dictionary that can be written as JSON."""
        return {
            "leads": self.leads[len(SPECIAL_LEADS) :].tolist(),
            "quantiles": self.quantiles.tolist(),
            "likeness": self.correlation.tolist(),
            "constant": self.constant.tolist(),
            "mean_weight": self.mean_weight.tolist(),
            "cap": self.cap.tolist(),
            "recalibration": self.normal_scores.to_dict(),
        }

    @staticmethod
    def from_dict(saved: dict[str, Any], kinds: Kinds) -> "Calibration":
        """Restore a calibration from the output of `to_dict`, and the kinds of the variables."""
        correlation = np.array(saved["likeness"]).reshape(2 * (len(saved["likeness"]),))
        leads = np.array([*SPECIAL_LEADS, *saved["leads"]])
        constant = np.array(saved["constant"], bool)
        weight, cap = (np.array(saved[key]) for key in ("mean_weight", "cap"))
        normal = NormalScores.from_dict(saved["recalibration"])
        return Calibration(leads, np.array(saved["quantiles"]), correlation, constant, weight, cap, kinds, normal)


def _own_quantiles(errors: np.ndarray, counted: np.ndarray, otherwise: np.ndarray, *, borrowed: int = 0) -> np.ndarray:
    """Estimate the quantiles of each variable. Return ``otherwise`` for variables with too few errors.

    Args:
        errors: standardised errors.
        counted: mask of the errors to use.
        otherwise: quantiles of a larger group.
        borrowed: weight of the larger group, as a number of errors. A 95 % quantile of a hundred errors alone is often
            wrong by half of its size.
    """
    found = otherwise.copy()
    count = counted.sum(0)
    for k in np.flatnonzero(count >= CALIBRATION.min_errors):
        weight = count[k] ** 2 / (count[k] ** 2 + borrowed**2)
        found[k] = weight * _quantiles(errors[counted[:, k], k]) + (1 - weight) * otherwise[k]
    return found


def _quantiles_by_range(errors: np.ndarray, ranges: Sequence[np.ndarray], otherwise: np.ndarray) -> np.ndarray:
    """Estimate the quantiles of each range of lead times.

    A variable with too few errors in a range takes the quantiles of the nearest range that has enough. The average over
    all ranges would be too narrow for long lead times of rarely observed variables.
    """
    if not ranges:
        return np.empty((0, *otherwise.shape))
    found = np.stack([_own_quantiles(errors, among, otherwise) for among in ranges])
    enough = np.stack([among.sum(0) >= CALIBRATION.min_errors for among in ranges])  # (range, variable)
    number = np.arange(len(ranges))
    distance = np.where(enough, np.abs(number[:, None, None] - number[:, None]), len(ranges))  # (to, from, variable)
    nearest: np.ndarray = found[distance.argmin(1), np.arange(found.shape[1])]
    return nearest


def _error_correlation(errors: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Estimate the correlation between the errors of variables at one time, from their normal scores.

    The estimate is smaller for variables that rarely have errors at the same time.

    Returns:
        The correlation matrix. It is the identity if there are too few errors. It is empty above
        `CalibrationConstants.max_correlated` variables.
    """
    size = errors.shape[1]
    if not 2 <= size <= CALIBRATION.max_correlated or np.sum(counted.sum(1) > 1) < CALIBRATION.min_errors:
        return np.eye(size) if size <= CALIBRATION.max_correlated else np.empty((0, 0))
    scores = np.zeros(errors.shape)
    for k in range(size):
        among = counted[:, k]
        _, group, count = np.unique(errors[among, k], return_inverse=True, return_counts=True)
        place = (np.cumsum(count) - count / 2)[group]  # equal errors have equal ranks
        scores[among, k] = torch.special.ndtri(torch.from_numpy(place / max(1, len(place)))).numpy()
    together = scores.T @ scores
    length = np.sqrt(np.maximum(np.diag(together), 1e-12))
    np.fill_diagonal(together, length**2)
    return np.round(together / length / length[:, None], CALIBRATION.correlation_decimals)


def _shared_quantiles(errors: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """Assign the quantiles of all errors to every variable. Return ``otherwise`` if there are too few errors."""
    return otherwise if len(errors) < CALIBRATION.min_errors else np.tile(_quantiles(errors), (len(otherwise), 1))


def _quantiles(errors: np.ndarray) -> np.ndarray:
    """Compute quantiles by Weibull's method: a new value is below the p-quantile with probability p."""
    found: np.ndarray = np.quantile(errors, CALIBRATION_PROBABILITIES, method="weibull")
    return found
