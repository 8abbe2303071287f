"""The division of predictions into the components of the structural model and the correction by the network."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cru.data import Scaler
from cru.data.tables import TIME_UNITS
from cru.errors import InputError
from cru.forecaster.clock import PERIODS, Clock
from cru.forecaster.input_columns import KNOWN_IN_AT, KNOWN_WITHOUT_HORIZON
from cru.forecaster.predictive_distribution import calibrated
from cru.forecaster.queries import BATCH, Query, drop_empty_rows, lead_times, predict_scaled
from cru.forecaster.table_io import long_frame
from cru.layers.structural import StructuralLayer
from cru.models.corrected import CorrectedModel
from cru.models.structural import StructuralModel, flat_inputs
from cru.shapes import Float

if TYPE_CHECKING:
    from cru.forecaster.estimator import Forecaster

LEVEL_COMPONENT, SEASONAL_MEAN_COMPONENT, CORRECTION_COMPONENT = "level", "seasonal mean", "correction"
PROCESSES = {1: ("slow",), 2: ("slow", "fast"), 3: ("slow", "medium", "fast")}  # names of the OU processes
CALENDAR_PERIODS = dict(zip(("day", "week", "year"), PERIODS, strict=True))
MAX_HARMONICS = max(period.season for period in PERIODS)


@dataclass(frozen=True)
class DecompositionConstants:
    """Constants of the decomposition."""

    rounding: float = 1e-6  # relative, of the ratio of a period to its harmonic
    linear_distance: float = 1e-3  # scaled distance from the level below which a logarithm counts as linear


DECOMPOSITION = DecompositionConstants()


class Grouping(NamedTuple):
    """The mapping from the components of the layer to the components that a user sees."""

    names: tuple[str, ...]  # level, processes from slow to fast, seasons
    groups: tuple[int, ...]  # the group of each component of the layer, as `StructuralLayer.components` needs them


def group_components(layer: StructuralLayer, clock: Clock) -> Grouping:
    """Name the components, and put the harmonics of a period into one group."""
    count = len(layer.time_constants)
    processes = PROCESSES.get(count, tuple(f"process {k + 1}" for k in range(count)))
    seasons = [season_name(period, layer.periods, clock) for period in layer.periods]
    names = (LEVEL_COMPONENT, *processes, *dict.fromkeys(seasons))
    return Grouping(names, (*range(1 + count), *(names.index(name) for name in seasons)))


def season_name(period: float, periods: Sequence[float], clock: Clock) -> str:
    """Return "day", "week" or "year" for a period of the calendar or its harmonics, otherwise the longest multiple."""
    if clock.kind != "number":
        for name, base in CALENDAR_PERIODS.items():
            if _is_harmonic(period, base.days * TIME_UNITS["D"] / TIME_UNITS[clock.unit]):
                return name
    longest = max(base for base in periods if _is_harmonic(period, base))
    return f"period {clock.written(longest)}"


def _is_harmonic(period: float, base: float) -> bool:
    ratio = base / period
    return 1 <= round(ratio) <= MAX_HARMONICS and abs(ratio - round(ratio)) <= DECOMPOSITION.rounding * ratio


def time_constants(layer: StructuralLayer) -> Float[np.ndarray, "variable process"]:
    """Return the fitted time constants of the processes, from slow to fast."""
    rate = layer.log_rate[:, : len(layer.time_constants)].detach().double().exp().numpy()
    slow_first: np.ndarray = np.sort(1 / rate, 1)[:, ::-1]
    return slow_first


class Decomposition(NamedTuple):
    """Components of predictions in the user's units. The means add up to the prediction."""

    names: tuple[str, ...]
    mean: Float[np.ndarray, "n variable component"]
    std: Float[np.ndarray, "n variable component"]


def components(forecaster: "Forecaster", table: Any, *, at: Any, horizon: Any, every: Any, known: Any) -> Any:
    """Return a frame of the components. The arguments are those of `Forecaster.components`."""
    check_structural(forecaster)
    if at is not None and horizon is not None:
        raise InputError("at", "be left out if {horizon} is given", "both")
    if known is not None and horizon is None:
        raise InputError("known", KNOWN_WITHOUT_HORIZON, hint=KNOWN_IN_AT)
    series = forecaster._series(table)
    if at is not None:
        query, _ = forecaster._requested(series, at)
    elif horizon is not None:
        query, _ = forecaster._ahead(series, horizon, every, known)
    else:
        series = drop_empty_rows(series)
        query = Query(series, np.arange(len(series.times)))
    found = decompose(forecaster, query)
    size = len(forecaster.names_)
    owner, count = query.series.series_index[query.rows], len(found.names)
    return long_frame(
        forecaster.columns_,
        forecaster.clock_,
        ids=[query.series.ids[i] for i in np.repeat(owner, size * count)],
        times=np.repeat(query.series.times[query.rows], size * count),
        variables=[name for name in forecaster.names_ for _ in range(count)] * len(owner),
        numbers={
            "component": np.array(found.names * (size * len(owner)), dtype=object),
            "mean": found.mean.ravel(),
            "std": found.std.ravel(),
        },
        polars=forecaster._polars(table),
    )


