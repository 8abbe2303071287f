"""Naive models of a table, with intervals from the quantiles of their errors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from cru.compute import threads_for
from cru.data import Scaler, SeriesSet
from cru.data.random import generator
from cru.data.series import Batches
from cru.forecaster.calibration import LEAD_NEVER_OBSERVED, NORMAL
from cru.forecaster.clock import Clock, find_calendar
from cru.forecaster.comparison import GRID, Losses
from cru.forecaster.corrections import draw_segments
from cru.forecaster.masking import RandomStream, make_training_task
from cru.forecaster.normal_scores import CALIBRATION_PROBABILITIES
from cru.forecaster.queries import lead_times
from cru.forecaster.table_io import median_gap
from cru.models import NAIVE, Model, create, spec_of
from cru.models.structural import TYPICAL_GAP
from cru.shapes import Bool, Float, Int64

NAIVE_MODELS = tuple(name for name in NAIVE if name != "mean")


@dataclass(frozen=True)
class NaiveFitConstants:
    """Constants of the fit of the naive models."""

    max_points: int = 20_000  # most time points that fit the models
    max_entries: int = 2_000_000  # most entries (times variables) that fit the models
    longest_segment: int = 500  # time points of a segment of a series
    max_tasks: int = 8  # most repetitions
    wanted_errors: int = 20_000  # number of errors at which they stop
    batch: int = 128  # series in a batch
    min_errors: int = 30  # fewest errors from which quantiles are estimated
    ranges: int = 12  # ranges of positive lead times: each is twice as long as the one before


NAIVE_FIT = NaiveFitConstants()


class FittedNaiveModels(NamedTuple):
    """Fitted naive models, and the quantiles of their errors by variable and range of lead times, in scaled units."""

    scaler: Scaler  # without logarithms, so that a mean is a mean in the user's units
    models: dict[str, Model]
    quantiles: dict[str, Float[np.ndarray, "group bound"]]  # group = range * number of variables + variable
    levels: tuple[float, ...]  # two bounds each
    gap: float  # typical time between observations, the unit of the ranges

    def predict(self, series: SeriesSet) -> dict[str, Float[np.ndarray, "row variable"]]:
        """Predict every entry of scaled series with each model."""
        return _apply(self.models, series)

    def losses(
        self,
        prediction: dict[str, Float[np.ndarray, "row variable"]],
        series: SeriesSet,
        wanted: Bool[np.ndarray, "row variable"],
        observed: Float[np.ndarray, " value"],
        levels: Sequence[float],
    ) -> dict[str, Losses]:
        """Compute the losses of every model.

        Args:
            prediction: the predictions that `predict` returns.
            series: the predicted series.
            wanted: the entries to score.
            observed: their values in the user's units.
            levels: the levels of the intervals to report, in per cent.
        """
        variable = np.nonzero(wanted)[1]
        shift, scale = (np.array(numbers)[variable] for numbers in (self.scaler.shift, self.scaler.scale))
        groups = {
            causal: lead_range(lead_times(series, causal=causal)[wanted], self.gap) * wanted.shape[1] + variable
            for causal in (False, True)
        }
        found = {}
        for name, model in self.models.items():
            value, group = prediction[name][wanted], groups[model.causal]
            bounds = {}
            for number, level in enumerate(self.levels):
                for side, column in (("lo", 2 * number), ("hi", 2 * number + 1)):
                    bounds[f"{side}-{level:g}"] = (value + self.quantiles[name][group, column]) * scale + shift
            point = value * scale + shift
            found[name] = Losses.of(observed, mean=point, median=point, bounds=bounds, levels=levels)
        return found


def fit_naive_models(
    series: SeriesSet, scaler: Scaler, clock: Clock, *, seed: int, levels: Sequence[float]
) -> FittedNaiveModels:
    """Fit the naive models, and estimate the quantiles of their errors on values that are withheld as in training.

    Args:
        series: the training part in the user's units. About `NaiveFitConstants.max_points` of its time points are used.
        scaler: the scaler of the training part, without logarithms.
        clock: the clock of the table. Dates have calendar periods, one of which may be the season.
        seed: the seed of the withheld values.
        levels: the levels of the intervals to report, in per cent.
    """
    gap, size = median_gap(series), len(series.names)
    rows, rng = (
        min(len(series.times), NAIVE_FIT.max_points, NAIVE_FIT.max_entries // size + 1),
        generator(seed, "baselines"),
    )
    task = make_training_task(
        draw_segments(series, rows, NAIVE_FIT.longest_segment, rng).scaled_by(scaler), (seed, RandomStream.TRAINING)
    )
    models = _fit_models(task, gap, find_calendar(series, clock, gap).phases)
    every = tuple(dict.fromkeys((*map(float, levels), *GRID)))
    probabilities = np.array([0.5 + side * level / 200 for level in every for side in (-1, 1)])
    errors: dict[str, list[_NaiveErrors]] = {name: [] for name in models}
    count = 0
    for turn in range(NAIVE_FIT.max_tasks):
        assert task.hidden is not None and task.targets is not None
        hidden, variable = task.hidden, np.nonzero(task.hidden)[1]
        lead = {causal: lead_range(lead_times(task, causal=causal)[hidden], gap) for causal in (False, True)}
        for name, mean in _apply(models, task).items():
            errors[name].append(_NaiveErrors((task.targets - mean)[hidden], lead[models[name].causal], variable))
        count += len(variable)
        if count >= NAIVE_FIT.wanted_errors:
            break
        task = make_training_task(
            draw_segments(series, rows, NAIVE_FIT.longest_segment, rng).scaled_by(scaler),
            (seed, RandomStream.TRAINING, turn),
        )
    quantiles = {
        name: _quantiles(_NaiveErrors._make(map(np.concatenate, zip(*each, strict=True))), size, probabilities)
        for name, each in errors.items()
    }
    return FittedNaiveModels(scaler, models, quantiles, every, gap)


def lead_range(lead: Float[np.ndarray, " value"], gap: float) -> Int64[np.ndarray, " value"]:
    """Return the index of the range of each lead time: 0 at an observation, then powers of 2 of the typical gap.

    The last two are for a variable without an observation, and for a series without any.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        place = np.clip(np.ceil(np.log2(lead / gap)), 0, NAIVE_FIT.ranges - 1) + 1
    place = np.where(
        lead == 0,
        0,
        np.where(
            lead == LEAD_NEVER_OBSERVED, NAIVE_FIT.ranges + 1, np.where(np.isinf(lead), NAIVE_FIT.ranges + 2, place)
        ),
    )
    return place.astype(np.int64)


