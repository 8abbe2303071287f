"""Anybody's table of readings: pandas and polars frames, CSV and Parquet files, and dictionaries of arrays."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import polars as pl

from cru.data.grouping import average, group, pivot
from cru.data.reading import no_numbers, read_table
from cru.data.series import SeriesSet, as_times, make_series, series_of_row
from cru.errors import InputError

_SEVERAL = " If the table holds several series, name the column that tells them apart with {id}."
# Nanoseconds in each unit that dates can be measured in.
UNITS = {
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
    "D": 86400 * 10**9,
    "W": 604800 * 10**9,
}


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
    """Irregular series from a table: a pandas or polars frame, or the path of a ``.csv`` or ``.parquet`` file.

    ``id`` names the column that says which series a row belongs to (None: the table is one series), ``time`` the column
    with numbers or dates. Rows may come in any order.

    * Wide: ``values`` are the columns of readings (None: all others); NaN or null means missing.
    * Long: ``variable`` names the column that says what was measured, ``values`` the one column of readings.

    In a wide table, ``targets`` are columns to be predicted at each time and never shown to a model, NaN or null where
    unknown: they go to ``per_time``, where :func:`~cru.data.regression` finds them.

    Dates need a ``unit`` for the gaps (``"us" "ms" "s" "min" "h" "D" "W"``) and are counted from the earliest one in
    the table, which is kept as ``origin``. For numbers, ``unit`` is only a label. Two rows of a series at one time are
    refused, or averaged for each variable with ``duplicates="mean"``.

    >>> frame = pd.DataFrame({"station": ["a", "a", "b"], "day": [0.0, 1.5, 0.5], "tmax": [20.0, None, 18.0]})
    >>> series = from_table(frame, id="station", time="day", values=["tmax"])
    >>> series.ids, series.times.tolist(), series.mask[:, 0].tolist()
    (('a', 'b'), [0.0, 1.5, 0.5], [True, False, True])
    >>> from_table("a.parquet", id="patient", time="hour", variable="parameter", values="value")  # doctest: +SKIP
    """
    if duplicates not in ("refuse", "mean"):
        raise InputError("duplicates", "be 'refuse' or 'mean'", repr(duplicates))
    if variable is not None and (values is None or (not isinstance(values, str) and len(values) != 1)):
        raise InputError("values", "name the one column of readings when {variable} is given")
    keys = [name for name in (id, time, variable) if name is not None]
    chosen = None if values is None else [values] if isinstance(values, str) else list(values)
    labels = [targets] if isinstance(targets, str) else list(targets)
    if variable is not None and labels:
        raise InputError("targets", "be columns of a wide table, without {variable}", labels)
    text = [name for name in (id, variable) if name is not None]
    wanted = list(dict.fromkeys(keys + labels + (chosen or [])))
    table = read_table(frame, wanted, time=time, text=text, everything=chosen is None)
    columns = chosen if chosen is not None else [name for name in table.columns if name not in keys + labels]
    hint = _SEVERAL if id is None else ""
    _check_columns(table, keys, columns, labels, hint)

    # Each column leaves the table when it has been read: ten million rows are large.
    drop = table.drop_in_place
    names, series = codes(drop(id)) if id is not None else (["0"], np.zeros(len(table), np.int32))
    times, label, origin = _times(drop(time), unit)
    options: dict[str, Any] = {"ids": names, "time_unit": label, "origin": origin}
    if variable is not None:
        variables, code = codes(drop(variable))
        readings = _numbers(drop(columns[0]))
        long = pivot(series, times, code, readings, count=len(names), width=len(variables))
        if duplicates == "refuse":
            _refuse(long.repeated, long.times, long.offsets, names, hint)
        del series, times, code, readings
        return _make(long.times, long.values, long.offsets, names=variables, **options)

    groups = group(series, times, len(names))
    repeated = np.flatnonzero(np.diff(groups.starts, append=len(times)) > 1)
    del series, times
    if duplicates == "refuse":
        _refuse(repeated, groups.times, groups.offsets, names, hint)

    left = {column.name: column for column in table}  # out of which a column is taken at once, however many there are
    del table

    def take(name: str) -> np.ndarray:
        readings = _numbers(left.pop(name))[groups.order]
        return average(readings, groups.starts) if len(repeated) else readings

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
        raise error.replace(argument="") from None


def from_arrays(data: Mapping[str, Any], *, names: Sequence[str] | None = None, time_unit: str = "") -> SeriesSet:
    """Series from a dictionary of arrays, as PyPOTS users have: ``X`` (series, time, feature) with NaN for missing.

    ``time_points`` are (time,), or (series, time) with NaN where a series has ended; without them, 0, 1, 2 and so on.
    Other entries are not looked at.

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
        raise ValueError(f"`names` must name the {width} features of `X`, got {len(names)}.")
    offsets = np.concatenate([[0], np.cumsum(real.sum(1))]).astype(np.int64)
    flat = X[real] if X.dtype.kind == "f" else X[real].astype(np.float64)
    return make_series(points[real], flat, offsets, ids=range(count), names=names, time_unit=time_unit)