def check_structural(forecaster: "Forecaster") -> None:
    """Raise ValueError if a model has no structural base."""
    if not isinstance(forecaster.model_, StructuralModel | CorrectedModel):
        raise ValueError(
            f"components must come from a structural model, and {forecaster.name_!r} has none. "
            "Fit the default model, or another one with base='structural'."
        )


def decompose(forecaster: "Forecaster", query: Query) -> Decomposition:
    """Divide the predictions at the rows of a query into components."""
    series, model = query.series.scaled_by(forecaster.scaler_), forecaster.model_
    assert isinstance(model, StructuralModel | CorrectedModel)
    calibration, scaler, rows = forecaster.calibration_, forecaster.scaler_, query.rows
    lead = lead_times(series, causal=model.causal)[rows]
    prediction = predict_scaled(model, series).take(rows)
    predicted = calibrated(prediction, lead, scaler=scaler, calibration=calibration).mean
    grouping = group_components(model.layer, forecaster.clock_)
    names = grouping.names + ((SEASONAL_MEAN_COMPONENT,) if model.layer.season_periods else ())
    shape = (len(rows), series.mask.shape[1])
    mean, var = np.zeros((*shape, len(names))), np.zeros((*shape, len(names)))
    total, spread = np.zeros(shape), np.zeros(shape)
    place = np.full(len(series.times), -1)
    place[rows] = np.arange(len(rows))
    with model.inference(*series.largest_batch(BATCH)):
        for batch, each in series.batches_by_length(BATCH, dtype=model.dtype):
            values, mask = flat_inputs(model, batch)
            found = model.layer.components(values, batch.times, mask, groups=grouping.groups, causal=model.causal)
            valid = batch.valid.numpy()
            where = place[each]
            asked = where >= 0
            for part, tensor in zip((mean, var, total, spread), (*found[1:], *model.structure(batch)), strict=True):
                part[where[asked]] = tensor.double().numpy()[valid][asked]
    _sort_processes(model.layer, mean, var)
    never = calibration.constant
    mean[:, never], var[:, never], total[:, never], spread[:, never] = 0, 0, 0, 0
    return _in_user_units(names, mean, np.sqrt(var), total, spread, predicted, scaler)


def _sort_processes(layer: StructuralLayer, *parts: Float[np.ndarray, "n variable component"]) -> None:
    """Sort the processes of each variable from slow to fast, in place. The fit can change their order."""
    count = len(layer.time_constants)
    order = layer.log_rate[:, :count].argsort(1).numpy()
    for part in parts:
        part[..., 1 : 1 + count] = np.take_along_axis(part[..., 1 : 1 + count], order[None], 2)


def _in_user_units(
    names: tuple[str, ...],
    mean: Float[np.ndarray, "n variable component"],
    std: Float[np.ndarray, "n variable component"],
    total: Float[np.ndarray, "n variable"],
    spread: Float[np.ndarray, "n variable"],
    predicted: Float[np.ndarray, "n variable"],
    scaler: Scaler,
) -> Decomposition:
    """Convert scaled components, and append the correction.

    Let f be the conversion to the user's units and b the level. Component c becomes c · (f(b + Σ c) - f(b)) / Σ c. The
    sum is over all components but the level, which becomes f(b). Where f is linear, the factor is the scale.

    Args:
        names: names of the components.
        mean: scaled means of the components, without the shift of the scaler.
        std: scaled standard deviations of the components.
        total: scaled mean of the structural model.
        spread: scaled standard deviation of the correction.
        predicted: mean of the prediction, in the user's units.
        scaler: the scaler of the table.
    """
    level, structural = mean[..., 0], scaler.inverse(total)
    away = total - level
    near = np.abs(away) < DECOMPOSITION.linear_distance
    secant = (structural - scaler.inverse(level)) / np.where(near, 1.0, away)
    factor = np.where(
        near,
        scaler.inverse_std(np.full_like(level, DECOMPOSITION.linear_distance), level) / DECOMPOSITION.linear_distance,
        secant,
    )
    factor = np.where(scaler.is_log, factor, np.array(scaler.scale))
    means, deviations = factor[..., None] * mean, factor[..., None] * std
    means[..., 0] = structural - means[..., 1:].sum(-1)  # also has the rounding errors of the sum
    deviations[..., 0] = scaler.inverse_std(std[..., 0], level)
    correction, uncertain = (predicted - structural)[..., None], (factor * spread)[..., None]
    return Decomposition(
        (*names, CORRECTION_COMPONENT), np.concatenate([means, correction], -1), np.append(deviations, uncertain, -1)
    )
