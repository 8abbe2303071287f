"""What a forecaster practises: to fill in and to forecast, on readings that it was not shown."""

import dataclasses
import math

import numpy as np
from jaxtyping import Bool

from cru.data import SeriesSet, Task
from cru.data.random import generator
from cru.data.tasks import hide

ENTRIES = 0.1  # single values withheld, as tables miss them
RUNS = 0.25  # time points withheld in runs of all lengths, as devices fail: a filter forecasts into each of them
ENDS = 0.5  # series withheld from a random point on: the only forecast for a model that also looks back from later


def practice(series: SeriesSet, seed: int | tuple[int, ...]) -> SeriesSet:
    """Withhold single values, runs and ends at random; everything is a target, and the withheld values are scored.

    The lengths of the runs are log-uniform, from one time point to a quarter of the series, so that leads of every
    order count alike. What is shown is a target, too: a model must also know what it has just been told.

    >>> practice(series, seed=0).task.scored
    'hidden'
    """
    rng = generator(seed)
    withheld = rng.random(series.values.shape) < ENTRIES
    withheld |= (_runs(series, rng) | _ends(series, rng))[:, None]
    shown = hide(series, withheld)
    return dataclasses.replace(
        shown,
        targets=series.values,
        target_mask=series.mask,
        hidden=series.mask & withheld,
        task=Task("practice", scored="hidden"),
    )


def _runs(series: SeriesSet, rng: np.random.Generator) -> Bool[np.ndarray, " row"]:
    longest = np.repeat(np.maximum(series.lengths / 4, 1.0), series.lengths)
    typical = np.where(longest > 1, (longest - 1) / np.maximum(np.log(longest), 1e-9), 1.0)
    begins = np.flatnonzero(rng.random(len(longest)) < RUNS / typical)
    length = np.floor(longest[begins] ** rng.random(len(begins))).astype(np.int64)
    stops = np.minimum(begins + length, np.repeat(series.offsets[1:], series.lengths)[begins])
    change = np.zeros(len(longest) + 1, np.int64)
    np.add.at(change, begins, 1)
    np.add.at(change, stops, -1)
    within: np.ndarray = np.cumsum(change)[:-1] > 0
    return within


def _ends(series: SeriesSet, rng: np.random.Generator) -> Bool[np.ndarray, " row"]:
    cut = np.maximum(1, np.floor(series.lengths * rng.random(len(series))))
    cut = np.where(rng.random(len(series)) < ENDS, cut, math.inf)
    after: np.ndarray = series.step_index >= np.repeat(cut, series.lengths)
    return after