def _check_columns(table: pl.DataFrame, keys: list[str], values: list[str], targets: list[str], hint: str) -> None:
    if not values:
        raise InputError("values", "name at least one column of readings")
    if len(set(keys + values)) < len(keys + values):
        raise InputError("values", "not repeat a column or hold {id}, {time} or {variable}", values)
    if len(set(keys + values + targets)) < len(keys + values + targets):
        raise InputError("targets", "not repeat a column or hold {id}, {time} or one of {values}", targets)
    for name in keys:
        check_key(table[name])
    wrong = [_like(table[name]) for name in values + targets if not _is_number(table[name])]
    if wrong:
        turn = "or turn them into numbers (0/1 columns, for example)."
        raise InputError(
            rule="hold numbers in its columns of readings",
            found=", ".join(wrong),
            hint=f"Leave them out with {{values}}, {turn}{hint}",
            otherwise=f"Leave them out, {turn}",
        )


def check_key(column: pl.Series) -> None:
    """Raise if a key column has nulls or nested values."""
    if len(column) == 0:
        raise InputError(rule="have at least one row")
    empty = column.null_count() + int((column.is_nan().sum() or 0) if column.dtype.is_float() else 0)
    if empty:
        raise InputError(rule="be filled in every row", found=f"{empty} of {len(column)} missing", column=column.name)
    if column.dtype.is_nested():
        raise InputError(rule="hold texts, numbers or dates", found=column.dtype, column=column.name)


def _like(column: pl.Series) -> str:
    """The name of a column of no numbers, and the first entry that is none."""
    if column.dtype != pl.String or len(found := no_numbers(column)) == 0:
        return f"{column.name!r} ({column.dtype})"
    return f"{column.name!r} ({found[0]!r} in row {int((column == found[0]).arg_max() or 0) + 1})"


def _is_number(column: pl.Series) -> bool:
    return column.dtype.is_numeric() or column.dtype == pl.Boolean or column.null_count() == len(column)


def _numbers(column: pl.Series) -> np.ndarray:
    return column.cast(pl.Float64).to_numpy()


def codes(key: pl.Series) -> tuple[list[str], np.ndarray]:
    """The sorted distinct entries of a column as text, and for each row the number of its entry."""
    key = key.cast(pl.String) if key.dtype in (pl.Categorical, pl.Enum) else key
    distinct = key.unique().sort()
    if distinct.dtype == pl.String:  # numbers written as text in the order of numbers, as in a frame
        number = distinct.cast(pl.Int64, strict=False)
        distinct = distinct if number.has_nulls() else distinct.gather(np.argsort(number.to_numpy(), kind="stable"))
    lookup = pl.DataFrame({"key": distinct, "code": np.arange(len(distinct), dtype=np.int32)})
    code = pl.DataFrame({"key": key}).join(lookup, on="key", how="left", maintain_order="left")["code"]
    return [str(entry) for entry in distinct], code.to_numpy()


def _times(column: pl.Series, unit: str | None) -> tuple[np.ndarray, str, str | None]:
    """Times as numbers, their unit, and the moment of time 0 if they were dates."""
    kind = column.dtype
    if kind.is_numeric():
        times = _numbers(column)
        if np.isinf(times).any():
            raise InputError(rule="hold finite times", found=f"{np.isinf(times).sum()} infinite", column=column.name)
        return times, unit or "", None
    if kind not in (pl.Date, pl.Datetime):
        hint = "Parse it first, for example with pandas.to_datetime."
        raise InputError(rule="hold numbers or dates", found=kind, hint=hint, column=column.name)
    if unit not in UNITS:
        raise InputError("unit", f"be one of {', '.join(UNITS)} where times are dates", repr(unit))
    stamps = column.cast(pl.Datetime("us") if kind == pl.Date else kind)
    if getattr(stamps.dtype, "time_zone", None):
        stamps = stamps.dt.convert_time_zone("UTC")
    tick = {"ms": 10**6, "us": 10**3, "ns": 1}[getattr(stamps.dtype, "time_unit", "us")]
    ticks = stamps.to_physical().to_numpy()
    first = int(ticks.argmin())
    origin = str(stamps.slice(first, 1).dt.to_string("iso:strict")[0])
    since = (ticks - ticks[first]).view(np.uint64)  # right even where 64 bits of nanoseconds began again
    return since / (UNITS[unit] / tick), unit, origin


def _refuse(repeated: np.ndarray, times: np.ndarray, offsets: np.ndarray, names: list[str], hint: str) -> None:
    """Raise if a series repeats a time."""
    if len(repeated):
        series = names[series_of_row(int(repeated[0]), offsets)]
        raise InputError(
            rule="have one reading for each series, variable and time",
            found=f"{len(repeated)} repeated times, the first in series {series}",
            hint=f"Give {{duplicates='mean'}} to average them.{hint}",
            time=float(times[repeated[0]]),
            otherwise="Average them first, or fit again so that they are averaged.",
        )
