"""How good a fitted model is on series that it was not trained on."""

from typing import Any, NamedTuple

import numpy as np

from cru.data import SeriesSet
from cru.forecaster.answers import leads, raw_answers
from cru.forecaster.calibration import ENOUGH, Calibration
from cru.forecaster.practice import practice
from cru.functional.likelihood import VARIANCE_FLOOR
from cru.models import Model

_JUDGED = 3  # stream of the seed: not what validation withheld
_WANTED, _MOST = 20 * ENOUGH, 8  # withheld values for each variable, and how often the series are gone through for them
_ROOM = 20_000_000  # entries that are kept of that, of all variables together


class Errors(NamedTuple):
    """Withheld values, what was said of them, and how far they were from the last reading; scaled units."""

    values: np.ndarray  # (row, variable)
    mean: np.ndarray
    std: np.ndarray
    counted: np.ndarray  # (row, variable), which of them were withheld
    lead: np.ndarray  # (row, variable)
    owner: np.ndarray  # (row,), the number of the series

    def calibration(self) -> Calibration:
        """What they teach."""
        return Calibration.fit(
            (self.values - self.mean) / self.std, self.counted, self.lead, series=len(np.unique(self.owner))
        )

    def take(self, rows: np.ndarray) -> "Errors":
        """Some of the rows."""
        return Errors(*(field[rows] for field in self))


def errors_of(model: Model, series: SeriesSet, *, seed: int) -> Errors:
    """Withhold readings of scaled series as in training and predict them; several times where there are few."""
    found: list[Errors] = []
    ever = series.mask.any(0)  # more turns cannot help the others
    for turn in range(_MOST):
        task = practice(series, (seed, _JUDGED, turn))
        assert task.targets is not None and task.hidden is not None
        mean, var = raw_answers(model, task)
        std = np.sqrt(np.maximum(var, VARIANCE_FLOOR))
        lead = leads(task, causal=model.causal)
        found.append(Errors(task.targets, mean, std, task.hidden, lead, task.series_index))
        count = sum(errors.counted[:, ever].sum(0) for errors in found)
        if np.min(count, initial=_WANTED) >= _WANTED or sum(errors.counted.size for errors in found) >= _ROOM:
            break
    return Errors(*(np.concatenate(fields) for fields in zip(*found, strict=True)))


def r_squared(errors: Errors) -> float:
    """Of all variables together, each in its standard deviations."""
    counted = errors.counted
    wrong = np.where(counted, errors.values - errors.mean, 0.0)
    around = np.where(counted, errors.values - _mean(errors.values, counted), 0.0)
    total = float((around**2).sum())
    return 1 - float((wrong**2).sum()) / total if total > 0 else 0.0


def judge(errors: Errors) -> dict[str, Any]:
    """R² and mean absolute error of all variables together, each in its standard deviations, and the coverage.

    Coverage is measured on one half of the series with what the other half taught, both ways.
    """
    counted = errors.counted
    wrong = np.where(counted, errors.values - errors.mean, 0.0)
    scores: dict[str, Any] = {
        "r2": r_squared(errors),
        "mae": float(np.abs(wrong).sum() / max(1, counted.sum())),
        "count": int(counted.sum()),
    }
    halves = [errors.owner % 2 == k for k in (0, 1)]
    if all(counted[half].sum() >= ENOUGH for half in halves):
        inside = {50: 0.0, 90: 0.0}
        for half, other in (halves, halves[::-1]):
            taught, judged = errors.take(half).calibration(), errors.take(other)
            z = (judged.values - judged.mean) / judged.std
            for level in inside:
                low, high = (taught.quantile(0.5 + side * level / 200, judged.lead) for side in (-1, 1))
                inside[level] += float((judged.counted & (low <= z) & (z <= high)).sum())
        scores |= {f"coverage{level}": count / int(counted.sum()) for level, count in inside.items()}
    return scores


def _mean(values: np.ndarray, counted: np.ndarray) -> np.ndarray:
    mean: np.ndarray = np.where(counted, values, 0.0).sum(0) / np.maximum(counted.sum(0), 1)
    return mean
