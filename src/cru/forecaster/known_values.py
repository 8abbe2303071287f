"""The known values of requested times, and queries with them."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cru.data import SeriesSet
from cru.data.columns import DataTable
from cru.data.table_files import read_table
from cru.data.tables import check_key, codes, group
from cru.errors import InputError, literal, some
from cru.forecaster.input_columns import Reader, changed_static
from cru.forecaster.inputs import KNOWN, STATIC, Inputs, InputState, Known
from cru.forecaster.queries import Query, add_rows
from cru.forecaster.table_io import ids_of
from cru.shapes import Float

KNOWN_WITHOUT_HORIZON, KNOWN_IN_AT = "be given with {horizon} only", "Put the known values into {at}."
ENDS = "have a value at every forecast time, but known values end before the horizon"


class Future(NamedTuple):
    """Known values of a series besides its table."""

    times: Float[np.ndarray, " row"]
    known: Float[np.ndarray, "row known"]  # NaN for missing


@dataclass(frozen=True)
class KnownFrame:
    """Known values, and static values of new series, from a frame of requested times."""

    future: Mapping[str, Future]
    static: Mapping[str, Float[np.ndarray, " static"]]

    def after(self, last: Mapping[str, float]) -> "KnownFrame":
        """Return the frame without the rows before the last row of each series."""
        kept = {
            name: Future._make(part[one.times >= last.get(name, -math.inf)] for part in one)
            for name, one in self.future.items()
        }
        return replace(self, future=kept)

    def with_static(self, series: SeriesSet, reader: Reader) -> SeriesSet:
        """Add the static values of series that have none in their table.

        Raises:
            InputError: a series has another value in its table.
        """
        found = np.array(
            [self.static.get(name, np.full(series.per_series[STATIC].shape[1], np.nan)) for name in series.ids]
        )
        given = series.per_series[STATIC]
        found = found.reshape(given.shape)
        for row, k in np.argwhere(np.isfinite(given) & np.isfinite(found) & (given != found))[:1]:
            name = list(reader.columns.static)[k]
            values = (reader.shown(name, float(part[row, k])) for part in (given, found))
            raise changed_static(name, series.ids[row], *values)
        filled = np.where(np.isnan(given), found, given)
        return replace(series, per_series={**series.per_series, STATIC: filled})


def read_known_frame(frame: Any, reader: Reader, argument: str) -> KnownFrame:
    """Read a frame with the columns of id, time and known values.

    Columns with a fill and static columns may be absent.

    Args:
        frame: a frame, or the path of a file.
        reader: the reader of the columns.
        argument: the name of the argument, for errors.

    Raises:
        InputError: a column is missing or wrong, or two values of a time differ.
    """
    columns = reader.columns
    keys = [name for name in (columns.id, columns.time) if name is not None]
    needed = [*keys, *(name for name, fill in columns.known.items() if fill is None)]
    if not (hasattr(frame, "columns") or isinstance(frame, str | Path | DataTable)):
        rule = f"be a frame with the columns {some([*map(repr, needed)], 20)}"
        raise InputError(argument, literal(rule), type(frame).__name__)
    text = [columns.id] if columns.id is not None else []
    try:
        table = read_table(frame, needed, time=columns.time, text=text, everything=True)
        return _known_frame(table, reader) if table.rows else KnownFrame({}, {})
    except InputError as error:
        raise error.replace(argument=error.argument or argument) from None
    except ValueError as error:  # of the times
        raise ValueError(f"`{argument}` cannot be used: {error}") from None


def _known_frame(table: DataTable, reader: Reader) -> KnownFrame:
    columns = reader.columns
    names, owner = ["0"], np.zeros(table.rows, np.int32)
    if columns.id is not None:
        table[columns.id] = ids_of(table[columns.id])
        check_key(table[columns.id])
        names, owner = codes(table[columns.id])
    times = reader.clock.column(table[columns.time])
    if not np.isfinite(times).all():
        raise InputError(rule="hold a time in every row", hint="Leave such rows out.", column=columns.time)
    groups = group(owner, times, len(names))
    known = np.full((len(groups.times), len(columns.known)), np.nan)
    for k, name in enumerate(columns.known):
        if name in table:
            known[:, k] = reader.one_each_time(table[name], owner, times, names, groups)
    static = np.full((len(names), len(columns.static)), np.nan)
    for k, name in enumerate(columns.static):
        if name in table:
            static[:, k] = reader.one_for_each(table[name], owner, names)
    parts = zip(*(np.split(part, groups.offsets[1:-1]) for part in (groups.times, known)), strict=True)
    return KnownFrame(dict(zip(names, map(Future._make, parts), strict=True)), dict(zip(names, static, strict=True)))


def _check_ids(future: Mapping[str, Future], ids: Sequence[str]) -> None:
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
    reader: Reader,
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
    none = Future(np.empty(0), np.empty((0, width)))
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
    whole = inputs.encode(replace(added.series, per_time={KNOWN: known}), before)
    kept = np.asarray(whole.mask.any(1)) | wanted
    return Query(whole.keep(kept), np.cumsum(kept)[wanted] - 1)


def _check_requested(
    series: SeriesSet, known: np.ndarray, wanted: np.ndarray, fills: Known, reader: Reader, argument: str
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
            raise InputError(argument, ENDS, f"no {where}{end}", hint, time=time)
        rule = "have a value of every known column at every requested time"
        raise InputError(argument, rule, f"no {where}", hint, time=time)
