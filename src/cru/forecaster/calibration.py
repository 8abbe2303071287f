"""Calibration of prediction intervals with the quantiles of standardised errors on held-out data."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from cru.forecaster import recalibration
from cru.forecaster.kinds import Kinds
from cru.forecaster.recalibration import Recalibration
from cru.shapes import Bool, Float, Int64

ENOUGH = 100  # least number of errors from which quantiles are estimated


@dataclass(frozen=True)
class CalibrationSettings:
    """Settings of the estimation of quantiles."""

    shared_weight: int = 200  # errors at which a variable's own and the common quantiles have equal weight
    series_per_range: int = 10  # series per range of lead times
    max_ranges: int = 8  # largest number of ranges of lead times
    symmetric_below: int = 50  # with fewer series, the quantiles are made symmetric around zero
    few_series: int = 20  # with fewer series, each series counts as several independent blocks
    blocks_per_series: int = 40  # number of these blocks


SETTINGS = CalibrationSettings()
COUPLED = 200  # largest number of variables whose samples are correlated; with more, they are independent
PROBABILITIES = recalibration.PROBABILITIES
Z90 = NormalDist().inv_cdf(0.95)
# Quantiles of N(0, 1), used where there are too few errors.
NORMAL = np.array([NormalDist().inv_cdf(p) for p in PROBABILITIES])
LARGEST_CAP = 1e300
UNREAD = -1.0  # lead time of a variable not observed yet in a series that has other observations
APART = (UNREAD, np.inf, 0.0)
UNMEASURED = "There were too few withheld values to calibrate the intervals: they are the model's own."


def widening(series: int) -> float:
    """Return the factor that widens the quantiles of a table with few series.

    Split conformal prediction uses the ⌈(n + 1) · 0.9⌉ / n quantile for a 90 % interval. Here, n is the number of
    blocks, `CalibrationSettings.blocks_per_series` for each series.

    Args:
        series: number of series in the table.

    Returns:
        1.07 for one series, 1.01 for five, and 1 for `CalibrationSettings.few_series` or more.
    """
    if series >= SETTINGS.few_series:
        return 1.0
    probability = 0.5 + 0.45 * (1 + 1 / (SETTINGS.blocks_per_series * max(1, series)))
    return NormalDist().inv_cdf(probability) / Z90


def guarantee(series: int) -> str:
    """Describe for the user the guarantee of intervals that are calibrated on this number of series."""
    if series >= SETTINGS.few_series:
        return (
            f"Intervals are calibrated on {series:,} series. On average over new series like these, a 90 % interval "
            "contains 90 % of the values."
        )
    return (
        f"Intervals are calibrated on blocks of {series:,} series and widened by {widening(series) - 1:.0%}. They hold "
        "if the future of these series is like their past. For new series they guarantee nothing."
    )


@dataclass(frozen=True, eq=False)
class Calibration:
    """Quantiles of the standardised error of each variable, by lead time.

    The error is value minus center, divided by the predicted scale on its side of the center. The lead time is the time
    since the last observation of any variable.

    A model can be overconfident, and its errors can be skewed. Intervals made of these quantiles correct both. For
    exchangeable series they are split conformal intervals, which need no assumption about the distribution.

    For variables that are never negative, the error becomes a normal score first (see `Recalibration`).

    Quantiles between two lead times are interpolated linearly in the logarithm of the lead time. Three lead times are
    special cases and come first: `UNREAD` (the variable is not observed yet, but others are), infinity (nothing is
    observed yet) and 0 (another variable is observed at the same time).
    """

    leads: Float[np.ndarray, " lead"]
    quantiles: Float[np.ndarray, "lead variable probability"]
    likeness: Float[np.ndarray, "coupled coupled"]  # correlation of errors at one time; empty above `COUPLED`
    constant: Bool[np.ndarray, " variable"]  # whether it has one value in the complete table
    mean_weight: Float[np.ndarray, " variable"]  # 0: predict the center, 1: predict the mean of the quantiles
    cap: Float[np.ndarray, " variable"]  # upper limit of quantiles on a logarithmic scale, in the user's units
    kinds: Kinds
    recalibration: Recalibration

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
        times. Below `CalibrationSettings.symmetric_below` series, the quantiles are symmetric around zero.

        Args:
            errors: standardised errors.
            counted: mask of the errors to use.
            lead: lead time of each error.
            series: number of series that the errors come from.
            constant: mask of the variables with one value in the complete table. Their quantiles are 0.
        """
        counted = counted & ~constant
        likeness = _likeness(errors, counted & (lead > 0))  # only at times without any observation
        if series < SETTINGS.symmetric_below:
            errors, counted, lead = np.concatenate([errors, -errors]), np.tile(counted, (2, 1)), np.tile(lead, (2, 1))
        usual = counted & (lead >= 0) & np.isfinite(lead)
        between = lead[usual & (lead > 0)]
        bins = int(np.clip(series // SETTINGS.series_per_range, 1, SETTINGS.max_ranges))
        shortest, longest = np.quantile(between, (0.02, 0.98)) if len(between) else (1.0, 1.0)
        edges = np.geomspace(shortest, longest, bins + 1)[1:-1]
        group = np.where(usual & (lead > 0), np.searchsorted(edges, lead, side="left"), -1)
        kept = [usual & (group == g) for g in range(len(edges) + 1) if (group == g).any()]
        leads = [*APART, *(float(np.median(lead[among])) for among in kept)]
        shared = _shared(errors[usual], np.tile(NORMAL, (errors.shape[1], 1)))
        each = _own(errors, usual, shared, borrowed=SETTINGS.shared_weight if errors.shape[1] > 1 else 0)
        rare = [counted & (lead == apart) for apart in (UNREAD, np.inf)]
        own = [_own(errors, among, _shared(errors[among], each)) for among in rare]
        own += [_own(errors, usual & (lead == 0), each), *_nearest(errors, kept, each)]
        quantiles = np.round(own, 6)  # the precision of the saved file
        quantiles[:, constant] = 0
        weight, cap = np.zeros(len(constant)), np.full(len(constant), LARGEST_CAP)
        plain = Kinds.numbers(len(constant)), Recalibration.none(len(constant))
        return Calibration(np.array(leads), quantiles, likeness, constant, weight, cap, *plain)

    def widened(self, series: int) -> "Calibration":
        """Return a copy with wider quantiles for a table with fewer than `CalibrationSettings.few_series` series.

        The factor is the finite-sample correction of split conformal prediction. In such a table, the errors come from
        blocks of the same series and are correlated. So the correction counts blocks, not errors.
        """
        factor = widening(series) if self.measured else 1.0
        return dataclasses.replace(self, quantiles=np.round(factor * self.quantiles, 6))

    def of_variable(self, k: int) -> "Calibration":
        """Return the calibration of one variable alone."""
        only = slice(k, k + 1)
        return Calibration(
            leads=self.leads,
            quantiles=self.quantiles[:, only],
            likeness=np.eye(1),
            constant=self.constant[only],
            mean_weight=self.mean_weight[only],
            cap=self.cap[only],
            kinds=self.kinds.of_column(k),
            recalibration=self.recalibration.of_variable(k),
        )

    @property
    def measured(self) -> bool:
        """Whether any variable has quantiles estimated from errors, or all variables are constant."""
        own = bool(self.constant.all() or self.recalibration.used.any())
        return own or not np.allclose(self.quantiles[:, ~self.constant], NORMAL, atol=1e-5)

    def quantile(self, p: float, lead: Float[np.ndarray, "n variable"]) -> Float[np.ndarray, "n variable"]:
        """Return the ``p``-quantile of the standardised error, or normal score, of each variable at its lead time."""
        upper = int(np.clip(np.searchsorted(PROBABILITIES, p), 1, len(PROBABILITIES) - 1))
        low, high = PROBABILITIES[upper - 1 : upper + 1]
        share = np.clip((p - low) / (high - low), 0, 1)
        at = (1 - share) * self.quantiles[:, :, upper - 1] + share * self.quantiles[:, :, upper]
        return self._between(at, lead)

    def uniform(self, rng: np.random.Generator, n: int) -> Float[np.ndarray, "n variable"]:
        """Draw uniform numbers between 0 and 1. The variables of a row are correlated like the errors at one time."""
        numbers = rng.standard_normal((n, self.quantiles.shape[1]))
        if len(self.likeness):
            numbers = numbers @ self._root
        uniform: np.ndarray = torch.special.ndtr(torch.from_numpy(numbers)).numpy()
        return uniform

    @cached_property
    def _root(self) -> np.ndarray:
        values, vectors = np.linalg.eigh(self.likeness)
        root: np.ndarray = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
        return root

    def draw(self, uniform: Float[np.ndarray, "n variable"], lead: Float[np.ndarray, "n variable"]) -> np.ndarray:
        """Map uniform numbers to standardised errors, or normal scores, by the inverse distribution function."""
        upper = np.clip(np.searchsorted(PROBABILITIES, uniform), 1, len(PROBABILITIES) - 1)
        low, high = PROBABILITIES[upper - 1], PROBABILITIES[upper]
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
        inner = np.arange(len(APART), len(self.leads))
        place = np.full(lead.shape, float(APART.index(0.0)))  # used if there are no positive lead times
        if len(inner):
            with np.errstate(divide="ignore"):
                place = np.interp(np.log(np.maximum(lead, 0)), np.log(self.leads[inner]), inner)
        for number, apart in enumerate(APART):
            place[lead == apart] = number
        lower = np.floor(place).astype(np.int64)
        share, variable = place - lower, np.arange(table.shape[1])
        low, high = (table[at, variable, *rest] for at in (lower, np.minimum(lower + 1, len(table) - 1)))
        mixed: np.ndarray = (1 - share) * low + share * high
        return mixed

    def to_dict(self) -> dict[str, Any]:
        """Return the calibration as a dictionary that can be written as JSON."""
        return {
            "leads": self.leads[len(APART) :].tolist(),
            "quantiles": self.quantiles.tolist(),
            "likeness": self.likeness.tolist(),
            "constant": self.constant.tolist(),
            "mean_weight": self.mean_weight.tolist(),
            "cap": self.cap.tolist(),
            "recalibration": self.recalibration.to_dict(),
        }

    @staticmethod
    def from_dict(saved: dict[str, Any], kinds: Kinds) -> "Calibration":
        """Restore a calibration from the output of `to_dict`, and the kinds of the variables."""
        likeness = np.array(saved["likeness"]).reshape(2 * (len(saved["likeness"]),))
        leads = np.array([*APART, *saved["leads"]])
        constant = np.array(saved["constant"], bool)
        weight, cap = (np.array(saved[key]) for key in ("mean_weight", "cap"))
        again = Recalibration.from_dict(saved["recalibration"])
        return Calibration(leads, np.array(saved["quantiles"]), likeness, constant, weight, cap, kinds, again)


def _own(errors: np.ndarray, counted: np.ndarray, otherwise: np.ndarray, *, borrowed: int = 0) -> np.ndarray:
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
    for k in np.flatnonzero(count >= ENOUGH):
        weight = count[k] ** 2 / (count[k] ** 2 + borrowed**2)
        found[k] = weight * _quantiles(errors[counted[:, k], k]) + (1 - weight) * otherwise[k]
    return found


def _nearest(errors: np.ndarray, ranges: Sequence[np.ndarray], otherwise: np.ndarray) -> np.ndarray:
    """Estimate the quantiles of each range of lead times.

    A variable with too few errors in a range takes the quantiles of the nearest range that has enough. The average over
    all ranges would be too narrow for long lead times of rarely observed variables.
    """
    if not ranges:
        return np.empty((0, *otherwise.shape))
    found = np.stack([_own(errors, among, otherwise) for among in ranges])
    enough = np.stack([among.sum(0) >= ENOUGH for among in ranges])  # (range, variable)
    number = np.arange(len(ranges))
    distance = np.where(enough, np.abs(number[:, None, None] - number[:, None]), len(ranges))  # (to, from, variable)
    nearest: np.ndarray = found[distance.argmin(1), np.arange(found.shape[1])]
    return nearest


def _likeness(errors: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Estimate the correlation between the errors of variables at one time, from their normal scores.

    The estimate is smaller for variables that rarely have errors at the same time.

    Returns:
        The correlation matrix. It is the identity if there are too few errors, and empty above `COUPLED` variables.
    """
    size = errors.shape[1]
    if not 2 <= size <= COUPLED or np.sum(counted.sum(1) > 1) < ENOUGH:
        return np.eye(size) if size <= COUPLED else np.empty((0, 0))
    scores = np.zeros(errors.shape)
    for k in range(size):
        among = counted[:, k]
        _, group, count = np.unique(errors[among, k], return_inverse=True, return_counts=True)
        place = (np.cumsum(count) - count / 2)[group]  # equal errors have equal ranks
        scores[among, k] = torch.special.ndtri(torch.from_numpy(place / max(1, len(place)))).numpy()
    together = scores.T @ scores
    length = np.sqrt(np.maximum(np.diag(together), 1e-12))
    np.fill_diagonal(together, length**2)
    return np.round(together / length / length[:, None], 4)


def _shared(errors: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """Assign the quantiles of all errors to every variable. Return ``otherwise`` if there are too few errors."""
    return otherwise if len(errors) < ENOUGH else np.tile(_quantiles(errors), (len(otherwise), 1))


def _quantiles(errors: np.ndarray) -> np.ndarray:
    """Compute quantiles by Weibull's method: a new value is below the p-quantile with probability p."""
    found: np.ndarray = np.quantile(errors, PROBABILITIES, method="weibull")
    return found
