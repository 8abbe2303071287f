"""The times that a user asks for, for each series, as numbers."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import narwhals as nw
import numpy as np
from jaxtyping import Float

from cru.data import SeriesSet
from cru.data.reading import written_times
from cru.data.tables import check_key, codes
from cru.forecaster.clock import Clock
from cru.forecaster.frames import Columns, ids_of, name_of

MOST = 100_000  # steps of a forecast


def ahead(series: SeriesSet, clock: Clock, *, horizon: Any, every: Any, gap: float) -> list[Float[np.ndarray, " _"]]:
    """Times after the last reading of each series, up to ``horizon`` later."""
    length = clock.duration(horizon, "horizon")
    step = clock.duration(every, "every") if every is not None else min(length, clock.step(gap))
    count = int(np.floor(length / step * (1 + 1e-9)))
    if not 1 <= count <= MOST:
        raise ValueError(
            f"`horizon` must be 1 to {MOST} steps of `every` long, got {horizon!r}, which is {length / step:.3g}."
        )
    steps = step * np.arange(1, count + 1)
    return [last + steps for last in last_readings(series)]


def last_readings(series: SeriesSet) -> Float[np.ndarray, " series"]:
    """The time of each series' last row with a value in it, or of its last row where none has one."""
    rows, ends = np.arange(len(series.times)), series.offsets[1:] - 1
    seen = np.maximum.accumulate(np.where(series.mask.any(1), rows, -1))[ends]
    last: np.ndarray = series.times[np.where(seen >= series.offsets[:-1], seen, ends)]
    return last


def asked(
    series: SeriesSet, at: Any, clock: Clock, columns: Columns
) -> tuple[SeriesSet, list[Float[np.ndarray, " _"]]]:
    """The series that are asked for, those without readings among them, and the times ``at`` for each."""
    if isinstance(at, Mapping):
        wanted = {name_of(name): clock.numbers(times) for name, times in at.items()}
    elif hasattr(at, "columns"):
        wanted = _of_frame(at, clock, columns)
    else:
        times = clock.numbers(at)
        if len(times) == 0:
            raise ValueError("`at` must hold at least one time.")
        return series, [times for _ in series.ids]
    if columns.id is None and wanted.keys() - set(series.ids):
        raise ValueError(f"`at` must be a list of times: the training table had no column of ids, got {list(at)}.")
    known = set(series.ids)
    new = [name for name in wanted if name not in known]
    offsets = np.append(series.offsets, np.full(len(new), series.offsets[-1]))
    series = dataclasses.replace(series, ids=(*series.ids, *new), offsets=offsets)
    chosen = [number for number, name in enumerate(series.ids) if name in wanted]
    return series.take(chosen), [wanted[series.ids[number]] for number in chosen]


def _of_frame(at: Any, clock: Clock, columns: Columns) -> dict[str, np.ndarray]:
    frame = nw.from_native(at, eager_only=True).to_polars()
    missing = [name for name in (columns.id, columns.time) if name is not None and name not in frame.columns]
    if missing:
        raise ValueError(
            f"`at` must have the column {missing[0]!r}, as the training table had; it has {frame.columns}."
        )
    times = clock.column(written_times(frame[columns.time]))
    if columns.id is None:
        return {"0": times}
    if len(frame) == 0:
        return {}
    check_key(frame[columns.id])
    names, owner = codes(ids_of(frame[columns.id]))
    order, ends = np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner, minlength=len(names)))
    return dict(zip(names, np.split(times[order], ends[:-1]), strict=True))
