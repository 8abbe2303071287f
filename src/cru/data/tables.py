"""Series from a table: a pandas or polars frame, a CSV or Parquet file, or a dictionary of arrays."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from cru.data.columns import Column, DataTable
from cru.data.series import SeriesSet, as_times, make_series, series_of_row
from cru.data.table_files import parse_number, read_table
from cru.errors import InputError
from cru.shapes import Float, Float64, Int, Int64

_SEVERAL = " If the table holds several series, name the column that tells them apart with {id}."
TEXT_HINT = "Leave them out with {values}, "
_WHOLE = re.compile(r"[-+]?\d{1,18}")
# Nanoseconds in each unit that dates can be measured in.
TIME_UNITS = {
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
    "D": 86400 * 10**9,
    "W": 604800 * 10**9,
}


class Groups(NamedTuple):
    """The time points of series in unsorted rows.

    Attributes:
        order: the order of the rows by series and time.
        starts: the first sorted row of each time point.
        times: the time of each time point.
        offsets: the first time point of each series.
    """

    order: Int64[np.ndarray, " row"] | slice
    starts: Int64[np.ndarray, " point"]
    times: Float64[np.ndarray, " point"]
    offsets: Int64[np.ndarray, " bound"]


def group(series: Int[np.ndarray, " row"], times: Float64[np.ndarray, " row"], count: int) -> Groups:
    """Sort rows by series and time. Rows that are already sorted are not copied.

    Args:
        series: the number of the series of each row, from 0 to ``count`` - 1.
        times: the time of each row.
        count: the number of series.
    """
    order: np.ndarray | slice = slice(None)
    step = np.diff(series)
    if (step < 0).any() or ((step == 0) & (np.diff(times) < 0)).any():
        # As np.lexsort((times, series)), but the smallest type that holds the series sorts by counting.
        order = np.argsort(times, kind="stable")
        order = order[np.argsort(series[order].astype(np.min_scalar_type(count)), kind="stable")]
        series, times = series[order], times[order]
    new = np.ones(len(times), bool)
    new[1:] = (np.diff(series) != 0) | (np.diff(times) != 0)
    starts = np.flatnonzero(new)
    offsets = np.searchsorted(series[starts], np.arange(count + 1)).astype(np.int64)
    return Groups(order, starts, times[starts], offsets)


def average(values: Float[np.ndarray, " row"], starts: Int64[np.ndarray, " point"]) -> Float[np.ndarray, " point"]:
    """Compute the mean of each group of rows without NaN. The mean of a group of NaN is NaN."""
    seen = ~np.isnan(values)
    total = np.add.reduceat(np.where(seen, values, 0), starts, dtype=np.float64)
    counts = np.add.reduceat(seen, starts, dtype=np.int64)
    return np.where(counts > 0, total / np.maximum(counts, 1), np.nan)


class Pivoted(NamedTuple):
    """A long table in wide form, with NaN for missing values. Values at the points ``repeated`` are averages."""

    times: Float64[np.ndarray, " point"]
    values: Float[np.ndarray, "point variable"]
    offsets: Int64[np.ndarray, " bound"]
    repeated: Int64[np.ndarray, " repeated"]


def pivot(
    series: Int[np.ndarray, " row"],
    times: Float64[np.ndarray, " row"],
    variables: Int[np.ndarray, " row"],
    values: Float[np.ndarray, " row"],
    *,
    count: int,
    width: int,
    dtype: type[np.floating] = np.float64,
) -> Pivoted:
    """Convert a long table to a row for each (series, time) and a column for each variable.

    Several values of one variable at one time are averaged. A row with NaN still creates its time point.

    Args:
        series: the number of the series of each row.
        times: the time of each row.
        variables: the number of the variable of each row.
        values: the value of each row. NaN: missing.
        count: the number of series.
        width: the number of variables.
        dtype: the type of the values in the result.
    """
    groups = group(series, times, count)
    sizes = np.diff(groups.starts, append=len(times))
    cell = np.repeat(np.arange(len(groups.starts)) * width, sizes) + variables[groups.order]
    seen = values[groups.order]
    cell, seen = cell[~np.isnan(seen)], seen[~np.isnan(seen)]
    order = np.argsort(cell, kind="stable")  # nearly sorted, so this is quick
    cell, seen = cell[order], seen[order]
    starts = np.flatnonzero(np.diff(cell, prepend=-1))
    wide = np.full(len(groups.starts) * width, np.nan, dtype)
    if len(starts):
        wide[cell[starts]] = average(seen, starts)
    repeated = np.unique(cell[starts[np.diff(starts, append=len(cell)) > 1]] // width)
    return Pivoted(groups.times, wide.reshape(-1, width), groups.offsets, repeated)


def from_table(
    frame: Any,
    *,
    id: str | None,  # noqa: A002 - what the column is called everywhere
    time: str,
    values: Sequence[str] | str | None = None,
    variable: str | None = None,
    targets: Sequence[str] | str = (),
    unit: str | None = None,
    duplicates: Literal["refuse", "mean"] = "refuse",
) -> SeriesSet:
    """Make irregular series from a table. Rows may come in any order.

    A *wide* table has one column for each variable, and NaN or null where a value is missing. A *long* table has one
    row for each observation: ``variable`` is the name of the column of variable names.

    Args:
        frame: a pandas or polars frame, or the path of a ``.csv`` or ``.parquet`` file.
        id: the column with the name of the series of each row. None: the table is one series.
        time: the column of times, numbers or dates.
        values: the columns of observations. None: all other columns. A long table has one.
        variable: the column of variable names of a long table.
        targets: columns of a wide table to predict at each time. They are never inputs. They are in ``per_time``,
            where :func:`~cru.data.regression` finds them. NaN or null: unknown.
        unit: the unit of the gaps (``"us" "ms" "s" "min" "h" "D" "W"``). Dates need it, and count from the earliest one
            in the table, which becomes ``origin``. For numbers it is only a label.
        duplicates: what to do with two rows of a series at one time: ``"refuse"`` them, or take the ``"mean"`` of each
            variable.

    Returns:
        The series.

    Raises:
        ValueError: the table cannot be read, or breaks one of these rules.

    >>> import pandas as pd
    >>> from cru.data import from_table
    >>> frame = pd.DataFrame({"station": ["a", "a", "b"], "day": [0.0, 1.5, 0.5], "tmax": [20.0, None, 18.0]})
    >>> series = from_table(frame, id="station", time="day", values=["tmax"])
    >>> series.ids, series.times.tolist(), series.mask[:, 0].tolist()
    (('a', 'b'), [0.0, 1.5, 0.5], [True, False, True])
    >>> from_table("a.parquet", id="patient", time="hour", variable="parameter", values="value")  # doctest: +SKIP
    """
    if duplicates not in ("refuse", "mean"):
        raise InputError("duplicates", "be 'refuse' or 'mean'", repr(duplicates))
    if variable is not None and (values is None or (not isinstance(values, str) and len(values) != 1)):
        raise InputError("values", "name the one column of observations when {variable} is given")
    keys = [name for name in (id, time, variable) if name is not None]
    chosen = None if values is None else [values] if isinstance(values, str) else list(values)
    labels = [targets] if isinstance(targets, str) else list(targets)
    if variable is not None and labels:
        raise InputError("targets", "be columns of a wide table, without {variable}", labels)
    text = [name for name in (id, variable) if name is not None]
    wanted = list(dict.fromkeys(keys + labels + (chosen or [])))
    table = read_table(frame, wanted, time=time, text=text, everything=chosen is None)
    columns = chosen if chosen is not None else [name for name in table if name not in keys + labels]
    hint = _SEVERAL if id is None else ""
    _check_columns(table, keys, columns, labels, hint)

    # Each column is removed from the table after it is read, because ten million rows need much memory.
    names, series = codes(table.pop(id)) if id is not None else (["0"], np.zeros(table.rows, np.int32))
    times, label, origin = _times(table.pop(time), unit)
    options: dict[str, Any] = {"ids": names, "time_unit": label, "origin": origin}
    if variable is not None:
        variables, code = codes(table.pop(variable))
        observations = table.pop(columns[0]).numbers
        long = pivot(series, times, code, observations, count=len(names), width=len(variables))
        if duplicates == "refuse":
            _refuse(long.repeated, long.times, long.offsets, names, hint)
        del series, times, code, observations
        return _make(long.times, long.values, long.offsets, names=variables, **options)

    groups = group(series, times, len(names))
    repeated = np.flatnonzero(np.diff(groups.starts, append=len(times)) > 1)
    del series, times
    if duplicates == "refuse":
        _refuse(repeated, groups.times, groups.offsets, names, hint)

    def take(name: str) -> np.ndarray:
        observations = table.pop(name).numbers[groups.order]
        return average(observations, groups.starts) if len(repeated) else observations

    wide = np.empty((len(groups.starts), len(columns)))
    for k, name in enumerate(columns):
        wide[:, k] = take(name)
    per_time = {name: take(name) for name in labels}
    return _make(groups.times, wide, groups.offsets, names=columns, per_time=per_time, **options)


def _make(*arrays: np.ndarray, **options: Any) -> SeriesSet:
    """Make series. An error is about a column of the table, not about an argument of `make_series`."""
    try:
        return make_series(*arrays, **options)
    except InputError as error:
        raise error if error.column is None else error.replace(argument="") from None


def from_arrays(data: Mapping[str, Any], *, names: Sequence[str] | None = None, time_unit: str = "") -> SeriesSet:
    """Make series from a dictionary of arrays, as PyPOTS uses it.

    Args:
        data: ``X`` (series, time, feature), with NaN where a value is missing. ``time_points`` are (time,), or (series,
            time) with NaN after the end of a series; without them 0, 1, 2 and so on. Other entries are ignored.
        names: the names of the features.
        time_unit: the unit of the times.

    Returns:
        The series.

    Raises:
        ValueError: an array has another shape or type.

    >>> from cru.data import from_arrays
    >>> X, hours = np.ones((4, 3, 2)), np.arange(3.0)
    >>> len(from_arrays({"X": X, "time_points": hours}))
    4
    """
    if "X" not in data:
        raise InputError("data", "have an entry 'X'", f"{sorted(data)}")
    X = np.asarray(data["X"])
    if X.ndim != 3 or X.dtype.kind not in "fiub":
        raise InputError("X", "hold numbers of shape (series, time, feature)", f"{X.dtype} {X.shape}")
    count, length, width = X.shape
    points = as_times(data.get("time_points", np.arange(length)), "time_points")
    if points.shape not in ((length,), (count, length)):
        raise ValueError(
            f"`time_points` must have shape ({length},) or ({count}, {length}), as `X` has, got {points.shape}."
        )
    points = np.broadcast_to(points, (count, length))
    real = ~np.isnan(points)
    names = [f"x{k}" for k in range(width)] if names is None else list(names)
    if len(names) != width:
        raise InputError("names", f"name the {width} features of `X`", len(names))
    offsets = np.concatenate([[0], np.cumsum(real.sum(1))]).astype(np.int64)
    flat = X[real] if X.dtype.kind == "f" else X[real].astype(np.float64)
    return make_series(points[real], flat, offsets, ids=range(count), names=names, time_unit=time_unit)


def _check_columns(table: DataTable, keys: list[str], values: list[str], targets: list[str], hint: str) -> None:
    if not values:
        raise InputError("values", "name at least one column of observations")
    if len(set(keys + values)) < len(keys + values):
        raise InputError("values", "not repeat a column or hold {id}, {time} or {variable}", values)
    if len(set(keys + values + targets)) < len(keys + values + targets):
        raise InputError("targets", "not repeat a column or hold {id}, {time} or one of {values}", targets)
    for name in keys:
        check_key(table[name])
    wrong = [_describe(table[name]) for name in values + targets if table[name].kind != "number"]
    if wrong:
        turn = "or turn them into numbers (0/1 columns, for example)."
        raise InputError(
            rule="hold numbers in its columns of observations",
            found=", ".join(wrong),
            hint=f"{TEXT_HINT}{turn}{hint}",
            otherwise=f"Leave them out, {turn}",
        )


def check_key(column: Column) -> None:
    """Check that a key column holds a text, a number or a date in every row.

    Raises:
        InputError: the column has no rows, has nulls, or has other values.
    """
    if len(column) == 0:
        raise InputError(rule="have at least one row")
    if column.missing:
        found = f"{column.missing} of {len(column)} missing"
        raise InputError(rule="be filled in every row", found=found, column=column.name)
    if column.kind == "other":
        raise InputError(rule="hold texts, numbers or dates", found=column.dtype, column=column.name)


def _describe(column: Column) -> str:
    """Describe a column that does not hold numbers by its name and its first entry that is not a number."""
    wrong = np.array([parse_number(text) is None for text in column.texts], bool)
    if not wrong.any():
        return f"{column.name!r} ({column.dtype})"
    row = int(np.append(wrong, False)[column.values].argmax())
    return f"{column.name!r} ({column.entry(row)!r} in row {row + 1})"


def codes(key: Column) -> tuple[list[str], np.ndarray]:
    """Number the entries of a column.

    Returns:
        The sorted distinct entries as text, and for each row the number of its entry.
    """
    distinct, code = _distinct(key.values)
    if key.kind != "text":
        plain = distinct.astype("datetime64[us]") if key.kind in ("date", "datetime") else distinct
        return [str(entry) for entry in plain.tolist()], code.astype(np.int32)
    names = [key.texts[k] for k in distinct]
    if all(_WHOLE.fullmatch(name) for name in names):  # in the order of numbers, as in a frame of numbers
        order = sorted(range(len(names)), key=lambda k: int(names[k]))
        place = np.empty(len(names), np.int32)
        place[order] = np.arange(len(names))
        return [names[k] for k in order], place[code]
    return names, code.astype(np.int32)


def _distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted distinct values, and for each row the number of its value, as `numpy.unique` does."""
    least = int(values.min()) if values.dtype.kind in "iu" else 0
    if values.dtype.kind not in "iu" or int(values.max()) - least > 4 * len(values):
        return np.unique(values, return_inverse=True)
    shifted = values - least  # counting of integers that are close together is ten times faster than sorting
    found = np.flatnonzero(np.bincount(shifted))
    place = np.empty(found[-1] + 1, np.int32)
    place[found] = np.arange(len(found))
    return found + least, place[shifted]


