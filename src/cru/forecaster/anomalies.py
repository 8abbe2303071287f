"""Anomalies: the p-value of each observation, given the observations before it."""

import copy
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from cru.data import Batch, SeriesSet
from cru.errors import InputError
from cru.forecaster.corrections import FOLD, with_folds
from cru.forecaster.one_step_errors import ONE_STEP, OneStepErrorDistribution, Situation, run_lengths, situation_of
from cru.forecaster.predictive_distribution import ScaledPrediction, calibrated
from cru.forecaster.queries import Predict, drop_empty_rows, lead_time_of, predict_scaled
from cru.forecaster.table_io import long_frame
from cru.models import Model
from cru.models.base import Prediction, State
from cru.models.corrected import CorrectedModel
from cru.models.structural import StructuralModel
from cru.shapes import Bool, Float, Int64

if TYPE_CHECKING:
    from cru.forecaster.estimator import Forecaster


@dataclass(frozen=True)
class AnomalyConstants:
    """Constants of p-values."""

    level: float = 0.001  # default probability below which an observation is an anomaly
    decimals: int = 6  # of a standardised error: more are rounding errors of float32
    same: float = 1e-9  # relative difference between two observations of a constant variable
    max_entries: int = 5_000_000  # most entries (rows times variables) from which the errors are estimated
    max_steps: int = 20_000  # most rows for a model that predicts one row after another
    max_series_steps: int = 1000  # most rows of one series for such a model


ANOMALY = AnomalyConstants()


def check_level(level: Any, argument: str = "level") -> float:
    """Return a level as a float.

    Raises:
        InputError: the level is not a number between 0 and 1.
    """
    number = isinstance(level, int | float | np.integer | np.floating) and not isinstance(level, bool)
    if not (number and 0 < level < 1):
        raise InputError(argument, "be a probability between 0 and 1, such as 0.001", repr(level))
    return float(level)


def step(model: Model, batch: Batch, state: State | None) -> tuple[Prediction, State]:
    """Predict the rows of a batch, each from ``state`` and the rows before it.

    Args:
        model: a model that supports streaming.
        batch: one row, or several for a structural model.
        state: the state before the rows. None: nothing is observed before.

    Returns:
        The prediction, and the state after the rows.
    """
    if _at_once(model):
        found: tuple[Prediction, State] = model.one_step_ahead(batch, state)  # type: ignore[operator]
        return found
    blank = dataclasses.replace(batch, values=torch.zeros_like(batch.values), mask=torch.zeros_like(batch.mask))
    prediction = model(blank) if state is None else model(blank, state=state)
    return prediction, model.advance(batch, state)


def _at_once(model: Model) -> bool:
    """Return whether `step` handles many rows at once."""
    return isinstance(model, StructuralModel) or (isinstance(model, CorrectedModel) and model.network.pointwise)


def predict_next(model: Model, series: SeriesSet, *, held_out: bool = False) -> ScaledPrediction:
    """Predict every row of scaled series from the rows before it.

    Args:
        model: a model that supports streaming or runs forward in time.
        series: scaled series, with an observation in every row.
        held_out: whether to predict each row with the network that was not trained on its fold. ``series`` must hold
            the folds.
    """
    if held_out and isinstance(model, CorrectedModel) and model.network.pointwise:
        corrected = model
        return predict_scaled(model, series, lambda batch: corrected.held_out(batch, batch.extras[FOLD], ahead=True))
    if _at_once(model):
        return predict_scaled(model, series, lambda batch: step(model, batch, None)[0])
    if model.streams:
        return predict_scaled(model, series, _row_by_row(model))
    # A model without states predicts a copy of each row without observations, which precedes the row.
    rows = np.repeat(np.arange(len(series.times)), 2)
    doubled = series.take_rows(rows, 2 * series.offsets)
    query = np.arange(len(rows)) % 2 == 0
    doubled = dataclasses.replace(
        doubled,
        values=np.where(query[:, None], 0.0, doubled.values),
        mask=doubled.mask & ~query[:, None],
    )
    return predict_scaled(model, doubled).take(query)


