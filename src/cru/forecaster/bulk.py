"""Many series of a stream at once: a table of readings in, a frame of predictions out."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from cru.data import Batch, SeriesSet
from cru.data.series import alike
from cru.forecaster.answers import BATCH, Answer, lead_of, with_values
from cru.forecaster.frames import further_look, long_frame
from cru.forecaster.stream import LOOK_BACK, SORT, Kept

if TYPE_CHECKING:
    from cru.forecaster.stream import Stream


@torch.inference_mode()
def take_in(stream: "Stream", table: Any) -> int:
    """Every row of a table, late ones refused before anything is done, or dropped; how many were taken."""
    fitted = stream.forecaster
    series = further_look(table, fitted.columns_, fitted.clock_, fitted.names_, fitted.scaler_)
    rows = np.array([stream.rows_of.get(name, -1) for name in series.ids], np.int64)
    last = np.full(len(rows), -math.inf)
    last[rows >= 0] = stream.rows.take(torch.from_numpy(rows[rows >= 0])).last.numpy()
    late = series.times < np.repeat(last, series.lengths)
    if late.any() and stream.late == "refuse":
        name, moment = series.ids[series.series_index[late.argmax()]], float(series.times[late.argmax()])
        raise stream.too_early(name, moment, stream.rows.row(stream.rows_of[name]), SORT)
    absorb(stream, series.keep(~late), rows)
    return int((~late).sum())


def absorb(stream: "Stream", series: SeriesSet, rows: Int64[np.ndarray, " series"]) -> None:
    """All readings of series that have these rows in the stream, -1 for a new one."""
    series = with_values(series.scaled_by(stream.forecaster.scaler_))
    for known in (True, False):
        group = np.flatnonzero(((rows >= 0) == known) & (series.lengths > 0))
        for numbers in alike(series.lengths[group], BATCH):
            chosen = group[numbers]
            _advance(stream, series.batch(chosen, dtype=stream.model.dtype), rows[chosen] if known else None)


def _advance(stream: "Stream", batch: Batch, rows: Int64[np.ndarray, " batch"] | None) -> None:
    """Series that are all known, in their rows, or all new."""
    read = batch.mask.any(1)
    if rows is None:
        state = stream.model.advance(batch)
        first = stream.add(batch.ids)
        places = torch.arange(first, first + len(batch))
    else:
        places = torch.from_numpy(rows)
        kept: Kept = stream.rows.take(places)
        state = stream.model.advance(batch, kept.state)
        read = read | kept.read
    stream.rows.put(places, Kept(state, batch.times[:, -1], read))  # padding repeats the last time


@torch.inference_mode()
def expect(stream: "Stream", at: Any, ids: Sequence[object] | None, levels: tuple[float, ...]) -> Any:
    """A frame of predictions for some series, or all, at the same times."""
    clock, columns, variables = stream.forecaster.clock_, stream.forecaster.columns_, stream.forecaster.names_
    moments = np.unique(clock.numbers(at))
    names = list(stream.names) if ids is None else [stream.known(name) for name in ids]
    if not names or not len(moments):
        raise ValueError("`at` and `ids` must hold at least one time and one series of the stream.")
    parts = [_expect(stream, names[i : i + BATCH], moments, levels) for i in range(0, len(names), BATCH)]
    numbers = {name: [part.columns[name] for part in parts] for name in parts[0].columns}
    return long_frame(
        columns,
        clock,
        ids=[name for name in names for _ in range(len(moments) * len(variables))],
        times=np.repeat(np.tile(moments, len(names)), len(variables)),
        variables=list(variables) * (len(names) * len(moments)),
        numbers={name: np.concatenate(found).ravel() for name, found in numbers.items()},
        polars=columns.polars,
    )


def _expect(
    stream: "Stream", names: Sequence[str], moments: Float64[np.ndarray, " asked"], levels: tuple[float, ...]
) -> Answer:
    kept: Kept = stream.rows.take(torch.tensor([stream.rows_of[name] for name in names]))
    early = (kept.last > moments[0]).nonzero()
    if len(early):
        name = names[int(early[0])]
        raise stream.too_early(name, float(moments[0]), stream.rows.row(stream.rows_of[name]), LOOK_BACK)
    said = stream.model(questions(stream, torch.from_numpy(moments).expand(len(names), -1)), state=kept.state)
    since = moments[:, None] - kept.last.numpy()[:, None, None]
    lead = lead_of(since, kept.read.numpy()[:, None])  # (series, time, variable)
    return stream.answer(said, lead.reshape(-1, lead.shape[-1]), levels)


def questions(stream: "Stream", moments: Float64[Tensor, "batch asked"]) -> Batch:
    """Nothing observed at any of the times."""
    count, asked = moments.shape
    values = torch.zeros(count, asked, len(stream.forecaster.names_), dtype=stream.model.dtype)
    nothing = values[..., :0]
    return Batch(
        times=moments,
        values=values,
        mask=values.bool(),
        targets=nothing,
        target_mask=nothing.bool(),
        hidden=nothing.bool(),
        lengths=torch.full((count,), asked),
        ids=("",) * count,
    )
