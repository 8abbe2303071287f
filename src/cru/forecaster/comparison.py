"""Scores of several models on the same values, by variable, lead time and series, and intervals of differences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from cru.data import Scaler, SeriesSet
from cru.errors import InputError, did_you_mean
from cru.forecaster.calibration import Calibration
from cru.forecaster.masking import FEW_SERIES
from cru.forecaster.predictive_distribution import ScaledPrediction, calibrated
from cru.shapes import Bool, Float, Int64

GRID = (10.0, 30.0, 50.0, 70.0, 90.0)  # levels whose bounds are the quantiles of the CRPS: 5 %, 15 %, ..., 95 %


@dataclass(frozen=True)
class BootstrapConstants:
    """Constants of the intervals of differences between models."""

    draws: int = 1000  # number of resamples
    confidence: float = 0.95  # of the interval of a difference
    max_clusters: int = 200  # in one resample: more clusters are merged, which keeps them independent
    min_clusters: int = 4  # from fewer clusters, no interval is estimated
    numbers_at_once: int = 4_000_000  # numbers of the bootstrap in memory at a time
    warning_error_rate: float = 0.01  # of `find_losses`: probability of a warning about a model that is equally good
    min_warning_clusters: int = 10  # fewest clusters for a warning
    min_relative_loss: float = 0.02  # smallest relative loss for a warning
    rounding: float = 1e-5  # relative difference of two scores that rounding explains


BOOTSTRAP = BootstrapConstants()
KEYS = ("variable", "lead", "series")
MODEL = "model"  # name of the fitted model in a comparison
REFERENCE = "reference"  # in the column "better": the naive model with which the others are compared


class Losses(NamedTuple):
    """Losses of one model, one entry for each scored value."""

    absolute: Float[np.ndarray, " value"]  # distance from the median
    squared: Float[np.ndarray, " value"]  # squared distance from the mean
    crps: Float[np.ndarray, " value"]  # twice the mean pinball loss of ten quantiles
    inside: Bool[np.ndarray, "value level"]
    width: Float[np.ndarray, "value level"]

    @staticmethod
    def of(
        observed: Float[np.ndarray, " value"],
        *,
        mean: Float[np.ndarray, " value"],
        median: Float[np.ndarray, " value"],
        bounds: Mapping[str, Float[np.ndarray, " value"]],
        levels: Sequence[float],
    ) -> "Losses":
        """Compute the losses of predictions.

        Args:
            observed: the observed values.
            mean: the predicted means.
            median: the predicted medians.
            bounds: the bounds of the intervals, by names such as "lo-90" and "hi-90". They include those of `GRID`.
            levels: the levels of the intervals to report, in per cent.
        """
        pinball = np.zeros(len(observed))
        for level in GRID:
            for name, p in ((f"lo-{level:g}", 0.5 - level / 200), (f"hi-{level:g}", 0.5 + level / 200)):
                error = observed - bounds[name]
                pinball += np.maximum(p * error, (p - 1) * error)
        low, high = (
            np.array([bounds[f"{side}-{level:g}"] for level in levels]).reshape(len(levels), -1).T
            for side in ("lo", "hi")
        )
        return Losses(
            absolute=np.abs(observed - median).astype(np.float32),
            squared=((observed - mean) ** 2).astype(np.float32),
            crps=(pinball / len(GRID)).astype(np.float32),
            inside=(low <= observed[:, None]) & (observed[:, None] <= high),
            width=(high - low).astype(np.float32),
        )

    @staticmethod
    def join(parts: "Sequence[Losses]") -> "Losses":
        """Concatenate losses of several parts of the values."""
        return Losses._make(map(np.concatenate, zip(*parts, strict=True)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Losses of several models on the same values, and the variable, lead time, series and block of each value.

    Attributes:
        names: names of the variables.
        leads: names of the ranges of lead times.
        series: names of the series.
        levels: levels of the intervals, in per cent.
        variable_of: index of the variable of each value.
        lead_of: index of the range of its lead time.
        series_of: index of its series.
        block_of: index of its block of time. Values of different blocks are nearly independent.
        unit: standard deviation of each variable, 1 for a constant.
        varies: whether the variable has different values.
        losses: losses of each model, by name.
        naive: names of the models that are naive models.
    """

    names: tuple[str, ...]
    leads: tuple[str, ...]
    series: tuple[str, ...]
    levels: tuple[float, ...]
    variable_of: Int64[np.ndarray, " value"]
    lead_of: Int64[np.ndarray, " value"]
    series_of: Int64[np.ndarray, " value"]
    block_of: Int64[np.ndarray, " value"]
    unit: Float[np.ndarray, " variable"]
    varies: Bool[np.ndarray, " variable"]
    losses: dict[str, Losses]
    naive: tuple[str, ...]

    def table(self, by: Sequence[str]) -> dict[str, list[Any]]:
        """Compute the scores of every model in every group of values.

        Args:
            by: the keys of the groups: any of "variable", "lead" and "series". Without "variable", the losses of each
                of several variables are divided by its standard deviation.

        Returns:
            Columns with one entry for each group and model:

            - the columns of ``by``, "model", "count", "mae", "rmse", "crps";
            - "coverage-90" and "width-90" for a level of 90;
            - "difference", the mean absolute error minus that of the best naive model;
            - "low" and "high", the bounds of the 95 % interval of the difference;
            - "better": "yes" if the interval is below 0, "no" if it is above 0, otherwise "unclear". The best naive
              model has "reference".

        Raises:
            InputError: an entry of ``by`` is unknown or occurs twice.
        """
        keys = check_keys(by)
        found, group = self._groups(keys)
        size, models = len(next(iter(found.values()))) if found else 1, list(self.losses)
        weight = self._weights(keys)
        count = np.bincount(group, minlength=size)
        columns: dict[str, np.ndarray] = {}
        for number, losses in enumerate(self.losses.values()):
            scores = _means(losses, weight, group, count, self.levels)
            for name, values in scores.items():
                columns.setdefault(name, np.empty((size, len(models))))[:, number] = values
        best = self._best(columns["mae"], models)
        columns["difference"] = columns["mae"] - np.take_along_axis(columns["mae"], best[:, None], 1)
        pairs = self._pairs(group, self._clusters(keys), weight)
        low, high = _intervals(pairs, best, size)
        columns |= {"low": low, "high": high}
        better = np.where(high < 0, "yes", np.where(low > 0, "no", "unclear")).astype(object)
        better[np.abs(columns["difference"]) <= BOOTSTRAP.rounding * columns["mae"]] = "unclear"
        better[np.arange(size), best] = REFERENCE
        table: dict[str, list[Any]] = {key: np.repeat(part, len(models)).tolist() for key, part in found.items()}
        table["model"] = models * size
        table["count"] = np.repeat(count, len(models)).tolist()
        table |= {name: values.ravel().tolist() for name, values in columns.items()}
        table["better"] = better.ravel().tolist()
        return table

    def find_losses(self, model: str, naive: Sequence[str]) -> list[tuple[str, str, float, float]]:
        """Find variables for which a naive model is significantly better than a model.

        All variables and naive models together give a false alarm with about the probability
        `BootstrapConstants.warning_error_rate`.

        Args:
            model: the name of the model.
            naive: the names of the naive models to compare it with.

        Returns:
            For each such variable: its name, the best naive model, and the mean absolute errors of both models.
        """
        models, size = list(self.losses), len(self.names)
        pairs = self._pairs(self.variable_of, self._clusters(("variable",)), self._weights(("variable",)))
        count = np.bincount(pairs.group, pairs.values, minlength=size)
        start = np.searchsorted(pairs.group, np.arange(size + 1))
        clusters = np.diff(start)
        mae = _by_group(pairs.sums, pairs.group, size) / np.maximum(count, 1)[:, None]
        own, level = (
            models.index(model),
            NormalDist().inv_cdf(1 - BOOTSTRAP.warning_error_rate / max(1, size * len(naive))),
        )
        found = []
        for k in np.flatnonzero((clusters >= BOOTSTRAP.min_warning_clusters) & self.varies):
            rows = slice(start[k], start[k + 1])
            significant = {}
            for name in naive:
                other = models.index(name)
                lost = mae[k, own] - mae[k, other]
                each = pairs.sums[rows, own] - pairs.sums[rows, other] - lost * pairs.values[rows]
                factor = student(level, int(clusters[k]) - 1) * math.sqrt(clusters[k] / (clusters[k] - 1))
                error = factor * math.sqrt(float((each**2).sum())) / count[k]
                if lost > max(error, BOOTSTRAP.min_relative_loss * mae[k, own]):
                    significant[name] = float(mae[k, other])
            if significant:
                best = min(significant, key=lambda name: significant[name])
                found.append((self.names[k], best, float(mae[k, own]), significant[best]))
        return found

    def _groups(self, keys: Sequence[str]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the keys of each group, and the group of each value."""
        labels = {"variable": self.names, "lead": self.leads, "series": self.series}
        codes = {"variable": self.variable_of, "lead": self.lead_of, "series": self.series_of}
        joint = np.zeros(len(self.variable_of), np.int64)
        for key in keys:
            joint = joint * len(labels[key]) + codes[key]
        kept, group = np.unique(joint, return_inverse=True)
        found = {}
        for key in reversed(keys):
            kept, place = np.divmod(kept, len(labels[key]))
            found[key] = np.array(labels[key], object)[place]
        return {key: found[key] for key in keys}, group.ravel()

    def _weights(self, keys: Sequence[str]) -> np.ndarray:
        """Return the factor of each value: 1, or one over the standard deviation of its variable."""
        if "variable" in keys or len(self.names) == 1:
            return np.ones(len(self.variable_of))
        weight: np.ndarray = 1 / self.unit[self.variable_of]
        return weight

    def _clusters(self, keys: Sequence[str]) -> np.ndarray:
        """Return the cluster of each value: its series, or its block of time if there are few series."""
        return self.block_of if "series" in keys or len(np.unique(self.series_of)) < FEW_SERIES else self.series_of

    def _best(self, mae: np.ndarray, models: list[str]) -> np.ndarray:
        """Return the index of the best naive model of each group."""
        among = [models.index(name) for name in self.naive]
        best: np.ndarray = np.array(among)[mae[:, among].argmin(1)]
        return best

    def _pairs(self, group: np.ndarray, cluster: np.ndarray, weight: np.ndarray) -> "_Pairs":
        """Add up the absolute errors of each model over every cluster of every group."""
        joint, place = np.unique(group * (int(cluster.max()) + 1) + cluster, return_inverse=True)
        place = place.ravel()
        sums = np.stack([np.bincount(place, weight * each.absolute) for each in self.losses.values()], 1)
        return _Pairs(joint // (int(cluster.max()) + 1), np.bincount(place).astype(float), sums)


class _Pairs(NamedTuple):
    """Sums over the values of a cluster in a group, sorted by group."""

    group: Int64[np.ndarray, " pair"]
    values: Float[np.ndarray, " pair"]  # number of values
    sums: Float[np.ndarray, "pair model"]


def vary(series: SeriesSet) -> Bool[np.ndarray, " variable"]:
    """Return the mask of the variables that have at least two different values."""
    low, high = (np.where(series.mask, series.values, fill) for fill in (np.inf, -np.inf))
    several: np.ndarray = low.min(0, initial=np.inf) < high.max(0, initial=-np.inf)
    return several


def calibrated_entries(
    prediction: ScaledPrediction,
    lead: Float[np.ndarray, "row variable"],
    wanted: Bool[np.ndarray, "row variable"],
    *,
    scaler: Scaler,
    calibration: Calibration,
    levels: Sequence[float],
) -> dict[str, Float[np.ndarray, " value"]]:
    """Calibrate only the requested entries, which are few in a table with many missing values.

    Args:
        prediction: scaled predictions.
        lead: lead times.
        wanted: the requested entries.
        scaler: the scaler of the table.
        calibration: quantiles of the standardised errors.
        levels: the levels of the intervals, in per cent.

    Returns:
        The columns of `calibrated` in the order of ``np.nonzero(wanted)``.
    """
    order = np.nonzero(wanted)[1]
    found: dict[str, np.ndarray] = {}
    for k in range(wanted.shape[1]):
        rows, own = wanted[:, k], slice(k, k + 1)
        if not rows.any():
            continue
        part = ScaledPrediction._make(each[rows, own] for each in prediction)
        one = calibrated(
            part, lead[rows, own], scaler=scaler.of_feature(k), calibration=calibration.of_variable(k), levels=levels
        )
        for name, column in one.columns.items():
            found.setdefault(name, np.empty(len(order)))[order == k] = column[:, 0]
    return found


def check_keys(by: Any) -> tuple[str, ...]:
    """Return the keys of groups as a tuple.

    Raises:
        InputError: a key is unknown or occurs twice.
    """
    keys = (by,) if isinstance(by, str) else tuple(by)
    for key in keys:
        if key not in KEYS:
            raise InputError("by", f"have entries of {', '.join(map(repr, KEYS))}", repr(key), did_you_mean(key, KEYS))
    if len(set(keys)) < len(keys):
        raise InputError("by", "have each entry once", repr(by))
    return keys


def student(z: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution whose probability is that of ``z`` in a normal distribution.

    It is an asymptotic expansion in 1 / ``freedom``, with an error below 0.2 % from 3 degrees of freedom at z = 1.96.

    >>> from cru.forecaster.comparison import student
    >>> round(student(1.96, 3), 2), round(student(1.96, 100), 2)
    (3.18, 1.98)
    """
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / freedom**power for power, term in enumerate(terms))


