"""How good a fitted model is on series that it was not trained on."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cru.data import Scaler, SeriesSet
from cru.forecaster.calibration import ENOUGH, LARGEST_CAP, Calibration
from cru.forecaster.masking import make_training_task
from cru.forecaster.queries import Predict, ScaledPrediction, calibrated, lead_times, predict_scaled
from cru.models import Model

_JUDGED = 3  # stream of the seed: not what validation withheld
_WANTED = 100 * ENOUGH  # withheld values for each variable
_MOST = 8  # times that the series are gone through for them
_ROOM = 20_000_000  # entries that are kept of that, of all variables together


FEWEST = 30  # withheld values of a row in the table of scores
RANGES = ((0.0, 1e-9), (1e-9, 4.0), (4.0, 32.0), (32.0, np.inf), (np.inf, np.nan))  # of lead times, in typical gaps
RANGE_NAMES = ("same time", "up to 4 gaps", "up to 32 gaps", "longer", "nothing observed")


class Errors(NamedTuple):
    """Withheld values, what was said of them, and how far they were from the last reading; scaled units."""

    values: np.ndarray  # (row, variable)
    mean: np.ndarray
    center: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    counted: np.ndarray  # (row, variable), which of them were withheld
    lead: np.ndarray  # (row, variable)
    owner: np.ndarray  # (row,), the number of the series
    constant: np.ndarray  # (variable,), which never vary, and are said to be what they are

    @property
    def series(self) -> int:
        """How many series they are of."""
        return len(np.unique(self.owner))

    @property
    def said(self) -> ScaledPrediction:
        """The predictions."""
        return ScaledPrediction(self.mean, self.center, self.lower, self.upper)

    def calibration(self) -> Calibration:
        """What they teach."""
        z = self.said.standardise(self.values)
        return Calibration.fit(z, self.counted, self.lead, series=self.series, constant=self.constant)

    def with_mean_weight(self, calibration: Calibration, scaler: Scaler, series: SeriesSet) -> Calibration:
        """Choose, for each variable on a logarithmic scale, how far its mean lies above its center.

        The weight is the least squares one on the withheld values, in the user's units. ``series`` give the cap.
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
        usual = self.counted & (self.lead >= 0) & np.isfinite(self.lead)  # the rest is rare, and far above its center
        product, square = (np.where(usual, part, 0).sum(0) for part in (above * missed, above * above))
        weight = np.where(scaler.is_log & (square > 0), np.clip(product / np.maximum(square, 1e-300), 0, 1), 0)
        return dataclasses.replace(calibration, cap=cap, mean_weight=np.round(weight, 6))

    def take(self, rows: np.ndarray) -> "Errors":
        """Some of the rows."""
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
    """Withhold readings of scaled series as in training and predict them; several times where there are few."""
    found: list[tuple[np.ndarray, ...]] = []
    ever = series.mask.any(0)  # more turns cannot help the others
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
    """0 for each variable that is never negative and often zero or skewed, such as rain; no bound for the others."""
    floor = np.full(len(series.names), -LARGEST_CAP)
    for k in range(len(floor)):
        values = series.values[series.mask[:, k], k].astype(np.float64)
        if len(values) and values.min() >= 0 and is_skewed(values):
            floor[k] = 0.0
    return floor


def is_skewed(values: np.ndarray) -> bool:
    """Whether positive values have a long upper tail, or zeros among them."""
    spread = values.std()
    return bool(spread > 0 and ((values == 0).any() or ((values - values.mean()) ** 3).mean() / spread**3 > 1.0))


def constant(series: SeriesSet) -> np.ndarray:
    """Which variables have been read often, and were always the same."""
    read = (np.where(series.mask, series.values, fill) for fill in (np.inf, -np.inf))
    least, most = next(read).min(0), next(read).max(0)
    never: np.ndarray = (least == most) & (series.mask.sum(0) >= ENOUGH)
    return never


def r_squared(errors: Errors) -> float:
    """Of all variables together, each in its standard deviations; around the mean of the training series, which is 0
    here: that of a few others, found from the values themselves, no model could know."""
    counted = errors.counted
    wrong = np.where(counted, errors.values - errors.mean, 0.0)
    around = np.where(counted, errors.values, 0.0)
    total = float((around**2).sum())
    return 1 - float((wrong**2).sum()) / total if total > 0 else 0.0


def compare(found: Mapping[str, Errors], names: Sequence[str], gap: float) -> list[dict[str, Any]]:
    """The mean absolute error of every model, by variable and by range of lead time, in standard deviations.

    Args:
        found: the errors of each model on the same withheld values; the first is the model itself.
        names: of the variables.
        gap: typical time between observations. Ranges of lead time are counted in it.

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
    """R² and mean absolute error of all variables together, each in its standard deviations, and the coverage.

    ``series`` is the number of series in the table.

    Coverage is measured on one half of the series with what the other half taught, both ways.
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
