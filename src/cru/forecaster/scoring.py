"""The scores of a fitted model on values that `fit` withholds, alone and next to the naive models."""

import dataclasses
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cru.data import Scaler, SeriesSet
from cru.errors import some
from cru.forecaster.calibration import CALIBRATION, Calibration, fit_calibration
from cru.forecaster.clock import Clock
from cru.forecaster.comparison import GRID, MODEL, Comparison, Losses, calibrated_entries, vary
from cru.forecaster.kinds import Kinds
from cru.forecaster.masking import RandomStream, make_training_task
from cru.forecaster.naive_models import NAIVE_MODELS, fit_naive_models
from cru.forecaster.predictive_distribution import PredictiveDistribution, ScaledPrediction
from cru.forecaster.queries import Predict, lead_times, predict_scaled
from cru.models import NAIVE, Model
from cru.models.corrected import CorrectedModel
from cru.models.correction_features import CORRECTION
from cru.models.registry import entry

if TYPE_CHECKING:
    from cru.forecaster.fitting import FittedModel, TrainValidation


@dataclass(frozen=True)
class ScoringConstants:
    """Constants of the scores on withheld values."""

    values_per_variable: int = 100 * CALIBRATION.min_errors  # number of withheld values per variable that is enough
    max_tasks: int = 8  # largest number of training tasks drawn from the series
    max_points: int = 200_000  # number of time points at which no further task is drawn
    max_entries: int = 20_000_000  # number of entries at which no further task is drawn
    coverage_levels: tuple[int, ...] = (10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99)  # of intervals, in per cent
    compared_levels: tuple[float, ...] = (50.0, 90.0)  # of the intervals next to the naive models, in per cent
    enough_compared: int = 20_000  # withheld values at which no further repetition is compared with the naive models
    max_compared: int = 60_000  # about the largest number of values that are compared with the naive models
    min_row_values: int = 30  # fewest withheld values for a row in a table of scores
    blocks: int = 40  # blocks of time of the table, for a table with few series
    digits: int = 5  # significant digits of the scores
    decimals: int = 4  # of errors in standard deviations


SCORING = ScoringConstants()
LEAD_RANGES = tuple(pairwise((0.0, *CORRECTION.lead_time_bounds, np.inf, np.nan)))  # of lead times, in typical gaps
LEAD_RANGE_NAMES = ("same time", "up to 4 gaps", "up to 32 gaps", "longer", "nothing observed")
ALL_RANGES = "all"  # name of all ranges together


class WithheldErrors(NamedTuple):
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
        """Return the mask of the values in each range of lead times, by `LEAD_RANGE_NAMES`, in units of ``gap``."""
        lead = np.where(np.isfinite(self.lead) & (self.lead >= 0), self.lead / gap, np.inf)
        inside = [(low <= lead) & ~(lead >= high) for low, high in LEAD_RANGES]
        return dict(zip(LEAD_RANGE_NAMES, inside, strict=True))

    @property
    def usual(self) -> np.ndarray:
        """Mask of the usual lead times. The others are rare and extreme."""
        usual: np.ndarray = (self.lead >= 0) & np.isfinite(self.lead)
        return usual

    def take(self, rows: np.ndarray) -> "WithheldErrors":
        """Return the given rows."""
        return WithheldErrors._make([*(field[rows] for field in self[:-1]), self.constant])


def withhold(series: SeriesSet, seed: int, turn: int, only: np.ndarray | None = None) -> SeriesSet:
    """Withhold values of series for scores.

    The choice depends neither on the units of the series nor on ``only``.

    Args:
        series: the series.
        seed: the seed of the random choices.
        turn: the number of the repetition.
        only: indices of the series to return. None: all series.
    """
    task = make_training_task(series, (seed, RandomStream.SCORING, turn))
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
) -> WithheldErrors:
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
    for turn in range(SCORING.max_tasks if most is None else most):
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
            np.min(count, initial=SCORING.values_per_variable) >= SCORING.values_per_variable
            or rows >= SCORING.max_points
            or rows * len(ever) >= SCORING.max_entries
        ):
            break
    return WithheldErrors._make([*map(np.concatenate, zip(*found, strict=True)), constant])


def constant(series: SeriesSet) -> np.ndarray:
    """Return the mask of the variables that have enough observations, all of them equal."""
    filled = (np.where(series.mask, series.values, fill) for fill in (np.inf, -np.inf))
    lowest, highest = next(filled).min(0), next(filled).max(0)
    never: np.ndarray = (lowest == highest) & (series.mask.sum(0) >= CALIBRATION.min_errors)
    return never


def r_squared(errors: WithheldErrors) -> float:
    """Return R² of all variables together, each in units of its standard deviation.

    The reference is the mean of the training series, which is 0 in scaled units. The mean of the withheld values would
    be unfair, because no model can know it.
    """
    counted = errors.counted
    wrong = np.where(counted, errors.values - errors.mean, 0.0)
    around = np.where(counted, errors.values, 0.0)
    total = float((around**2).sum())
    return 1 - float((wrong**2).sum()) / total if total > 0 else 0.0


