"""The tasks of the paper, as pure functions from series to series with separate inputs and targets.

Each function takes a :class:`SeriesSet` with all values. In the result, ``values`` and ``mask`` are the inputs of a
model, and ``targets`` and ``target_mask`` are its targets. A withheld value is 0 in the inputs, and its mask is False.

>>> series = cru.data.from_arrays({"X": np.ones((5, 3, 2))})
>>> splits = cru.data.split(series).map(lambda part: cru.data.extrapolation(part, fraction=0.5))
>>> splits.train.task.name
'extrapolation'
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from cru.data.random import generator
from cru.data.series import SeriesSet, Task
from cru.errors import InputError
from cru.shapes import Bool


def interpolation(
    series: SeriesSet, *, hidden: float = 0.5, seed: int | tuple[int, ...] = 0, keep_before: float = -np.inf
) -> SeriesSet:
    """Predict all time points from some of them.

    Args:
        series: series without a task.
        hidden: the probability that a time point is withheld. With 0, all time points are inputs and targets, as in the
            paper on USHCN and PhysioNet.
        seed: the seed of the withheld time points.
        keep_before: the time before which no time point is withheld. It is 5 for the pendulum.

    Raises:
        ValueError: the series have a task, or ``hidden`` is not valid.
    """
    _check_no_task(series)
    if not 0 <= hidden < 1:
        raise InputError("hidden", "be a share from 0 up to but not including 1", hidden)
    shown = (generator(seed, "hiding").random(len(series.times)) >= hidden) | (series.times < keep_before)
    return _withhold(series, shown, Task("interpolation", _likelihood(series)))


def extrapolation(series: SeriesSet, *, time: float | None = None, fraction: float | None = None) -> SeriesSet:
    """Predict the later part of each series from its first part. The loss has all targets, the score the later ones.

    Args:
        series: series without a task.
        time: the time at which the later part begins, such as 24.0 hours on PhysioNet.
        fraction: instead of ``time``, the share of the time points of each series in its first part, such as 0.5 on
            USHCN. The number of time points is rounded down.

    Raises:
        ValueError: the series have a task, both or neither of the options are given, or ``fraction`` is not valid.
    """
    _check_no_task(series)
    if (time is None) == (fraction is None):
        raise InputError("time", "be given if and only if the fraction is not", "neither" if time is None else "both")
    if time is not None:
        shown = series.times < time
    elif fraction is not None and 0 < fraction < 1:
        count = np.floor(series.lengths * fraction + 1e-9).astype(np.int64)
        shown = series.step_index < np.repeat(count, series.lengths)
    else:
        raise InputError("fraction", "lie between 0 and 1", fraction)
    return _withhold(series, shown, Task("extrapolation", _likelihood(series), scored="hidden"))


def regression(series: SeriesSet, *, target: str | Sequence[str]) -> SeriesSet:
    """Predict other quantities at each time point.

    Args:
        series: series without a task.
        target: one entry of ``series.per_time``, or several. NaN is unknown.

    Returns:
        The series with all values as inputs, and with the targets.

    Raises:
        InputError: the series have a task, or ``target`` is not an entry of ``per_time``.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"station": ["a", "a"], "day": [0, 1], "tmax": [20.0, 21.0], "tmin": [9.0, 10.0]})
    >>> labelled = cru.data.from_table(frame, id="station", time="day", values="tmax", targets="tmin")
    >>> cru.data.regression(labelled, target="tmin").target_shape
    (1,)
    """
    _check_no_task(series)
    targets = [target] if isinstance(target, str) else list(target)
    missing = [name for name in targets if name not in series.per_time]
    if missing or not targets:
        known = ", ".join(repr(name) for name in series.per_time) or "nothing"
        raise InputError("target", "be an entry of `per_time` of the series", f"{target!r}; there is {known}")
    columns = [series.per_time[name] for name in targets]
    labels = np.concatenate([c[:, None] if c.ndim == 1 else c for c in columns], axis=1)
    labels = labels if labels.dtype.kind == "f" else labels.astype(np.float32)
    known_labels = ~np.isnan(labels)
    return dataclasses.replace(
        series,
        targets=np.where(known_labels, labels, labels.dtype.type(0)),
        target_mask=known_labels,
        hidden=np.zeros_like(known_labels),
        task=Task("regression"),
    )


def one_step_ahead(series: SeriesSet) -> SeriesSet:
    """Predict each time point from all earlier ones.

    Every time point except the first becomes two steps at the same time: a query, then the observation. Any causal
    model can do this task. `cru.models.create` raises for models that use later inputs.
    """
    _check_no_task(series)
    lengths = np.maximum(2 * series.lengths - 1, 0)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    step = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    rows = np.repeat(series.offsets[:-1], lengths) + (step + 1) // 2
    doubled = series.take_rows(rows, offsets)
    task = Task("one-step-ahead", _likelihood(series), causal=True)
    query = _like_mask(doubled.mask, step % 2 == 1)
    nothing = doubled.values.dtype.type(0)
    return dataclasses.replace(
        doubled,
        values=np.where(query, nothing, doubled.values),
        mask=doubled.mask & ~query,
        targets=np.where(query & doubled.mask, doubled.values, nothing),
        target_mask=doubled.mask & query,
        hidden=doubled.mask & query,
        task=task,
    )


def partial_observability(series: SeriesSet, *, probability: float = 0.1, seed: int | tuple[int, ...] = 0) -> SeriesSet:
    """Remove one, two, ... or all but one of the features at a time point, each number with ``probability``.

    For example, with five features and 0.1, each of the numbers one to four occurs at 10 % of the time points. Removed
    features are neither inputs nor targets. Call this function before the task. The fraction of removed features at a
    time point is ``1 - mask.mean(-1)``.

    Args:
        series: series without a task.
        probability: the probability of each number of removed features.
        seed: the seed of the removed features.

    Raises:
        ValueError: the series have a task or less than two features, or ``probability`` is not valid.
    """
    _check_no_task(series)
    if series.is_image or series.values.shape[1] < 2:
        raise InputError("series", "have at least two features", f"{series.input_shape}")
    features = series.values.shape[1]
    if not 0 <= probability * (features - 1) <= 1:
        raise InputError("probability", f"be from 0 to 1/{features - 1}", probability)
    rng = generator(seed, "sparseness")
    draw = rng.random(len(series.times)) / max(probability, 1e-300)
    removed = np.where(draw < features - 1, np.floor(np.minimum(draw, features)) + 1, 0)
    rank = rng.random(series.values.shape).argsort(axis=1).argsort(axis=1)
    return series.hide(rank < removed[:, None])


def _check_no_task(series: SeriesSet) -> None:
    if series.task is not None:
        rule = f"not have a task yet: it has {series.task.name!r}, which removed the withheld values"
        raise InputError("series", rule, hint="Begin with the series before this task.")


def _withhold(series: SeriesSet, shown: Bool[np.ndarray, " row"], task: Task) -> SeriesSet:
    withheld = _like_mask(series.mask, ~shown)
    inputs = series.hide(withheld)
    return dataclasses.replace(
        inputs, targets=series.values, target_mask=series.mask, hidden=series.mask & withheld, task=task
    )


def _like_mask(mask: Bool[np.ndarray, "row *feature"], rows: Bool[np.ndarray, " row"]) -> Bool[np.ndarray, "row *ones"]:
    """Reshape a flag for each row so that it broadcasts against ``mask``."""
    return rows.reshape(-1, *(1,) * (mask.ndim - 1))


def _likelihood(series: SeriesSet) -> Literal["gaussian", "bernoulli"]:
    return "bernoulli" if series.is_image else "gaussian"


TASK_VERSION = 2  # of the draws of random tasks; version 1 uses the random stream of the split and the simulation
TASKS: dict[str, Callable[..., SeriesSet]] = {
    "interpolation": interpolation,
    "extrapolation": extrapolation,
    "regression": regression,
    "one-step-ahead": one_step_ahead,
}
