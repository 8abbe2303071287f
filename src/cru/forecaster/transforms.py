"""The choice of the variables that a forecaster models on a logarithmic scale."""

import dataclasses
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch

from cru.data import Scaler, SeriesSet
from cru.forecaster.kinds import SKEWNESS, Kinds, skewness
from cru.forecaster.masking import make_training_task
from cru.models import spec_of
from cru.models.structural import FitSettings, StructuralConfig, StructuralModel, fit_layer
from cru.shapes import Float


@dataclass(frozen=True)
class TransformSettings:
    """Settings of the choice between a linear and a logarithmic scale."""

    max_zeros: float = 0.25  # largest share of zeros in a candidate variable
    min_observations: int = 100  # fewest observations of a candidate variable
    tasks: int = 2  # number of training tasks
    max_parts: int = 300  # largest number of parts of series
    quantiles: tuple[float, ...] = (0.05, 0.25, 0.5, 0.75, 0.95)  # probabilities of the pinball loss


SETTINGS = TransformSettings()
FIT = FitSettings(steps=40)


def choose_log_scales(
    pieces: SeriesSet, kinds: Kinds, config: StructuralConfig, time_scale: float, seed: int
) -> tuple[float, ...]:
    """Choose the variables to model on a logarithmic scale, and the scale of each logarithm.

    Candidates are skewed variables of kind "nonnegative" or "count". The structural model is fitted with and without
    the logarithm. The logarithm is used if it lowers the product of two errors on withheld values, both in the user's
    units: the pinball loss and the root mean squared error.

    Variables that are often zero, such as rain, are not candidates. No transform spreads a point mass, and the
    logarithm increases the errors of forecasts of snow depth.

    Args:
        pieces: parts of series in the user's units.
        kinds: the kinds of the variables.
        config: the components of the structural model.
        time_scale: factor on the times in the model.
        seed: the seed of the withheld values.

    Returns:
        One scale for each variable, 0 for no logarithm. Empty if no variable has a logarithm.
    """
    possible = np.flatnonzero(kinds.are("nonnegative", "count"))
    candidates = [int(k) for k in possible if _may_gain(pieces.values[pieces.mask[:, k], k])]
    scales = [0.0] * len(pieces.names)
    if not candidates:
        return ()
    chosen = np.unique(np.linspace(0, len(pieces) - 1, SETTINGS.max_parts).round().astype(np.int64))
    part = _columns(pieces.take(chosen), candidates)
    middle = tuple(float(np.median(_positive(part, k))) for k in range(len(candidates)))
    plain = _losses(part, (), config, time_scale, seed)
    logged = _losses(part, middle, config, time_scale, seed)
    for k, (before, after) in enumerate(zip(plain, logged, strict=True)):
        if after < before:
            scales[candidates[k]] = middle[k]
    return tuple(scales) if any(scales) else ()


def _may_gain(values: Float[np.ndarray, " n"]) -> bool:
    return (
        len(values) >= SETTINGS.min_observations
        and bool((values == 0).mean() <= SETTINGS.max_zeros)
        and skewness(values) > SKEWNESS
    )


def _positive(series: SeriesSet, column: int) -> Float[np.ndarray, " n"]:
    values = series.values[series.mask[:, column], column]
    values = values[values > 0]
    return values if len(values) else np.ones(1)


def _columns(series: SeriesSet, chosen: list[int]) -> SeriesSet:
    """Select variables of series, and remove the rows at which none of them is observed."""
    names = tuple(series.names[k] for k in chosen)
    narrow = dataclasses.replace(
        series, values=series.values[:, chosen], mask=series.mask[:, chosen], names=names, units=(), per_time={}
    )
    return narrow.keep(np.asarray(narrow.mask.any(1)))


def _losses(
    series: SeriesSet, log_scale: tuple[float, ...], config: StructuralConfig, time_scale: float, seed: int
) -> Float[np.ndarray, " variable"]:
    """Return a multiple of pinball loss times root mean squared error for each variable, on withheld values."""
    scaler = Scaler.fit(series.values, series.mask, log_scale=log_scale)
    scaled = series.scaled_by(scaler)
    squares, pinball = np.zeros((2, len(series.names)))
    model = None
    for turn in range(SETTINGS.tasks):
        task = make_training_task(scaled, (seed, turn))
        if model is None:
            model = StructuralModel(spec_of(task, time_scale=time_scale), config)
            fit_layer(model.layer, list(task.batches(64)), FIT)
        for numbers in np.array_split(np.arange(len(task)), max(1, len(task) // 64)):
            batch = task.batch(numbers)
            with torch.no_grad():
                prediction = model(batch)
            assert prediction.var is not None
            hidden = batch.hidden.numpy()
            mean, std, truth = (
                part.double().numpy() for part in (prediction.mean, prediction.var.sqrt(), batch.targets)
            )
            true = scaler.inverse(truth)
            squares += np.where(hidden, (scaler.inverse(mean) - true) ** 2, 0).sum((0, 1))
            for p in SETTINGS.quantiles:
                error = true - scaler.inverse(mean + NormalDist().inv_cdf(p) * std)
                pinball += np.where(hidden, np.maximum(p * error, (p - 1) * error), 0).sum((0, 1))
    product: np.ndarray = np.sqrt(squares) * pinball
    return product
