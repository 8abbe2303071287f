"""Training tasks: values of a table are withheld, and a model predicts them."""

import dataclasses
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from cru.data import SeriesSet, Task
from cru.data.random import generator
from cru.forecaster.kinds import joint_columns
from cru.shapes import Bool, Int64

FEW_SERIES = 20  # a table with fewer series is divided into blocks of time, not into complete series


class RandomStream(IntEnum):
    """The streams of random numbers that choose withheld values. They are independent."""

    TRAINING = 1
    VALIDATION = 2
    SCORING = 3


@dataclass(frozen=True)
class MaskingConstants:
    """Shares of the withheld parts of a training task."""

    single_values: float = 0.15  # of single values
    whole_variables: float = 0.2  # of complete variables of such a series, because some are never measured
    runs: float = 0.15  # of time points in runs, as when a station fails
    runs_of_a_variable: float = 0.12  # of values of each variable in separate runs, as when a sensor fails
    without_history: float = 0.1  # of forecast tasks without any observation
    shown_targets: float = 0.2  # of shown values that are also targets
    sparse: float = 0.5  # of series in which some withheld time points are removed


MASKING = MaskingConstants()


def make_training_task(series: SeriesSet, seed: int | tuple[int, ...]) -> SeriesSet:
    """Withhold values of each series as targets.

    Each series has one of three kinds of tasks:

    - In a quarter of the series, single values and a few complete variables are withheld.
    - In a quarter, runs of time points are withheld. The lengths are log-uniform, from one time point to a quarter of
      the series.
    - Half are forecasts: all time points after a random one are withheld. A forecast ends at a log-uniform number of
      time points after its start, so that short lead times are as frequent as long ones.

    Withheld values are targets, and only they are scored. Some shown values are targets, too, so that a model also
    learns to reproduce its observations. The columns of a category are withheld together. In half of the series of the
    last two kinds, some withheld time points are removed. So predictions must not depend on the queries in between.

    Args:
        series: the series.
        seed: the seed of the random choices.

    Returns:
        The shown values with targets, and the mask ``hidden`` of the withheld values.

    >>> from cru.forecaster.masking import make_training_task
    >>> series = cru.data.from_arrays({"X": np.ones((5, 3, 2))})
    >>> make_training_task(series, seed=0).task.scored
    'hidden'
    """
    rng = generator(seed, "practice")
    kind = np.repeat(np.minimum(rng.integers(0, 4, len(series)), 2), series.lengths)
    never = np.repeat(rng.random((len(series), len(series.names))) < MASKING.whole_variables, series.lengths, 0)
    withheld = (kind == 0)[:, None] & (never | (rng.random(series.values.shape) < MASKING.single_values))
    runs = _runs(series, rng, MASKING.runs, 1) | _runs(series, rng, MASKING.runs_of_a_variable, len(series.names))
    start, end = _forecast_range(series, rng)
    withheld |= ((kind == 1)[:, None] & runs) | ((kind == 2) & (series.step_index >= start))[:, None]
    withheld = withheld[:, joint_columns(series.names)]
    shown = rng.random(series.values.shape) < MASKING.shown_targets
    task = dataclasses.replace(
        series.hide(withheld),
        targets=series.values,
        target_mask=series.mask & (withheld | shown),
        hidden=series.mask & withheld,
        task=Task("training", scored="hidden"),
    )
    share = rng.random(len(series)) ** (1 / 3) * (rng.random(len(series)) < MASKING.sparse)
    gone = withheld.all(1) & (kind > 0) & (rng.random(len(kind)) < np.repeat(share, series.lengths))
    length = np.repeat(series.lengths, series.lengths)
    end = np.where(kind == 2, np.minimum(end, length), length)
    gone &= series.step_index != end - 1  # the last time point remains, so that no series is empty
    return task.keep(~gone & (series.step_index < end))


def _runs(series: SeriesSet, rng: np.random.Generator, share: float, width: int) -> Bool[np.ndarray, "row width"]:
    """Draw runs of time points, independently in each of ``width`` columns.

    Args:
        series: the series to draw in.
        rng: source of randomness.
        share: approximate share of time points in runs.
        width: number of columns.
    """
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


def _forecast_range(
    series: SeriesSet, rng: np.random.Generator
) -> tuple[Int64[np.ndarray, " row"], Int64[np.ndarray, " row"]]:
    """Draw the first time point of a forecast in each series, and the first one after it, both for every row."""
    start = np.maximum(1, np.floor(series.lengths * rng.random(len(series)))).astype(np.int64)  # shows one or more
    start[rng.random(len(series)) < MASKING.without_history] = 0
    longest = np.maximum(series.lengths - start, 1)
    end = start + np.floor(longest ** rng.random(len(series))).astype(np.int64)
    return np.repeat(start, series.lengths), np.repeat(end, series.lengths)
