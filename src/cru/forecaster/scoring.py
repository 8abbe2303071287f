"""The scores of a fitted model on withheld values, and its calibration with their errors."""

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cru.data import Scaler, SeriesSet
from cru.forecaster.calibration import APART, ENOUGH, LARGEST_CAP, NORMAL, Calibration
from cru.forecaster.distribution import Distribution, ScaledPrediction, calibrated
from cru.forecaster.kinds import Kinds
from cru.forecaster.masking import make_training_task
from cru.forecaster.queries import Predict, lead_times, predict_scaled
from cru.forecaster.recalibration import Recalibration, fit_logistic
from cru.models import Model

_JUDGED = 3  # random stream, which differs from those of training and validation


@dataclass(frozen=True)
class ScoringConstants:
    """Sizes of the scores on withheld values."""

    values_per_variable: int = 100 * ENOUGH  # number of withheld values per variable that is enough
    max_tasks: int = 8  # largest number of training tasks drawn from the series
    max_points: int = 200_000  # number of time points at which no further task is drawn
    max_entries: int = 20_000_000  # number of entries at which no further task is drawn
    mean_weight_points: int = 20_000  # most time points that set the mean weights
    rounding: float = 1e-6  # of a scaled value
    lead_time_share: float = 0.5  # share of the lead time in normal scores, which few series determine poorly


CONSTANTS = ScoringConstants()


