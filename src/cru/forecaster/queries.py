"""Queries for the times that a user requests, and their scaled predictions and lead times."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cru.data import SeriesSet
from cru.data.columns import read_frame
from cru.data.series import group_by_length
from cru.data.table_files import written_times
from cru.data.tables import check_key, codes
from cru.errors import InputError, some
from cru.forecaster.calibration import LEAD_NEVER_OBSERVED
from cru.forecaster.clock import Clock
from cru.forecaster.input_columns import InputColumnReader, KnownFrame, KnownRows
from cru.forecaster.inputs import KNOWN, Inputs, InputState, Known
from cru.forecaster.predictive_distribution import ScaledPrediction
from cru.forecaster.table_io import Columns, ids_of, name_of
from cru.models import Model
from cru.models.base import Prediction
from cru.progress import track
from cru.shapes import Bool, Float, Int64

BATCH = 64  # series per batch
MAX_FORECAST_STEPS = 100_000
KNOWN_VALUES_END = "have a value at every forecast time, but known values end before the horizon"


def check_levels(level: Any) -> tuple[float, ...]:
    """Return levels as a tuple without duplicates.

    Args:
        level: one or several levels in per cent.

    Raises:
        InputError: a level is not a number from 1 to 99.8.
    """
    levels = tuple(level) if isinstance(level, list | tuple | np.ndarray) else (level,)
    for one in levels:
        number = isinstance(one, int | float | np.integer | np.floating) and not isinstance(one, bool)
        if not (number and 1 <= one <= 99.8):
            raise InputError("level", "be per cent from 1 to 99.8, such as [50, 90]", repr(one))
    return tuple(dict.fromkeys(map(float, levels)))


Predict = Callable[[Any], Prediction]


def predict_scaled(
    model: Model, series: SeriesSet, predict: Predict | None = None, *, title: str | None = None
) -> ScaledPrediction:
    """Predict every time point of scaled series.

    A causal model predicts each time point before the first observation separately. Otherwise, a query at such a time
    would change the start of the series and so the later predictions.

    Args:
        model: the fitted model.
        series: scaled series, with queries as time points without observations.
        predict: the function to call instead of the model. None: the model.
        title: the title of a progress bar. None: no bar.
    """
    predict = predict or model
    found = ScaledPrediction._make(np.empty(series.values.shape) for _ in range(4))
    early = np.isinf(time_since_observation(series)) if model.causal else np.zeros(len(series.times), bool)
    alone, owner = np.flatnonzero(early), series.series_index[early]
    later = np.flatnonzero(~early)
    _run(model, predict, series.keep(~early), later, BATCH, found, title)
    single = series.excerpts(owner, series.step_index[alone], np.ones_like(owner))
    _run(model, predict, single, alone, 64 * BATCH, found, title)
    return found


def _run(
    model: Model,
    predict: Predict,
    series: SeriesSet,
    place: np.ndarray,
    size: int,
    found: ScaledPrediction,
    title: str | None,
) -> None:
    """Predict ``series`` in batches of ``size``, and write each row into ``found`` at the index in ``place``."""
    count = len(list(group_by_length(series.lengths[series.lengths > 0], size)))
    with model.inference(*series.largest_batch(size)):
        batches = series.batches_by_length(size, dtype=model.dtype)
        for batch, rows in track(batches, title or "", total=count, show=title is not None):
            prediction = ScaledPrediction.of(predict(batch)).take(batch.valid.numpy().ravel())
            for part, numbers in zip(found, prediction, strict=True):
                part[place[rows]] = numbers


def lead_times(series: SeriesSet, *, causal: bool) -> Float[np.ndarray, "row variable"]:
    """Return the lead time of each entry: the time since the last observation of any variable.

    It is 0 at an observation, infinite before the first one, and `LEAD_NEVER_OBSERVED` for a variable not observed yet,
    if others are. A model that is not causal also uses later observations. Its lead time is the time to the nearest
    observation on either side, and `LEAD_NEVER_OBSERVED` marks variables that are never observed in the series.
    """
    return lead_time_of(time_since_observation(series, causal=causal)[:, None], _observed_before(series, causal=causal))


def lead_time_of(since: Float[np.ndarray, "..."], observed_before: Bool[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Return the lead time of a variable.

    Args:
        since: time since the last observation of any variable.
        observed_before: whether the variable itself has been observed.
    """
    return np.where(observed_before | np.isinf(since), since, LEAD_NEVER_OBSERVED)


