"""Training tasks: which values of a table are withheld from a model, to be predicted."""

import dataclasses

import numpy as np

from cru.data import SeriesSet, Task
from cru.data.random import generator
from cru.data.tasks import hide
from cru.shapes import Bool

VALUES = 0.15  # share of single values withheld
VARIABLES = 0.2  # share of the variables of such a series withheld altogether: some patients are never measured so
RUNS = 0.15  # share of time points withheld in runs of all lengths, as stations fail
OWN_RUNS = 0.12  # share of the values of each variable withheld in runs of its own, as sensors fail
NOTHING = 0.1  # share of the forecast tasks that show no observation at all
SHOWN_TARGETS = 0.2  # share of what is shown that is a target, too
SPARSE = 0.5  # share of the series that are queried at some of the withheld times only


def make_training_task(series: SeriesSet, seed: int | tuple[int, ...]) -> SeriesSet:
    """Withhold, from a third of the series each: single values and a few variables; runs of time points; everything
    after a random time point.

    The lengths of runs are log-uniform, from one time point to a quarter of the series. So lead times of every order
    occur. Withheld values are targets, and the only ones that are scored. A few shown values are targets, too, because
    a model must also know what it is told. Half of the series leave out a share of the withheld time points, so that a
    prediction does not depend on queries in between.

    >>> series = cru.data.from_arrays({"X": np.ones((5, 3, 2))})
    >>> make_training_task(series, seed=0).task.scored
    'hidden'
    """
    rng = generator(seed, "practice")
    kind = np.repeat(rng.integers(0, 3, len(series)), series.lengths)
    never = np.repeat(rng.random((len(series), len(series.names))) < VARIABLES, series.lengths, 0)
    withheld = (kind == 0)[:, None] & (never | (rng.random(series.values.shape) < VALUES))
    runs = _runs(series, rng, RUNS, 1) | _runs(series, rng, OWN_RUNS, len(series.names))
    withheld |= ((kind == 1)[:, None] & runs) | ((kind == 2) & _ends(series, rng))[:, None]
    told = rng.random(series.values.shape) < SHOWN_TARGETS
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


def _runs(series: SeriesSet, rng: np.random.Generator, share: float, width: int) -> Bool[np.ndarray, "row width"]:
    """Runs of time points, in each of ``width`` columns by themselves."""
    longest = np.repeat(np.maximum(series.lengths / 4, 1.0), series.lengths)
    typical = np.where(longest > 1, (longest - 1) / np.maximum(np.log(longest), 1e-9), 1.0)
    begins, column = np.nonzero(rng.random((len(longest), width)) < (share / typical)[:, None])
    length = np.floor(longest[begins] ** rng.random(len(begins))).astype(np.int64)
    stops = np.minimum(begins + length, np.repeat(series.offsets[1:], series.lengths)[begins])
    change = np.zeros((len(longest) + 1, width), np.int32)
    np.add.at(change, (begins, column), 1)
    np.add.at(change, (stops, column), -1)
    within: np.ndarray = np.cumsum(change, 0)[:-1] > 0
    return within


def _ends(series: SeriesSet, rng: np.random.Generator) -> Bool[np.ndarray, " row"]:
    cut = np.maximum(1, np.floor(series.lengths * rng.random(len(series))))  # the first reading is shown, mostly
    cut[rng.random(len(series)) < NOTHING] = 0
    after: np.ndarray = series.step_index >= np.repeat(cut, series.lengths)
    return after
