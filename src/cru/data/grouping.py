"""Sort rows into series, for tables and raw archives."""

from typing import NamedTuple

import numpy as np

from cru.shapes import Float, Float64, Int, Int64


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
    """Sort rows by series (0 to ``count`` - 1) and time. Rows that are already sorted are not copied."""
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
    """A long table in wide form, with NaN for missing values. ``repeated`` are the time points with an average."""

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