def _observed_before(series: SeriesSet, *, causal: bool) -> Bool[np.ndarray, "row variable"]:
    """Return which variables are observed up to each row, or in the complete series if not ``causal``."""
    count = np.concatenate([np.zeros((1, series.mask.shape[1]), np.int64), np.cumsum(series.mask, 0)])
    begins, ends = (np.repeat(count[side], series.lengths, 0) for side in (series.offsets[:-1], series.offsets[1:]))
    found: np.ndarray = (count[1:] if causal else ends) > begins
    return found


def time_since_observation(series: SeriesSet, *, causal: bool = True) -> Float[np.ndarray, " row"]:
    """Return the time since the last observation of any variable, infinite before the first.

    If not ``causal``, return the time to the nearest observation on either side.
    """
    seen = np.asarray(series.mask.any(1))
    rows = np.arange(len(seen))
    begins, ends = (np.repeat(side, series.lengths) for side in (series.offsets[:-1], series.offsets[1:]))
    last = np.maximum.accumulate(np.where(seen, rows, -1)) if len(rows) else rows
    since = np.where(last >= begins, series.times - series.times[last], np.inf)
    if causal:
        return since
    following = np.minimum.accumulate(np.where(seen, rows, len(rows))[::-1])[::-1]
    until = np.where(following < ends, series.times[np.minimum(following, len(rows) - 1)] - series.times, np.inf)
    return np.minimum(since, until)


class Query(NamedTuple):
    """Series that contain the requested times as time points, and the rows of these times."""

    series: SeriesSet
    rows: Int64[np.ndarray, " asked"]


def drop_empty_rows(series: SeriesSet) -> SeriesSet:
    """Remove the rows without an observation."""
    return series.keep(np.asarray(series.mask.any(1)))


def insert_query_times(series: SeriesSet, at: Sequence[Float[np.ndarray, " _"]]) -> Query:
    """Add the requested times to series, as time points without observations.

    A requested time at which a series has an observation does not add a time point.

    Args:
        series: the series. Rows without an observation are removed.
        at: requested times of each series, in any order.

    Returns:
        The extended series, and the rows of the requested times, sorted by series and time.
    """
    series, asked = drop_empty_rows(series), [np.unique(times) for times in at]
    counts = np.array([len(times) for times in asked], np.int64)
    added = add_rows(series, np.repeat(np.arange(len(series)), counts), np.concatenate([np.empty(0), *asked]))
    return Query(added.series, added.new)


class AddedRows(NamedTuple):
    """Series with further rows, and where the rows are."""

    series: SeriesSet  # without ``per_time``
    old: Int64[np.ndarray, " row"]  # of the rows that the series had
    new: Int64[np.ndarray, " added"]  # of the added rows, in the order given


def add_rows(series: SeriesSet, number: Int64[np.ndarray, " added"], moments: Float[np.ndarray, " added"]) -> AddedRows:
    """Add rows without observations. A row at the time of another one is not added again.

    Args:
        series: the series.
        number: the series of each added row.
        moments: the time of each added row.
    """
    size = len(series.times)
    owner, times = np.concatenate([series.series_index, number]), np.concatenate([series.times, moments])
    is_new = np.arange(len(times)) >= size
    order = np.lexsort((is_new, times, owner))  # an old row comes before a new one at the same time
    owner, times, is_new = owner[order], times[order], is_new[order]
    repeats = np.zeros(len(times), bool)
    repeats[1:] = is_new[1:] & (np.diff(owner) == 0) & (np.diff(times) == 0)
    place = np.cumsum(~repeats) - 1
    source = order[~repeats]
    old = source < size
    values = np.zeros((len(source), *series.input_shape), series.values.dtype)
    mask = np.zeros(values.shape, bool)
    values[old], mask[old] = series.values[source[old]], series.mask[source[old]]
    widened = dataclasses.replace(
        series,
        times=times[~repeats],
        values=values,
        mask=mask,
        offsets=np.searchsorted(owner[~repeats], np.arange(len(series) + 1)).astype(np.int64),
        per_time={},
    )
    where = np.empty(len(times), np.int64)
    where[order] = place
    return AddedRows(widened, where[:size], where[size:])


def _check_ids(future: Mapping[str, KnownRows], ids: Sequence[str]) -> None:
    """Check the ids of a frame. Warn if both the frame and the table have series that the other does not have.

    Raises:
        InputError: the frame has no series of the table.
    """
    unknown, left = [name for name in future if name not in ids], [name for name in ids if name not in future]
    if future and len(unknown) == len(future):
        raise InputError("known", "have series of the table", repr(unknown[0]), "Correct the ids.")
    if unknown and left:
        warnings.warn(
            f"`known` has series {unknown[0]!r}, which the table does not have, and nothing for series {left[0]!r}.",
            stacklevel=2,
        )


