"""Trajectories: values drawn one time after another, each given all that came before."""

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Int64

from cru.data import SeriesSet
from cru.data.random import generator
from cru.forecaster.answers import ask, leads, raw_answers
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

    A reading that is there already stays as it is. Works for every model; each step runs it over all of the series.
    """
    model, scaler, rng = forecaster.model_, forecaster.scaler_, generator(seed)
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