def _times(column: Column, unit: str | None) -> tuple[np.ndarray, str, str | None]:
    """Return times as numbers, their unit, and the moment of time 0 if they were dates."""
    if column.kind == "number":
        times = column.numbers
        if np.isinf(times).any():
            raise InputError(rule="hold finite times", found=f"{np.isinf(times).sum()} infinite", column=column.name)
        return times, unit or "", None
    if column.kind not in ("date", "datetime"):
        hint = "Parse it first, for example with pandas.to_datetime."
        raise InputError(rule="hold numbers or dates", found=column.dtype, hint=hint, column=column.name)
    if unit not in TIME_UNITS:
        raise InputError("unit", f"be one of {', '.join(TIME_UNITS)} where times are dates", repr(unit))
    stamps = column.values.astype("datetime64[us]") if column.kind == "date" else column.values
    tick = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[np.datetime_data(stamps.dtype)[0]]
    ticks = stamps.view(np.int64)
    first = int(ticks.argmin())
    origin = str(np.datetime_as_string(stamps[first])) + ("" if column.zone is None else "+00:00")
    since = (ticks - ticks[first]).view(np.uint64)  # correct even where the nanoseconds overflow 64 bits
    return since / (TIME_UNITS[unit] / tick), unit, origin


def _refuse(repeated: np.ndarray, times: np.ndarray, offsets: np.ndarray, names: list[str], hint: str) -> None:
    """Raise InputError if a series repeats a time."""
    if len(repeated):
        series = names[series_of_row(int(repeated[0]), offsets)]
        raise InputError(
            rule="have one observation for each series, variable and time",
            found=f"{len(repeated)} repeated times, the first in series {series}",
            hint=f"Give {{duplicates='mean'}} to average them.{hint}",
            time=float(times[repeated[0]]),
            otherwise="Average them first, or fit again so that they are averaged.",
        )