def query_known(
    series: SeriesSet,
    at: Sequence[Float[np.ndarray, " _"]],
    inputs: Inputs,
    reader: InputColumnReader,
    *,
    frame: KnownFrame | None = None,
    argument: str = "at",
    hold: bool = False,
    before: InputState | None = None,
) -> Query:
    """Add the requested times to series as time points without observations, with their known values.

    Args:
        series: series with known and static values. The features use all rows. The query has those with observations.
        at: requested times of each series.
        inputs: the encoder of the known and static values.
        reader: the reader of the columns.
        frame: further known values. They take precedence over those of the series.
        argument: the argument that has the frame, for errors.
        hold: whether a known column without a fill keeps its last value, as in a figure.
        before: the state of the inputs of each series before its first row.

    Raises:
        InputError: a requested time has no value of a known column without a fill.
    """
    future = {} if frame is None else frame.future
    series = series if frame is None else frame.with_static(series, reader)
    if argument == "known":
        _check_ids(future, series.ids)
    width = len(inputs.known)
    none = KnownRows(np.empty(0), np.empty((0, width)))
    more = [future.get(name, none) for name in series.ids]
    asked = [np.unique(times) for times in at]
    counts = np.array([len(one.times) + len(times) for one, times in zip(more, asked, strict=True)], np.int64)
    new = [part for one, times in zip(more, asked, strict=True) for part in (one.times, times)]
    given = [
        p for one, times in zip(more, asked, strict=True) for p in (one.known, np.full((len(times), width), np.nan))
    ]
    added = add_rows(series, np.repeat(np.arange(len(series)), counts), np.concatenate([np.empty(0), *new]))
    known = np.full((len(added.series.times), width), np.nan)
    known[added.old] = series.per_time[KNOWN]
    values = np.concatenate([np.empty((0, width)), *given])
    for k in range(width):
        present = ~np.isnan(values[:, k])
        known[added.new[present], k] = values[present, k]
    wanted = np.zeros(len(known), bool)
    is_query = np.concatenate(
        [np.repeat([False, True], (len(o.times), len(t))) for o, t in zip(more, asked, strict=True)]
        or [np.zeros(0, bool)]
    )
    wanted[added.new[is_query]] = True
    if not hold:
        _check_requested(added.series, known, wanted, inputs.known, reader, argument)
    whole = inputs.encode(dataclasses.replace(added.series, per_time={KNOWN: known}), before)
    kept = np.asarray(whole.mask.any(1)) | wanted
    return Query(whole.keep(kept), np.cumsum(kept)[wanted] - 1)


def _check_requested(
    series: SeriesSet, known: np.ndarray, wanted: np.ndarray, fills: Known, reader: InputColumnReader, argument: str
) -> None:
    for k, (name, fill) in enumerate(fills.items()):
        missing = wanted & np.isnan(known[:, k])
        if fill is not None or not missing.any():
            continue
        row = int(missing.argmax())
        owner = int(series.series_index[row])
        there = np.flatnonzero((series.series_index == owner) & ~np.isnan(known[:, k]))
        last = float(series.times[there[-1]]) if len(there) else -math.inf
        where = f"{name!r} in series {series.ids[owner]!r}"
        keys = [one for one in (reader.columns.id, reader.columns.time) if one is not None]
        hint = f"Pass a frame with {some([*map(repr, [*keys, *fills])], 20)} as {{{argument}}}."
        time = reader.stamp(series.times[row])
        if series.times[row] > last and argument == "known":
            end = f", which ends at {reader.stamp(last)}," if len(there) else ""
            raise InputError(argument, KNOWN_VALUES_END, f"no {where}{end}", hint, time=time)
        rule = "have a value of every known column at every requested time"
        raise InputError(argument, rule, f"no {where}", hint, time=time)


def default_horizon(span: float, gap: float) -> float:
    """Return the length of a forecast in a figure: a tenth of the time shown, at least 5 median gaps."""
    return max(span / 10, 5 * gap)