def _row_by_row(model: Model) -> Predict:
    frozen = copy.deepcopy(model).eval()
    frozen.freeze()

    def predict(batch: Batch) -> Prediction:
        state, means, variances, others = None, [], [], []
        for k in range(batch.times.shape[1]):
            prediction, state = step(frozen, _row(batch, k), state)
            means.append(prediction.mean)
            variances.append(prediction.var)
            others.append(
                {
                    name: prediction.intermediates[name]
                    for name in ("center", "skew")
                    if name in prediction.intermediates
                }
            )
        parts = {name: torch.cat([each[name] for each in others], 1) for name in others[0]}
        return Prediction(torch.cat(means, 1), torch.cat(variances, 1), parts)  # type: ignore[arg-type]

    return predict


def _row(batch: Batch, k: int) -> Batch:
    """Return one time point of every series. Padding is a time point without observations."""
    now = slice(k, k + 1)
    names = ("times", "values", "mask", "targets", "target_mask", "hidden")
    return dataclasses.replace(
        batch,
        **{name: getattr(batch, name)[:, now] for name in names},
        lengths=torch.ones_like(batch.lengths),
        extras={name: tensor[:, now] for name, tensor in batch.extras.items()},
    )


class EarlierRows(NamedTuple):
    """Facts about the rows before each row."""

    since: Float[np.ndarray, "row 1"]  # time since the last row, infinite for the first row of a series
    observed_before: Bool[np.ndarray, "row variable"]  # whether the variable is observed in an earlier row


def describe_earlier_rows(series: SeriesSet) -> EarlierRows:
    """Describe the rows before each row of series without empty rows."""
    first = series.step_index == 0
    since = np.where(first, np.inf, np.diff(series.times, prepend=0.0))
    count = np.cumsum(series.mask, 0) - series.mask  # observations before each row, of earlier series, too
    begins = np.repeat(count[series.offsets[:-1][series.lengths > 0]], series.lengths[series.lengths > 0], 0)
    return EarlierRows(since[:, None], count > begins)


def as_seen(series: SeriesSet, model: Model) -> SeriesSet:
    """Convert the values of scaled series to the floating type of the model."""
    values = torch.from_numpy(np.ascontiguousarray(series.values)).to(model.dtype).numpy()
    return dataclasses.replace(series, values=values)


def fit_errors(
    model: Model,
    scored: SeriesSet,
    series: SeriesSet,
    constant: Bool[np.ndarray, " variable"],
    gap: float,
    seed: int,
) -> OneStepErrorDistribution | None:
    """Estimate the distribution of the one-step errors of a model.

    A structural model has few parameters, so its errors come from complete series of the training table. If it has a
    network on each time point, the folds mark which network was not trained on a row. Its errors at the start of a
    series come from segments of series, because there are more of them. Other models have errors of held-out series.

    Args:
        model: the fitted model.
        scored: scaled series, or segments of series, on which the model is scored.
        series: the complete table, scaled.
        constant: mask of the constant variables.
        gap: typical time between observations.
        seed: the seed of the folds.

    Returns:
        The distribution. None if the model uses later observations.
    """
    if not (model.streams or model.causal):
        return None
    tables, rows = [(scored, len(Situation))], ANOMALY.max_entries // len(series.names)
    longest = rows
    if _at_once(model):
        whole = with_folds(series, model.members, seed) if isinstance(model, CorrectedModel) else series
        tables = [(whole, len(Situation)), (scored, Situation.NEVER_OBSERVED + 1)]
    elif model.streams:
        rows, longest = ANOMALY.max_steps, ANOMALY.max_series_steps
    found = []
    for table, situations in tables:
        some = _some_rows(table, rows, longest)
        errors, situation, mask = _one_step_errors(model, some, constant, ONE_STEP.long_gap * gap)
        found.append((errors, mask & ~constant & (situation < situations), situation))
    errors, counted, situation = (np.concatenate(each) for each in zip(*found, strict=True))
    return OneStepErrorDistribution.fit(errors, counted, situation, as_seen(series, model), ONE_STEP.long_gap * gap)


def _some_rows(series: SeriesSet, rows: int, longest: int) -> SeriesSet:
    """Select the first rows, at most ``longest``, of evenly spaced series, with about ``rows`` rows in total."""
    series = drop_empty_rows(series)
    lengths = np.minimum(series.lengths, longest)
    count = int(np.clip(len(series) * rows / max(1, lengths.sum()), 1, len(series)))
    chosen = np.unique(np.linspace(0, len(series) - 1, count).round().astype(np.int64))
    return series.excerpts(chosen, np.zeros_like(chosen), lengths[chosen])