def compute_scores(errors: WithheldErrors, series: int, gap: float, scaler: Scaler, kinds: Kinds) -> dict[str, Any]:
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
        "r2", "mae", "count" and "series". "coverage" has one row for each of
        `ScoringConstants.coverage_levels` and each range of lead times. It is empty if a half has fewer than 100
        values. Otherwise, "coverage50" and "coverage90" are the shares at all lead times.
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


def _coverage(errors: WithheldErrors, series: int, gap: float, scaler: Scaler, kinds: Kinds) -> list[dict[str, Any]]:
    """Compute the share of values inside each interval, by range of lead times, as `compute_scores` describes."""
    halves = [errors.owner % 2 == k for k in (0, 1)]
    counted = errors.counted & ~kinds.is_event
    if any(counted[half].sum() < CALIBRATION.min_errors for half in halves):
        return []
    count, inside = (
        dict.fromkeys((ALL_RANGES, *LEAD_RANGE_NAMES), 0),
        np.zeros((len(SCORING.coverage_levels), 1 + len(LEAD_RANGES))),
    )
    for half, other in (halves, halves[::-1]):
        calibration = fit_calibration(errors.take(half), scaler, kinds).widened(series)
        scored = errors.take(other)
        found = PredictiveDistribution(scored.prediction, scored.lead, scaler=scaler, calibration=calibration)
        values = kinds.possible(scaler.inverse(scored.values))
        ranges = {ALL_RANGES: counted[other]} | {
            name: counted[other] & among for name, among in scored.ranges(gap).items()
        }
        count = {name: count[name] + int(among.sum()) for name, among in ranges.items()}
        for number, level in enumerate(SCORING.coverage_levels):
            low, high = found.interval(float(level))
            within = (low <= values) & (values <= high)
            inside[number] += [(within & among).sum() for among in ranges.values()]
    return [
        {"lead": lead, "count": among, "level": level, "coverage": float(inside[number, which] / among)}
        for which, (lead, among) in enumerate(count.items())
        for number, level in enumerate(SCORING.coverage_levels)
        if among >= SCORING.min_row_values
    ]


class HeldOut(NamedTuple):
    """A comparison on withheld values, None if there are none, and R² of the last value on them."""

    comparison: Comparison | None
    r2_last_value: float