def _fit_models(task: SeriesSet, gap: float, phases: Sequence[float]) -> dict[str, Model]:
    spec = spec_of(task, time_scale=TYPICAL_GAP / gap)

    def fitted(name: str, **options: float) -> Model:
        model = create(name, spec, **options)
        model.prepare(Batches(task, NAIVE_FIT.batch, model.dtype, torch.device("cpu")))
        return model.eval()

    models = {name: fitted(name) for name in NAIVE_MODELS if name != "seasonal-naive"}
    period = float(models["climatology"].period)  # type: ignore[arg-type]
    if phases:  # use a period of the calendar if it explains more than the estimated period
        nearest = min(phases, key=lambda phase: abs(math.log(phase / period)))
        calendar = fitted("climatology", period=nearest)
        if float(calendar.var.mean()) <= float(models["climatology"].var.mean()):  # type: ignore[operator]
            models["climatology"], period = calendar, nearest
    models["seasonal-naive"] = fitted("seasonal-naive", period=period)
    return {name: models[name] for name in NAIVE_MODELS}


def _apply(models: Mapping[str, Model], series: SeriesSet) -> dict[str, Float[np.ndarray, "row variable"]]:
    """Predict every entry with each model, all at once, because a query changes no other prediction of a model."""
    found = {name: np.empty(series.values.shape) for name in models}
    with threads_for(0), torch.no_grad():
        for batch, rows in series.batches_by_length(NAIVE_FIT.batch, dtype=torch.get_default_dtype()):
            for name, model in models.items():
                found[name][rows] = model(batch).mean[batch.valid].numpy()
    return found


class _NaiveErrors(NamedTuple):
    """Errors of a model on withheld values."""

    error: Float[np.ndarray, " value"]
    lead: Int64[np.ndarray, " value"]  # range of the lead time
    variable: Int64[np.ndarray, " value"]


def _quantiles(
    found: _NaiveErrors, variables: int, probabilities: Float[np.ndarray, " bound"]
) -> Float[np.ndarray, "group bound"]:
    """Estimate quantiles by range of lead times and variable. With too few errors, group by variable or not at all."""
    error, variable = found.error, found.variable
    normal = np.interp(probabilities, CALIBRATION_PROBABILITIES, NORMAL)
    everything, many = _grouped(error, np.zeros(len(error), np.int64), 1, probabilities)
    shared = everything[0] if many[0] >= NAIVE_FIT.min_errors else normal
    own, many = _grouped(error, variable, variables, probabilities)
    own = np.where((many >= NAIVE_FIT.min_errors)[:, None], own, shared)
    each, many = _grouped(error, found.lead * variables + variable, (NAIVE_FIT.ranges + 3) * variables, probabilities)
    return np.where((many >= NAIVE_FIT.min_errors)[:, None], each, np.tile(own, (NAIVE_FIT.ranges + 3, 1)))


def _grouped(
    values: np.ndarray, group: np.ndarray, size: int, probabilities: np.ndarray
) -> tuple[Float[np.ndarray, "group bound"], Int64[np.ndarray, " group"]]:
    """Compute quantiles of the values of each group, and their number. An empty group has zeros."""
    count = np.bincount(group, minlength=size)
    if not len(values):
        return np.zeros((size, len(probabilities))), count
    ordered, start = values[np.lexsort((values, group))], np.cumsum(count) - count
    place = np.round(probabilities * (count[:, None] + 1)).astype(np.int64) - 1
    place = start[:, None] + np.clip(place, 0, np.maximum(count - 1, 0)[:, None])
    return np.where(count[:, None] > 0, ordered[np.minimum(place, len(ordered) - 1)], 0.0), count