FEWEST = 30  # fewest withheld values for a row in the table of scores
RANGES = ((0.0, 1e-9), (1e-9, 4.0), (4.0, 32.0), (32.0, np.inf), (np.inf, np.nan))  # of lead times, in typical gaps
RANGE_NAMES = ("same time", "up to 4 gaps", "up to 32 gaps", "longer", "nothing observed")
ALL_RANGES = "all"  # name of all ranges together
LEVELS = (10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99)  # of the intervals whose coverage is measured, in per cent


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
    times: np.ndarray  # (row,)
    turn: np.ndarray  # (row,), which repetition withheld the values
    constant: np.ndarray  # (variable,), variables with one value in the table, which is predicted

    @property
    def series(self) -> int:
        """The number of series that the errors come from."""
        return len(np.unique(self.owner))

    @property
    def prediction(self) -> ScaledPrediction:
        """The scaled predictions."""
        return ScaledPrediction(self.mean, self.center, self.lower, self.upper)

    def ranges(self, gap: float) -> dict[str, np.ndarray]:
        """Return the mask of the values in each range of lead times, by `RANGE_NAMES`, in units of ``gap``."""
        lead = np.where(np.isfinite(self.lead) & (self.lead >= 0), self.lead / gap, np.inf)
        inside = [(low <= lead) & ~(lead >= high) for low, high in RANGES]
        return dict(zip(RANGE_NAMES, inside, strict=True))

    def calibration(self, scaler: Scaler, kinds: Kinds) -> Calibration:
        """Fit a calibration to the standardised errors.

        Args:
            scaler: the scaler of the table.
            kinds: the kinds of the variables.
        """
        z = self.prediction.standardise(self._spread_counts(scaler, kinds))
        skewed = kinds.are("nonnegative", "count") & ~self.constant
        mean, values = scaler.inverse(self.mean), scaler.inverse(self.values)
        lowest = scaler.transform(kinds.edges)
        edge, at_lowest = (
            self.prediction.standardise(lowest),
            kinds.are("nonnegative") & (self.values <= lowest + CONSTANTS.rounding),
        )
        again = Recalibration.fit(z, self.mean, edge, self.counted & self.usual, skewed, at_lowest)
        for k in np.flatnonzero(kinds.is_event & ~self.constant):
            among = self.counted[:, k]
            again.logistic[k] = fit_logistic(mean[among, k], np.round(values[among, k]))
        scores = again.scores(z, self.mean, self.counted)
        made = Calibration.fit(scores, self.counted, self.lead, series=self.series, constant=self.constant)
        ranges = np.ix_(np.arange(APART.index(0.0), len(made.leads)), again.used)
        made.quantiles[ranges] = np.round(
            CONSTANTS.lead_time_share * made.quantiles[ranges] + (1 - CONSTANTS.lead_time_share) * NORMAL, 6
        )
        return dataclasses.replace(made, kinds=kinds, recalibration=again)

    def _spread_counts(self, scaler: Scaler, kinds: Kinds) -> np.ndarray:
        """Add uniform noise from -1/2 to 1/2 to counts (Machado & Santos Silva 2005).

        The result has a continuous distribution. Its quantiles, rounded to integers, are those of the counts.
        """
        if not kinds.is_count.any():
            return self.values
        noise = np.random.default_rng(0).uniform(-0.5, 0.5, self.values.shape)
        return np.where(kinds.is_count, scaler.transform(scaler.inverse(self.values) + noise), self.values)

    @property
    def usual(self) -> np.ndarray:
        """Mask of the usual lead times. The others are rare and extreme."""
        usual: np.ndarray = (self.lead >= 0) & np.isfinite(self.lead)
        return usual

    def with_mean_weight(self, calibration: Calibration, scaler: Scaler, series: SeriesSet) -> Calibration:
        """Set the cap and the mean weight of a calibration.

        The mean weight, from 0 to 1, moves the prediction of a variable on a logarithmic scale from its center to its
        mean. It minimises the squared error of the withheld values in the user's units.

        Args:
            calibration: the fitted calibration.
            scaler: the scaler of the table.
            series: the table in the user's units, which determines the cap.
        """
        if not scaler.is_log.any():
            return calibration
        top, low = (np.where(series.mask, series.values, fill).astype(float) for fill in (-np.inf, np.inf))
        cap = np.nan_to_num(top.max(0) + 0.5 * (top.max(0) - low.min(0)), posinf=LARGEST_CAP, neginf=LARGEST_CAP)
        capped = dataclasses.replace(calibration, cap=cap, mean_weight=np.ones(len(cap)))
        usual = self.counted & self.usual
        rows = np.flatnonzero((usual & scaler.is_log).any(1))
        rows = rows[:: max(1, len(rows) // CONSTANTS.mean_weight_points)]
        some, usual = self.take(rows), usual[rows]
        whole = calibrated(some.prediction, some.lead, scaler=scaler, calibration=capped).mean
        center = scaler.inverse(some.center)
        above, missed = whole - center, scaler.inverse(some.values) - center
        product, square = (np.where(usual, part, 0).sum(0) for part in (above * missed, above * above))
        weight = np.where(scaler.is_log & (square > 0), np.clip(product / np.maximum(square, 1e-300), 0, 1), 0)
        return dataclasses.replace(calibration, cap=cap, mean_weight=np.round(weight, 6))

    def take(self, rows: np.ndarray) -> "Errors":
        """Return the given rows."""
        return Errors._make([*(field[rows] for field in self[:-1]), self.constant])


def withhold(series: SeriesSet, seed: int, turn: int, only: np.ndarray | None = None) -> SeriesSet:
    """Withhold values of series for scores.

    The choice depends neither on the units of the series nor on ``only``.

    Args:
        series: the series.
        seed: the seed of the random choices.
        turn: the number of the repetition.
        only: indices of the series to return. None: all series.
    """
    task = make_training_task(series, (seed, _JUDGED, turn))
    return task if only is None else task.take(only)


def errors_of(
    model: Model,
    series: SeriesSet,
    constant: np.ndarray,
    *,
    seed: int,
    predict: Predict | None = None,
    most: int | None = None,
    only: np.ndarray | None = None,
) -> Errors:
    """Withhold values of scaled series as in training, and predict them.

    This is repeated with new random choices until each variable has enough withheld values.

    Args:
        model: the fitted model.
        series: scaled series.
        constant: mask of the constant variables.
        seed: the seed of the random choices.
        predict: the function to call instead of the model. None: the model.
        most: largest number of repetitions. None: the default.
        only: indices of the series to predict. None: all series.
    """
    found: list[tuple[np.ndarray, ...]] = []
    ever = np.asarray(series.mask.any(0))  # variables without observations never have withheld values
    count, rows = np.zeros(ever.sum(), np.int64), 0
    for turn in range(CONSTANTS.max_tasks if most is None else most):
        task = withhold(series, seed, turn, only)
        assert task.targets is not None and task.hidden is not None
        prediction = predict_scaled(model, task, predict).with_constants(constant)
        lead = lead_times(task, causal=model.causal)
        kept = np.asarray(task.hidden.any(1))
        owner = task.series_index if only is None else only[task.series_index]
        parts = (task.targets, *prediction, task.hidden, lead, owner, task.times, np.full(len(owner), turn))
        found.append(tuple(part[kept] for part in parts))
        count, rows = count + task.hidden[:, ever].sum(0), rows + len(task.times)
        if (
            np.min(count, initial=CONSTANTS.values_per_variable) >= CONSTANTS.values_per_variable
            or rows >= CONSTANTS.max_points
            or rows * len(ever) >= CONSTANTS.max_entries
        ):
            break
    return Errors._make([*map(np.concatenate, zip(*found, strict=True)), constant])


def constant(series: SeriesSet) -> np.ndarray:
    """Return the mask of the variables that have at least `ENOUGH` observations, all of them equal."""
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


def judge(errors: Errors, series: int, gap: float, scaler: Scaler, kinds: Kinds) -> dict[str, Any]:
    """Compute the scores of a model: R², mean absolute error, and the coverage of intervals.

    The errors of all variables are pooled, each in units of its standard deviation. Coverage is measured by two-fold
    cross-validation: each half of the series is scored with the calibration of the other half. It leaves out events,
    which have a probability instead of an interval.

    Args:
        errors: the errors of the model on withheld values.
        series: number of series in the table.
        gap: typical time between observations, the unit of the ranges of lead times.
        scaler: the scaler of the table.
        kinds: the kinds of the variables.

    Returns:
        "r2", "mae", "count" and "series". "coverage" has one row for each level of `LEVELS` and each range of lead
        times. It is empty if a half has fewer than `ENOUGH` values. Otherwise, "coverage50" and "coverage90" are the
        shares at all lead times.
    """
    counted = errors.counted
    wrong = np.where(counted, errors.values - errors.mean, 0.0)
    scores: dict[str, Any] = {
        "r2": r_squared(errors),
        "mae": float(np.abs(wrong).sum() / max(1, counted.sum())),
        "count": int(counted.sum()),
        "series": min(series, errors.series),
        "coverage": _coverage(errors, series, gap, scaler, kinds),
    }
    whole = {row["level"]: row["coverage"] for row in scores["coverage"] if row["lead"] == ALL_RANGES}
    return scores | {f"coverage{level}": whole[level] for level in (50, 90) if whole}


def _coverage(errors: Errors, series: int, gap: float, scaler: Scaler, kinds: Kinds) -> list[dict[str, Any]]:
    """Compute the share of values inside each interval, by range of lead times, as `judge` describes."""
    halves = [errors.owner % 2 == k for k in (0, 1)]
    counted = errors.counted & ~kinds.is_event
    if any(counted[half].sum() < ENOUGH for half in halves):
        return []
    count, inside = dict.fromkeys((ALL_RANGES, *RANGE_NAMES), 0), np.zeros((len(LEVELS), 1 + len(RANGES)))
    for half, other in (halves, halves[::-1]):
        taught, scored = errors.take(half).calibration(scaler, kinds).widened(series), errors.take(other)
        found = Distribution(scored.prediction, scored.lead, scaler=scaler, calibration=taught)
        values = kinds.possible(scaler.inverse(scored.values))
        ranges = {ALL_RANGES: counted[other]} | {
            name: counted[other] & among for name, among in scored.ranges(gap).items()
        }
        count = {name: count[name] + int(among.sum()) for name, among in ranges.items()}
        for number, level in enumerate(LEVELS):
            low, high = found.interval(float(level))
            within = (low <= values) & (values <= high)
            inside[number] += [(within & among).sum() for among in ranges.values()]
    return [
        {"lead": lead, "count": among, "level": level, "coverage": float(inside[number, which] / among)}
        for which, (lead, among) in enumerate(count.items())
        for number, level in enumerate(LEVELS)
        if among >= FEWEST
    ]
