"""The times at which a backtest cuts the series, and the ranges of lead times after a cut."""

from itertools import pairwise
from typing import Any

import numpy as np

from cru.data import SeriesSet
from cru.errors import InputError
from cru.forecaster.clock import Clock
from cru.forecaster.queries import drop_empty_rows
from cru.shapes import Float, Int64

TOLERANCE = 1e-9  # rounding of times, as a share of the horizon
LATER_PART = 0.5  # without a given step, all cuts are in this part of a series
SHARES = (1 / 8, 1 / 4, 1 / 2, 1.0)  # of the horizon: where the ranges of lead times end
MOST = 1000  # largest number of cuts


def cut_times(
    series: SeriesSet, clock: Clock, *, horizon: float, every: float | None, cuts: Any
) -> Float[np.ndarray, "series cut"]:
    """Return the times at which each series is cut. A series without an observation before a cut has NaN.

    Args:
        series: the table.
        clock: the clock of the table.
        horizon: the longest lead time.
        every: the time between two cuts. None: the horizon or less.
        cuts: the number of cuts, or the times of cuts.

    Raises:
        InputError: ``cuts`` is neither an integer from 1 to `MOST` nor a list of times.
    """
    series = drop_empty_rows(series)
    if isinstance(cuts, int | np.integer) and not isinstance(cuts, bool):
        if not 1 <= cuts <= MOST:
            raise InputError("cuts", f"be from 1 to {MOST}, or a list of times", repr(cuts))
        return _spaced(series, horizon, every, int(cuts))
    if isinstance(cuts, str | bytes | bool | float) or not hasattr(cuts, "__iter__"):
        raise InputError("cuts", "be an integer, or a list of times", repr(cuts))
    if every is not None:
        raise InputError("every", "be left out if {cuts} is a list of times")
    times = np.unique(clock.numbers(cuts, "cuts"))
    if not 1 <= len(times) <= MOST:
        raise InputError("cuts", f"have from 1 to {MOST} times", f"{len(times)}")
    first = np.full(len(series), np.inf)
    some = series.lengths > 0
    first[some] = series.times[series.offsets[:-1][some]]
    return np.where(first[:, None] <= times, times, np.nan)


def _spaced(series: SeriesSet, horizon: float, every: float | None, count: int) -> Float[np.ndarray, "series cut"]:
    """Return cuts with equal steps, each moved to the next observation. The last is a horizon before the end."""
    found = np.full((len(series), count), np.nan)
    back = np.arange(count)[::-1]
    for number, (begin, end) in enumerate(zip(series.offsets[:-1], series.offsets[1:], strict=True)):
        times = series.times[begin:end]
        if len(times) < 2:
            continue
        latest = times[-1] - horizon
        middle = times[-1] - LATER_PART * (times[-1] - times[0])
        step = every if every is not None else min(horizon, max(latest - middle, 0.0) / max(count - 1, 1))
        wanted = latest - step * back
        place = np.searchsorted(times, wanted - TOLERANCE * horizon)
        place = np.minimum(place, len(times) - 2)  # an observation follows
        new = (wanted >= times[0] - TOLERANCE * horizon) & (np.append(place[1:], -1) != place)  # equal cuts count once
        found[number, new] = times[place[new]]
    return found


def lead_ranges(lead: Float[np.ndarray, " value"], horizon: float) -> Int64[np.ndarray, " value"]:
    """Return the index of the range of each lead time. The ranges end at `SHARES` of the horizon."""
    return np.searchsorted(np.array(SHARES[:-1]) * (1 + TOLERANCE), lead / horizon).astype(np.int64)


def range_names(clock: Clock, horizon: float, unit: str | None) -> tuple[str, ...]:
    """Return the names of the ranges of lead times, such as "6h to 12h".

    Args:
        clock: the clock of the table.
        horizon: the horizon in the unit of the clock.
        unit: the unit in which the user wrote the horizon. A range that ends before one such unit has a smaller unit.
    """
    one = 0.0 if unit is None else clock.duration(f"1{unit}") * (1 - TOLERANCE)
    ends = [clock.written(end, unit if end >= one else None) for end in (share * horizon for share in SHARES)]
    return (f"up to {ends[0]}", *(f"{start} to {end}" for start, end in pairwise(ends)))