def compared_part(errors: WithheldErrors) -> WithheldErrors:
    """Return the errors of the first repetitions and of some series, which are enough for scores."""
    if not len(errors.turn):
        return errors
    count = errors.counted.sum(1)
    last = int(np.searchsorted(np.cumsum(np.bincount(errors.turn, count)), SCORING.enough_compared))
    first = errors.turn <= last
    step = int(count[first].sum() // SCORING.max_compared) | 1  # odd, so that both halves of the series remain
    return errors.take(first & (errors.owner % step == 0))


def compare_held_out(
    errors: WithheldErrors,
    fitted: "FittedModel",
    parts: "TrainValidation",
    *,
    plain: Scaler,
    calibration: Calibration,
    clock: Clock,
    gap: float,
    series: int,
    seed: int,
) -> HeldOut:
    """Compare a fitted model, its structural model and the naive models on the same withheld values.

    Each half of the series is scored with the calibration of the other half. The naive models are fitted to the
    training part.

    Args:
        errors: the errors of the fitted model, from `compared_part`.
        fitted: the model and the series that ``errors`` come from.
        parts: training and validation part in the user's units.
        plain: the scaler of the training part, without logarithms.
        calibration: the calibration of the fitted model. Each half has its own estimate of all but mean weight and cap.
        clock: the clock of the table.
        gap: typical time between observations.
        series: number of series in the table.
        seed: the seed of the withheld values.
    """
    if not errors.counted.any():
        return HeldOut(None, 0.0)
    scaler, scored = fitted.scaler, fitted.scored
    raw = dataclasses.replace(scored, values=np.where(scored.mask, scaler.inverse(scored.values), 0.0), scaler=None)
    scaled = raw.scaled_by(plain)
    naive = fit_naive_models(parts.train, plain, clock, seed=seed, levels=SCORING.compared_levels)
    observed = scaler.inverse(errors.values)[errors.counted]
    losses = {MODEL: _losses(errors, scaler, calibration, observed, series)}
    turns, only = int(errors.turn.max()) + 1, np.unique(errors.owner)
    if isinstance(fitted.model, CorrectedModel):
        alone = errors_of(
            fitted.model, scored, errors.constant, seed=seed, predict=fitted.model.uncorrected, most=turns, only=only
        )
        losses["structural"] = _losses(alone, scaler, calibration, observed, series)
    found, last, at = [], [], 0
    for turn in range(turns):
        task = withhold(scaled, seed, turn, only)
        assert task.hidden is not None
        prediction, count = naive.predict(task), int(task.hidden.sum())
        found.append(naive.losses(prediction, task, task.hidden, observed[at : at + count], SCORING.compared_levels))
        last.append(prediction["last-value"][np.asarray(task.hidden.any(1))])
        at += count
    losses |= {name: Losses.join([each[name] for each in found]) for name in NAIVE_MODELS}
    repeated = np.concatenate(last)
    if scaler != plain:
        repeated = scaler.transform(plain.inverse(repeated))
    row, variable = np.nonzero(errors.counted)
    ids = {name: k for k, name in enumerate(dict.fromkeys(scored.ids))}
    number = np.array([ids[name] for name in scored.ids])
    first, span = float(errors.times.min()), max(float(np.ptp(errors.times)), 1e-300)
    comparison = Comparison(
        names=scored.names,
        leads=LEAD_RANGE_NAMES,
        series=tuple(ids),
        levels=SCORING.compared_levels,
        variable_of=variable,
        lead_of=_lead_range(errors.lead[errors.counted], gap),
        series_of=number[errors.owner[row]],
        block_of=np.minimum((errors.times[row] - first) / span * SCORING.blocks, SCORING.blocks - 1).astype(np.int64),
        unit=np.array(plain.scale),
        varies=vary(raw),
        losses=losses,
        naive=NAIVE_MODELS,
    )
    return HeldOut(comparison, r_squared(errors._replace(mean=repeated)))


def score_rows(comparison: Comparison | None) -> dict[str, list[dict[str, Any]]]:
    """Make the tables of `Forecaster.scores_`, without the groups of few values.

    Returns:
        Two tables. ``table`` has one row for each variable and range of lead times. It has the mean absolute error of
        every model in standard deviations. ``details`` has one row for each variable, range and model, as
        `Backtest.scores`.
    """
    if comparison is None:
        return {"table": [], "details": []}
    columns = comparison.table(("variable", "lead"))
    rows: list[dict[str, Any]] = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    details: list[dict[str, Any]] = [
        {key: float(f"{value:.{SCORING.digits}g}") if isinstance(value, float) else value for key, value in row.items()}
        for row in rows
        if row["count"] >= SCORING.min_row_values
    ]
    unit = dict(zip(comparison.names, comparison.unit, strict=True))
    table: dict[tuple[str, str], dict[str, Any]] = {}
    for row in details:
        key = row["variable"], row["lead"]
        wide = table.setdefault(key, {"variable": key[0], "lead": key[1], "count": row["count"]})
        wide[row["model"]] = round(row["mae"] / float(unit[key[0]]), SCORING.decimals)
    return {"table": list(table.values()), "details": details}


def find_better_naive_models(comparison: Comparison | None, model: str) -> list[str]:
    """Return a warning if a naive model is significantly better than the model for a variable.

    There is no warning for a naive model. A causal model is compared with causal naive models only, because it cannot
    use later observations.
    """
    if comparison is None or model in NAIVE:
        return []
    causal = entry(model).model.causal
    naive = [name for name in NAIVE_MODELS if entry(name).model.causal or not causal]
    found = [
        f"{name!r} ({rule}: mean absolute error {theirs:.3g} instead of {own:.3g})"
        for name, rule, own, theirs in comparison.find_losses(MODEL, naive)
    ]
    if not found:
        return []
    return [f"A naive model is better than the model on withheld values of {some(found, 5)}. Compare with `backtest`."]


def _losses(
    errors: WithheldErrors, scaler: Scaler, calibration: Calibration, observed: np.ndarray, series: int
) -> Losses:
    """Compute the losses of cross-fitted predictions. Each half of the series has the calibration of the other half."""
    parts: dict[str, np.ndarray] = {}
    first = errors.owner % 2 == 0
    for half in (first, ~first):
        if not errors.counted[half].any():
            continue
        other = errors.take(~half) if errors.counted[~half].any() else errors
        own = fit_calibration(other, scaler, calibration.kinds).widened(series)
        own = dataclasses.replace(own, mean_weight=calibration.mean_weight, cap=calibration.cap)
        part = errors.take(half)
        prediction = calibrated_entries(
            part.prediction,
            part.lead,
            part.counted,
            scaler=scaler,
            calibration=own,
            levels=(*SCORING.compared_levels, *GRID),
        )
        place = half[np.nonzero(errors.counted)[0]]
        for name, column in prediction.items():
            parts.setdefault(name, np.empty(len(observed)))[place] = column
    return Losses.of(observed, mean=parts["mean"], median=parts["median"], bounds=parts, levels=SCORING.compared_levels)


def _lead_range(lead: np.ndarray, gap: float) -> np.ndarray:
    """Return the index of the range of each lead time in `LEAD_RANGES`."""
    length = np.where(np.isfinite(lead) & (lead >= 0), lead / gap, np.inf)
    return np.searchsorted([low for low, _ in LEAD_RANGES[1:]], length, side="right").astype(np.int64)