def _means(
    losses: Losses, weight: np.ndarray, group: np.ndarray, count: np.ndarray, levels: Sequence[float]
) -> dict[str, np.ndarray]:
    """Average the losses of one model over the values of each group."""

    def mean(values: np.ndarray) -> np.ndarray:
        average: np.ndarray = np.bincount(group, values, minlength=len(count)) / count
        return average

    scores = {
        "mae": mean(weight * losses.absolute),
        "rmse": np.sqrt(mean(weight**2 * losses.squared)),
        "crps": mean(weight * losses.crps),
    }
    for number, level in enumerate(levels):
        scores[f"coverage-{level:g}"] = mean(losses.inside[:, number].astype(float))
        scores[f"width-{level:g}"] = mean(weight * losses.width[:, number])
    return scores


def _intervals(pairs: _Pairs, best: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Estimate an interval of each difference to the best naive model by a cluster bootstrap.

    A resample draws clusters with replacement. The difference of means is a ratio of two sums, and each resample uses
    its linearisation. A bootstrap with few clusters is too narrow. So each bound is the farther one of the percentile
    and the normal bound, widened by the ratio of Student's t to normal quantiles.

    Returns:
        Lower and upper bounds, infinite below `BootstrapConstants.min_clusters` clusters.
    """
    start = np.searchsorted(pairs.group, np.arange(size + 1))
    clusters, models = np.diff(start), pairs.sums.shape[1]
    count = np.maximum(np.bincount(pairs.group, pairs.values, minlength=size), 1)
    difference = pairs.sums - np.take_along_axis(pairs.sums, best[pairs.group][:, None], 1)
    estimate = _by_group(difference, pairs.group, size) / count[:, None]
    residual = (difference - estimate[pairs.group] * pairs.values[:, None]) / count[pairs.group][:, None]
    slot = (np.arange(len(pairs.group)) - start[pairs.group]) % BOOTSTRAP.max_clusters
    slots, z = (
        int(min(BOOTSTRAP.max_clusters, clusters.max(initial=1))),
        NormalDist().inv_cdf((1 + BOOTSTRAP.confidence) / 2),
    )
    draws = np.random.default_rng(0).multinomial(slots, np.full(slots, 1 / slots), BOOTSTRAP.draws).astype(float)
    low, high = np.full((size, models), -np.inf), np.full((size, models), np.inf)
    together = max(1, BOOTSTRAP.numbers_at_once // (models * (slots + BOOTSTRAP.draws)))
    for first in range(0, size, together):
        last = min(first + together, size)
        rows = slice(start[first], start[last])
        dense = np.zeros((last - first, slots, models))
        np.add.at(dense, (pairs.group[rows] - first, slot[rows]), residual[rows])
        resampled = np.tensordot(dense, draws, (1, 1))
        below, above = np.quantile(resampled, ((1 - BOOTSTRAP.confidence) / 2, (1 + BOOTSTRAP.confidence) / 2), axis=2)
        spread = z * resampled.std(2)
        low[first:last], high[first:last] = np.minimum(below, -spread), np.maximum(above, spread)
    enough = np.flatnonzero(clusters >= BOOTSTRAP.min_clusters)
    few = np.flatnonzero(clusters < BOOTSTRAP.min_clusters)
    factor = np.array([student(z, n - 1) / z * math.sqrt(n / (n - 1)) for n in clusters[enough].tolist()])[:, None]
    low[enough] = estimate[enough] + factor * low[enough]
    high[enough] = estimate[enough] + factor * high[enough]
    low[few], high[few] = -np.inf, np.inf
    return low, high


def _by_group(values: Float[np.ndarray, "pair model"], group: np.ndarray, size: int) -> np.ndarray:
    return np.stack([np.bincount(group, column, minlength=size) for column in values.T], 1)