def forecast_times(
    series: SeriesSet, clock: Clock, *, horizon: Any, every: Any, gap: float
) -> list[Float[np.ndarray, " _"]]:
    """Return the times of a forecast after the last observation of each series.

    Args:
        series: the series to forecast.
        clock: the clock of the table.
        horizon: length of the forecast.
        every: time between two predictions. None: a round step of about the typical gap.
        gap: typical time between observations.

    Raises:
        InputError: a duration is invalid, or the forecast has no step or more than `MAX_FORECAST_STEPS`.
    """
    length = clock.duration(horizon, "horizon")
    step = clock.duration(every, "every") if every is not None else min(length, clock.step(gap))
    count = int(np.floor(length / step * (1 + 1e-9)))
    if not 1 <= count <= MAX_FORECAST_STEPS:
        found = f"{horizon!r}, which is {length / step:.3g} steps"
        raise InputError("horizon", f"be 1 to {MAX_FORECAST_STEPS} steps of {{every}} long", found)
    steps = step * np.arange(1, count + 1)
    return [last + steps for last in last_observation_times(series)]


def last_observation_times(series: SeriesSet) -> Float[np.ndarray, " series"]:
    """Return the time of the last observation of each series, or of its last row if it has no observation."""
    rows, ends = np.arange(len(series.times)), series.offsets[1:] - 1
    seen = np.maximum.accumulate(np.where(series.mask.any(1), rows, -1))[ends]
    last: np.ndarray = series.times[np.where(seen >= series.offsets[:-1], seen, ends)]
    return last


def requested_times(
    series: SeriesSet, at: Any, clock: Clock, columns: Columns
) -> tuple[SeriesSet, list[Float[np.ndarray, " _"]]]:
    """Find the requested series, and the requested times of each.

    Args:
        series: the observed series.
        at: times for all series, a mapping from ids to times, or a frame with the columns of the training table.
        clock: the clock of the table.
        columns: names of the id and time columns.

    Returns:
        The requested series, including new ones without observations, and their requested times.

    Raises:
        InputError: ``at`` is empty, a column is missing, or it has ids although the training table has none.
    """
    if isinstance(at, Mapping):
        wanted = {name_of(name): clock.numbers(times) for name, times in at.items()}
    elif hasattr(at, "columns"):
        wanted = _of_frame(at, clock, columns)
    else:
        times = clock.numbers(at)
        if len(times) == 0:
            raise InputError("at", "hold at least one time")
        return series, [times for _ in series.ids]
    if columns.id is None and wanted.keys() - set(series.ids):
        raise InputError("at", "be a list of times, because the training table has no column of ids", f"{list(at)}")
    known = set(series.ids)
    new = [name for name in wanted if name not in known]
    offsets = np.append(series.offsets, np.full(len(new), series.offsets[-1]))
    unknown = {name: np.full((len(new), *part.shape[1:]), np.nan) for name, part in series.per_series.items()}
    per_series = {name: np.concatenate([part, unknown[name]]) for name, part in series.per_series.items()}
    series = dataclasses.replace(series, ids=(*series.ids, *new), offsets=offsets, per_series=per_series)
    chosen = [number for number, name in enumerate(series.ids) if name in wanted]
    return series.take(chosen), [wanted[series.ids[number]] for number in chosen]


def _of_frame(at: Any, clock: Clock, columns: Columns) -> dict[str, np.ndarray]:
    frame = read_frame(at)
    missing = [name for name in (columns.id, columns.time) if name is not None and name not in frame]
    if missing:
        raise InputError("at", "have the columns of the training table", f"{list(frame)} without {missing[0]!r}")
    times = clock.column(written_times(frame[columns.time]))
    if columns.id is None:
        return {"0": times}
    if frame.rows == 0:
        return {}
    check_key(frame[columns.id])
    names, owner = codes(ids_of(frame[columns.id]))
    order, ends = np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner, minlength=len(names)))
    return dict(zip(names, np.split(times[order], ends[:-1]), strict=True))


def check_lead_times(
    lead: Float[np.ndarray, "n variable"], longest: float | None, clock: Clock, unit: str | None = None
) -> list[str]:
    """Return a warning if a query exceeds the lead times of the training.

    Args:
        lead: the lead times of the query.
        longest: the longest lead time of the training. None: no limit.
        clock: the clock of the table.
        unit: the unit in which the user wrote the horizon, or None.
    """
    farthest = float(np.max(lead[np.isfinite(lead)], initial=0.0))
    if longest is None or farthest <= longest:
        return []
    return [
        f"Predictions extend {clock.written(farthest, unit)} past the last observation; training covered "
        f"{clock.written(longest, unit)}. Beyond that, means and intervals are untested."
    ]
