"""What a forecaster practises: to fill in and to forecast, on readings that it was not shown."""

import dataclasses

import numpy as np
from jaxtyping import Bool

from cru.data import SeriesSet, Task
from cru.data.random import generator
from cru.data.tasks import hide

VALUES = 0.15  # of single values withheld, as tables miss them
VARIABLES = 0.2  # of the variables of such a series withheld altogether: some patients are never measured so
RUNS = 0.25  # of time points withheld in runs of all lengths, as devices fail: a filter forecasts into each of them
NOTHING = 0.1  # of the series that end show no reading at all: what is there to say of a new one?
TOLD = 0.2  # of what is shown is a target, too
SPARSE = 0.5  # of the series are asked about at some of the times withheld only: users ask for one time, or for many


def practice(series: SeriesSet, seed: int | tuple[int, ...]) -> SeriesSet:
    """A third of the series each: withhold single values and a few variables, runs of time points, or everything after
    a random point.

    Not all at once: what is known before a forecast is then as complete as it will be. The lengths of the runs are
    log-uniform, from one time point to a quarter of the series, so that leads of every order occur. Withheld values are
    targets, and the only ones that are scored; of what is shown a few are targets, too, because a model must also know
    what it has just been told, but all of them, being easy, might outweigh the others. Time points between readings are
    steps of a model even where nothing is read: in half of the series a share of the withheld ones, mostly a large
    one, is left out, so that what it says does not hang on being asked at every step.

    >>> practice(series, seed=0).task.scored
    'hidden'
    """
    rng = generator(seed, "practice")
    kind = np.repeat(rng.integers(0, 3, len(series)), series.lengths)
    never = np.repeat(rng.random((len(series), len(series.names))) < VARIABLES, series.lengths, 0)
    withheld = (kind == 0)[:, None] & (never | (rng.random(series.values.shape) < VALUES))
    withheld |= (((kind == 1) & _runs(series, rng)) | ((kind == 2) & _ends(series, rng)))[:, None]
    told = rng.random(series.values.shape) < TOLD
    task = dataclasses.replace(
        hide(series, withheld),
        targets=series.values,
        target_mask=series.mask & (withheld | told),
        hidden=series.mask & withheld,
        task=Task("practice", scored="hidden"),
    )
    share = rng.random(len(series)) ** (1 / 3) * (rng.random(len(series)) < SPARSE)
    gone = withheld.all(1) & (kind > 0) & (rng.random(len(kind)) < np.repeat(share, series.lengths))
    gone[series.offsets[1:][series.lengths > 0] - 1] = False  # the last stays: a series is not empty
    return task.keep(~gone)


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
    cut = np.maximum(1, np.floor(series.lengths * rng.random(len(series))))  # the first reading is shown, mostly
    cut[rng.random(len(series)) < NOTHING] = 0
    after: np.ndarray = series.step_index >= np.repeat(cut, series.lengths)
    return after
