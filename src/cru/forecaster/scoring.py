"""Score a fitted model on withheld values, and calibrate it with its errors."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cru.data import Scaler, SeriesSet
from cru.forecaster.calibration import ENOUGH, LARGEST_CAP, Calibration
from cru.forecaster.masking import make_training_task
from cru.forecaster.queries import Predict, ScaledPrediction, calibrated, lead_times, predict_scaled
from cru.models import Model

_JUDGED = 3  # random stream, which differs from those of training and validation
_WANTED = 100 * ENOUGH  # number of withheld values per variable at which drawing stops
_MOST = 8  # largest number of training tasks drawn from the series
_ROOM = 20_000_000  # number of stored entries at which drawing stops


FEWEST = 30  # fewest withheld values for a row in the table of scores
RANGES = ((0.0, 1e-9), (1e-9, 4.0), (4.0, 32.0), (32.0, np.inf), (np.inf, np.nan))  # of lead times, in typical gaps
RANGE_NAMES = ("same time", "up to 4 gaps", "up to 32 gaps", "longer", "nothing observed")


class Errors(NamedTuple):
    """Withheld values, their predictions and their lead times, in scaled units."""

    values: np.ndarray  # (row, variable)
    mean: np.ndarray
    center: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    counted: np.ndarray  # (row, variable), which values are withheld
    lead: np.ndarray  # (row, variable)
    owner: np.ndarray  # (row,), index of the series
    constant: np.ndarray  # (variable,), variables with one value in the table, which is predicted

    @property
    def series(self) -> int:
        """The number of series that the errors come from."""
        return len(np.unique(self.owner))

    @property
    def said(self) -> ScaledPrediction:
        """The scaled predictions."""
        return ScaledPrediction(self.mean, self.center, self.lower, self.upper)

    def calibration(self) -> Calibration:
        """Fit a calibration to the standardised errors."""
        z = self.said.standardise(self.values)
        return Calibration.fit(z, self.counted, self.lead, series=self.series, constant=self.constant)

    def with_mean_weight(self, calibration: Calibration, scaler: Scaler, series: SeriesSet) -> Calibration:
        """Set the floor, the cap and the mean weight of a calibration.

        The mean weight, from 0 to 1, moves the prediction of a variable on a logarithmic scale from its center to its
        mean. It minimises the squared error of the withheld values in the user's units.

        Args:
            calibration: the fitted calibration.
            scaler: of the table.
            series: the table in the user's units, which determines the floor and the cap.
        """
        calibration = dataclasses.replace(calibration, floor=lowest_possible(series))
        if not scaler.is_log.any():
            return calibration
        top, low = (np.where(series.mask, series.values, fill).astype(float) for fill in (-np.inf, np.inf))
        cap = np.nan_to_num(top.max(0) + 0.5 * (top.max(0) - low.min(0)), posinf=LARGEST_CAP, neginf=LARGEST_CAP)
        capped = dataclasses.replace(calibration, cap=cap, mean_weight=np.ones(len(cap)))
        whole = calibrated(self.said, self.lead, scaler=scaler, calibration=capped).mean
        center = scaler.inverse(self.center)
        above, missed = whole - center, scaler.inverse(self.values) - center
        usual = self.counted & (self.lead >= 0) & np.isfinite(self.lead)  # other lead times are rare and extreme
        product, square = (np.where(usual, part, 0).sum(0) for part in (above * missed, above * above))
        weight = np.where(scaler.is_log & (square > 0), np.clip(product / np.maximum(square, 1e-300), 0, 1), 0)
        return dataclasses.replace(calibration, cap=cap, mean_weight=np.round(weight, 6))

    def take(self, rows: np.ndarray) -> "Errors":
        """Return the given rows."""
        return Errors._make([*(field[rows] for field in self[:-1]), self.constant])


def errors_of(
    model: Model,
    series: SeriesSet,
    constant: np.ndarray,
    *,
    seed: int,
    predict: Predict | None = None,
    most: int = _MOST,
) -> Errors:
    """Withhold values of scaled series as in training, and predict them.

    This is repeated with new random choices until each variable has enough withheld values.

    Args:
        model: the fitted model.
        series: scaled series.
        constant: which variables are constant.
        seed: of the random choices.
        predict: is called instead of the model if given.
        most: largest number of repetitions.
    """
    found: list[tuple[np.ndarray, ...]] = []
    ever = series.mask.any(0)  # variables without observations never get withheld values
    for turn in range(most):
        task = make_training_task(series, (seed, _JUDGED, turn))
        assert task.targets is not None and task.hidden is not None
        said = predict_scaled(model, task, predict).with_constants(constant)
        lead = lead_times(task, causal=model.causal)
        found.append((task.targets, *said, task.hidden, lead, task.series_index))
        hidden = [turn[5] for turn in found]
        count = sum(each[:, ever].sum(0) for each in hidden)
        if np.min(count, initial=_WANTED) >= _WANTED or sum(each.size for each in hidden) >= _ROOM:
            break
    return Errors._make([*map(np.concatenate, zip(*found, strict=True)), constant])


def lowest_possible(series: SeriesSet) -> np.ndarray:
    """Return the lowest possible value of each variable.

    It is 0 for a variable that is never negative and has zeros or a long upper tail, such as rain. Other variables have
    no bound, which is written as `-LARGEST_CAP`.
    """
    floor = np.full(len(series.names), -LARGEST_CAP)
    for k in range(len(floor)):
        values = series.values[series.mask[:, k], k].astype(np.float64)
        if len(values) and values.min() >= 0 and is_skewed(values):
            floor[k] = 0.0
    return floor


def is_skewed(values: np.ndarray) -> bool:
    """Return whether values that vary contain zeros or have a skewness above 1."""
    spread = values.std()
    return bool(spread > 0 and ((values == 0).any() or ((values - values.mean()) ** 3).mean() / spread**3 > 1.0))


def constant(series: SeriesSet) -> np.ndarray:
    """Return which variables have at least `ENOUGH` observations that are all equal."""
    read = (np.where(series.mask, series.values, fill) for fill in (np.inf, -np.inf))
    least, most = next(read).min(0), next(read).max(0)
    never: np.ndarray = (least == most) & (series.mask.sum(0) >= ENOUGH)
    return never


def r_squared(errors: Errors) -> float:
    """Return R² of all variables together, each in units of its standard deviation.

    The reference is the mean of the training series, which is 0 in scaled units. The mean of the withheld values would
    be unfair, because no model can know it.
    """
    counted = errors.counted
    wrong = np.where(counted, errors.values - errors.mean, 0.0)
    around = np.where(counted, errors.values, 0.0)
    total = float((around**2).sum())
    return 1 - float((wrong**2).sum()) / total if total > 0 else 0.0


def compare(found: Mapping[str, Errors], names: Sequence[str], gap: float) -> list[dict[str, Any]]:
    """Compute the mean absolute error of every model, by variable and range of lead times, in standard deviations.

    Args:
        found: errors of each model on the same withheld values.
        names: of the variables.
        gap: typical time between observations, the unit of the ranges of lead times.

    Returns:
        One row for each variable and range with at least `FEWEST` values: "variable", "lead", "count", and a column for
        each model.
    """
    first = next(iter(found.values()))
    lead = np.where(np.isfinite(first.lead) & (first.lead >= 0), first.lead / gap, np.inf)
    rows = []
    for k, name in enumerate(names):
        for (low, high), words in zip(RANGES, RANGE_NAMES, strict=True):
            chosen = first.counted[:, k] & (low <= lead[:, k]) & ~(lead[:, k] >= high)
            if chosen.sum() < FEWEST:
                continue
            maes = {
                model: round(float(np.abs(each.values[chosen, k] - each.mean[chosen, k]).mean()), 4)
                for model, each in found.items()
            }
            rows.append({"variable": name, "lead": words, "count": int(chosen.sum()), **maes})
    return rows


def judge(errors: Errors, series: int) -> dict[str, Any]:
    """Compute the scores of a model: R², mean absolute error, and the coverage of 50 % and 90 % intervals.

    The errors of all variables are pooled, each in units of its standard deviation. Coverage is measured by two-fold
    cross-validation: each half of the series is scored with the calibration of the other half.

    Args:
        errors: of the model on withheld values.
        series: number of series in the table.

    Returns:
        "r2", "mae", "count" and "series". If both halves have at least `ENOUGH` values, also "coverage50" and
        "coverage90", as shares.
    """
    counted = errors.counted
    wrong = np.where(counted, errors.values - errors.mean, 0.0)
    scores: dict[str, Any] = {
        "r2": r_squared(errors),
        "mae": float(np.abs(wrong).sum() / max(1, counted.sum())),
        "count": int(counted.sum()),
        "series": min(series, errors.series),
    }
    halves = [errors.owner % 2 == k for k in (0, 1)]
    if all(counted[half].sum() >= ENOUGH for half in halves):
        inside = {50: 0.0, 90: 0.0}
        for half, other in (halves, halves[::-1]):
            taught, judged = errors.take(half).calibration().widened(series), errors.take(other)
            z = judged.said.standardise(judged.values)
            for level in inside:
                low, high = (taught.quantile(0.5 + side * level / 200, judged.lead) for side in (-1, 1))
                inside[level] += float((judged.counted & (low <= z) & (z <= high)).sum())
        scores |= {f"coverage{level}": count / int(counted.sum()) for level, count in inside.items()}
    return scores
