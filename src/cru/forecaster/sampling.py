"""Trajectories: values drawn one time after another, each given all that came before."""

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64

from cru.data import SeriesSet
from cru.data.random import generator
from cru.forecaster.answers import ask, lead_of, leads, raw_answers
from cru.forecaster.bulk import absorb, questions
from cru.forecaster.stream import Kept
from cru.functional.likelihood import VARIANCE_FLOOR

if TYPE_CHECKING:
    from cru.forecaster.estimator import Forecaster


class Drawn(NamedTuple):
    """One row for each sample, series and time, in this order."""

    sample: Int64[np.ndarray, " row"]
    owner: Int64[np.ndarray, " row"]
    times: Float[np.ndarray, " row"]
    values: Float[np.ndarray, "row variable"]


def trajectories(forecaster: "Forecaster", series: SeriesSet, times: list[np.ndarray], n: int, *, seed: int) -> Drawn:
    """At each step the next time of every copy of every series is predicted, drawn, and made a reading.

    A reading that is there already stays as it is. A model that keeps a state goes on from it where all times lie after
    the readings, as many for each series; else each step runs it over all of the series.
    """
    model, scaler, rng = forecaster.model_, forecaster.scaler_, generator(seed)
    later = _later(series, times)
    if model.streams and later is not None:
        return _onward(forecaster, series, later, n, rng)
    question = ask(series.take(np.tile(np.arange(len(series)), n)), list(times) * n)
    state, rows = question.series.scaled_by(scaler), question.rows
    values, mask = state.values.copy(), state.mask.copy()
    owner = state.series_index[rows]
    step = np.arange(len(rows)) - np.searchsorted(owner, owner)
    for now in range(int(step.max(initial=-1)) + 1):
        chosen = rows[step == now]
        current = dataclasses.replace(state, values=values, mask=mask)
        mean, var = raw_answers(model, current)
        lead = leads(current, causal=model.causal)[chosen]
        noise = forecaster.calibration_.draw(rng.random((len(chosen), values.shape[1])), lead)
        drawn = mean[chosen] + np.sqrt(np.maximum(var[chosen], VARIANCE_FLOOR)) * noise
        values[chosen] = np.where(mask[chosen], values[chosen], drawn)
        mask[chosen] = True
    return Drawn(owner // len(series), owner % len(series), state.times[rows], scaler.inverse(values[rows]))


def _later(series: SeriesSet, times: list[np.ndarray]) -> Float[np.ndarray, "series step"] | None:
    """The times in order, where each series has readings and as many times after its last row as the others."""
    each = [np.unique(asked) for asked in times]
    if not each or len({len(asked) for asked in each}) > 1 or not len(each[0]) or not series.lengths.all():
        return None
    together = np.stack(each)
    return together if (together[:, 0] > series.times[series.offsets[1:] - 1]).all() else None


@torch.inference_mode()
def _onward(
    forecaster: "Forecaster",
    series: SeriesSet,
    times: Float[np.ndarray, "series step"],
    n: int,
    rng: np.random.Generator,
) -> Drawn:
    """The readings are gone through once, all copies of a series start from there, and a step is a step."""
    stream, copies = forecaster.stream(), len(series) * n
    absorb(stream, series, np.full(len(series), -1))
    kept: Kept = stream.rows.take(torch.tensor([stream.rows_of[name] for name in series.ids]).repeat(n))
    moments = torch.from_numpy(times).repeat(n, 1)
    drawn = np.empty((copies, times.shape[1], len(forecaster.names_)))
    for step, now in enumerate(moments.T):
        question = questions(stream, now[:, None])
        said = stream.model(question, state=kept.state)
        mean, var = (part[:, 0].double().numpy() for part in said[:2])
        lead = lead_of((now - kept.seen).numpy()[:, None], kept.read.numpy())
        noise = forecaster.calibration_.draw(rng.random(mean.shape), lead)
        drawn[:, step] = mean + np.sqrt(np.maximum(var, VARIANCE_FLOOR)) * noise
        made = torch.from_numpy(drawn[:, step : step + 1]).to(question.values.dtype)
        reading = dataclasses.replace(question, values=made, mask=torch.ones_like(question.mask))
        state = stream.model.advance(reading, kept.state)
        kept = Kept(state, now, now, torch.ones_like(kept.read))
    owner = np.repeat(np.arange(copies), times.shape[1])
    values = forecaster.scaler_.inverse(drawn.reshape(len(owner), -1))
    return Drawn(owner // len(series), owner % len(series), moments.numpy().ravel(), values)