def _one_step_errors(
    model: Model, series: SeriesSet, constant: Bool[np.ndarray, " variable"], long_gap: float
) -> tuple[Float[np.ndarray, "row variable"], Int64[np.ndarray, "row variable"], Bool[np.ndarray, "row variable"]]:
    """Return the standardised errors, their situations and the mask of the observations."""
    series = as_seen(series, model)
    prediction = predict_next(model, series, held_out=FOLD in series.per_time).with_constants(constant)
    earlier = describe_earlier_rows(series)
    errors = np.round(prediction.standardise(series.values), ANOMALY.decimals)
    return errors, situation_of(earlier.since, earlier.observed_before, long_gap), series.mask


class AnomalyResult(NamedTuple):
    """P-values of observations, and which of them are anomalies."""

    p_value: Float[np.ndarray, "n variable"]
    anomaly: Bool[np.ndarray, "n variable"]


def compute_p_values(
    forecaster: "Forecaster",
    prediction: ScaledPrediction,
    values: Float[np.ndarray, "n variable"],
    earlier: EarlierRows,
    runs: Int64[np.ndarray, "n variable"],
    level: float,
) -> AnomalyResult:
    """Compute p-values of observations, from their one-step errors and from the runs of equal values that they end.

    Args:
        forecaster: the fitted forecaster.
        prediction: one-step-ahead predictions.
        values: scaled observations in the floating type of the model, any number where nothing is observed.
        earlier: facts about the rows before each row.
        runs: number of equal values in a row, 0 where nothing is observed.
        level: an observation with a smaller probability is an anomaly.
    """
    errors, calibration, scaler = forecaster.errors_, forecaster.calibration_, forecaster.scaler_
    assert errors is not None
    row, column = np.nonzero(runs)
    z = np.round(prediction.with_constants(calibration.constant).standardise(values)[row, column], ANOMALY.decimals)
    found = errors.p_values(z, errors.situation(earlier.since, earlier.observed_before)[row, column], column)
    if calibration.constant.any():  # a conformal p-value: no observation of the training table differs
        same = np.abs(values) * np.array(scaler.scale) <= ANOMALY.same * np.abs(scaler.shift)
        alone = np.where(same, 1.0, 1 / (errors.counts + 1))[row, column]
        found = np.where(calibration.constant[column], alone, found)
    p_value, anomaly = np.ones(runs.shape), np.zeros(runs.shape, bool)
    p_value[row, column] = found
    anomaly[row, column] = np.minimum(found, errors.p_repeats(runs[row, column], column)) < level
    return AnomalyResult(p_value, anomaly)


def anomalies(forecaster: "Forecaster", series: SeriesSet, level: float, *, polars: bool) -> Any:
    """Compute the p-value of every observation of series in the user's units, and return a frame.

    Args:
        forecaster: the fitted forecaster.
        series: the observations.
        level: an observation with a smaller probability is an anomaly.
        polars: whether to return a polars frame.

    Raises:
        ValueError: the model uses later observations.
    """
    if forecaster.errors_ is None:
        raise ValueError(
            f"anomalies must be predicted from earlier observations, and {forecaster.model!r} uses later ones. Fit "
            "the default model, for example."
        )
    series = drop_empty_rows(series)
    scaled = as_seen(series.scaled_by(forecaster.scaler_), forecaster.model_)
    runs = run_lengths(scaled)
    prediction = predict_next(forecaster.model_, scaled)
    earlier = describe_earlier_rows(series)
    found = compute_p_values(forecaster, prediction, scaled.values, earlier, runs, level)
    lead = lead_time_of(earlier.since, earlier.observed_before)
    mean = calibrated(prediction, lead, scaler=forecaster.scaler_, calibration=forecaster.calibration_).mean
    row, column = np.nonzero(series.mask)
    return long_frame(
        forecaster.columns_,
        forecaster.clock_,
        ids=[series.ids[i] for i in series.series_index[row]],
        times=series.times[row],
        variables=[forecaster.names_[k] for k in column],
        numbers={
            "value": series.values[row, column],
            "mean": mean[row, column],
            "p_value": found.p_value[row, column],
            "repeats": runs[row, column],
            "anomaly": found.anomaly[row, column],
        },
        polars=polars,
    )
