"""The comparison of a fitted model with the naive models on the values that `fit` withholds."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cru.data import Scaler
from cru.errors import some
from cru.forecaster.calibration import Calibration, fit_calibration
from cru.forecaster.clock import Clock
from cru.forecaster.comparison import GRID, MODEL, Comparison, Losses, calibrated_entries, vary
from cru.forecaster.naive_models import NAIVE_MODELS, fit_naive_models
from cru.forecaster.scoring import (
    LEAD_RANGE_NAMES,
    LEAD_RANGES,
    SCORING,
    WithheldErrors,
    errors_of,
    r_squared,
    withhold,
)
from cru.models import NAIVE
from cru.models.corrected import CorrectedModel
from cru.models.registry import entry

if TYPE_CHECKING:
    from cru.forecaster.fitting import FittedModel, TrainValidation


@dataclass(frozen=True)
class HeldOutConstants:
    """Constants of the comparison on withheld values."""

    min_values: int = 20_000  # withheld values at which no further repetition is compared
    max_values: int = 60_000  # about the largest number of compared values
    blocks: int = 40  # blocks of time of the table, for a table with few series
    digits: int = 5  # significant digits of the scores
    decimals: int = 4  # of errors in standard deviations
    levels: tuple[float, ...] = (50.0, 90.0)  # of the intervals, in per cent


HELD_OUT = HeldOutConstants()


class HeldOut(NamedTuple):
    """A comparison on withheld values, None if there are none, and R² of the last value on them."""

    comparison: Comparison | None
    r2_last_value: float


def compared_part(errors: WithheldErrors) -> WithheldErrors:
    """Return the errors of the first repetitions and of some series, which are enough for scores."""
    if not len(errors.turn):
        return errors
    count = errors.counted.sum(1)
    last = int(np.searchsorted(np.cumsum(np.bincount(errors.turn, count)), HELD_OUT.min_values))
    first = errors.turn <= last
    step = int(count[first].sum() // HELD_OUT.max_values) | 1  # odd, so that both halves of the series remain
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
    naive = fit_naive_models(parts.train, plain, clock, seed=seed, levels=HELD_OUT.levels)
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
        found.append(naive.losses(prediction, task, task.hidden, observed[at : at + count], HELD_OUT.levels))
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
        levels=HELD_OUT.levels,
        variable_of=variable,
        lead_of=_lead_range(errors.lead[errors.counted], gap),
        series_of=number[errors.owner[row]],
        block_of=np.minimum((errors.times[row] - first) / span * HELD_OUT.blocks, HELD_OUT.blocks - 1).astype(np.int64),
        unit=np.array(plain.scale),
        varies=vary(raw),
        losses=losses,
        naive=NAIVE_MODELS,
    )
    return HeldOut(comparison, r_squared(errors._replace(mean=repeated)))


def score_rows(comparison: Comparison | None) -> dict[str, list[dict[str, Any]]]:
    """Make the tables of `Forecaster.scores_`, without the groups of fewer than `ScoringConstants.min_values` values.

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
        {
            key: float(f"{value:.{HELD_OUT.digits}g}") if isinstance(value, float) else value
            for key, value in row.items()
        }
        for row in rows
        if row["count"] >= SCORING.min_values
    ]
    unit = dict(zip(comparison.names, comparison.unit, strict=True))
    table: dict[tuple[str, str], dict[str, Any]] = {}
    for row in details:
        key = row["variable"], row["lead"]
        wide = table.setdefault(key, {"variable": key[0], "lead": key[1], "count": row["count"]})
        wide[row["model"]] = round(row["mae"] / float(unit[key[0]]), HELD_OUT.decimals)
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
            part.prediction, part.lead, part.counted, scaler=scaler, calibration=own, levels=(*HELD_OUT.levels, *GRID)
        )
        place = half[np.nonzero(errors.counted)[0]]
        for name, column in prediction.items():
            parts.setdefault(name, np.empty(len(observed)))[place] = column
    return Losses.of(observed, mean=parts["mean"], median=parts["median"], bounds=parts, levels=HELD_OUT.levels)


def _lead_range(lead: np.ndarray, gap: float) -> np.ndarray:
    """Return the index of the range of each lead time in `LEAD_RANGES`."""
    length = np.where(np.isfinite(lead) & (lead >= 0), lead / gap, np.inf)
    return np.searchsorted([low for low, _ in LEAD_RANGES[1:]], length, side="right").astype(np.int64)
