"""How a forecaster learns: what it trains and validates on, and with which settings."""

import dataclasses
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from cru.data import SeriesSet
from cru.data.random import generator
from cru.forecaster.answers import leads
from cru.forecaster.frames import median_gap
from cru.forecaster.practice import practice
from cru.models import Model, create, spec_of
from cru.models.registry import entry
from cru.training.checkpoint import read_checkpoint, under_prefix
from cru.training.engine import Engine
from cru.training.listener import Listener
from cru.training.loop import Loop
from cru.training.run import Batches
from cru.training.settings import DataSettings, ModelSettings, RunSettings, TrainingSettings

FEW = 20  # series; with fewer, the latest readings of each validate
LEAST = 10  # readings that make a validation
SHARE, CALIBRATE, WATCH = 0.2, 1000, 200  # of the series validate, at most so many, of which so many after each epoch
WINDOW = 100  # readings in training: short windows make more steps of the optimizer in the same time
LONG = 500  # in validation, which takes parts of longer series
EPOCH = (320, 1000)  # windows of an epoch, so that it is neither a single step nor an hour, whatever the table
TYPICAL_GAP = 0.3  # what the median gap is to the Kalman family, whose time scale follows: 0.2 to 0.6 in the paper
_TRAIN, _VALIDATE = 1, 2  # what is practised; 3 is in scoring


class Parts(NamedTuple):
    """What trains, and what chooses the best epoch and calibrates."""

    train: SeriesSet
    validation: SeriesSet


def divide(series: SeriesSet, seed: int) -> Parts:
    """By series where there are many, by time where there are few: the last fifth of each validates."""
    late = np.maximum(LEAST, series.lengths // 5)
    late[(series.lengths < 2 * LEAST) | (len(series) >= FEW)] = 0
    if late.any():
        early = series.lengths - late
        return Parts(_part(series, 0 * early, early), _part(series, early, late))
    if len(series) < 2:
        raise ValueError(
            f"the table must hold at least two series, or one with {2 * LEAST} readings, to train and to calibrate on, "
            f"got one with {len(series.times)}."
        )
    order = generator(seed, "forecaster split").permutation(len(series))
    held = order[: max(1, min(CALIBRATE, int(SHARE * len(series))))]
    validation = series.take(np.sort(held))
    short = np.minimum(validation.lengths, LONG)
    return Parts(series.take(np.setdiff1d(order, held)), _part(validation, 0 * short, short))


def windows(series: SeriesSet, rng: np.random.Generator) -> SeriesSet:
    """The training series of an epoch: a series of up to `WINDOW` readings as it is, a place at random in a longer one.

    Long series are drawn more often; where all are short and there are no more than fit into an epoch, each comes as
    often as the others.
    """
    weight = np.maximum(1.0, series.lengths / WINDOW)
    count = int(np.clip(np.ceil(weight.sum()), *EPOCH))
    place = (np.arange(count) + rng.random()) / count * weight.sum()
    chosen = np.minimum(np.searchsorted(np.cumsum(weight), place, side="right"), len(series) - 1)
    length = np.minimum(series.lengths, WINDOW)[chosen]
    return series.excerpts(chosen, rng.integers(0, series.lengths[chosen] - length + 1), length)


def _part(series: SeriesSet, start: np.ndarray, length: np.ndarray) -> SeriesSet:
    """So many time points of each series from ``start`` on; series without any are left out."""
    kept = np.flatnonzero(length)
    return series.excerpts(kept, start[kept], length[kept])


def _pieces(series: SeriesSet) -> SeriesSet:
    """All of the series in parts of at most `LONG` readings."""
    count = -(-series.lengths // LONG)
    owner = np.repeat(np.arange(len(series)), count)
    start = LONG * (np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count))
    return series.excerpts(owner, start, np.minimum(LONG, series.lengths[owner] - start))


def default_options(model: str, variables: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """A state that grows with the root of the number of variables: 10 for up to 8, 22 for 37, at most 32.

    The variance of the output goes through softplus: with the square of the paper, which can touch zero, the likelihood
    of a first f-CRU ran away in mid-training.
    """
    size = 2 * min(16, max(5, math.ceil(math.sqrt(3 * variables))))
    own = {"hidden_size": size, "variance_map": "softplus"}
    known = {field.name for field in dataclasses.fields(entry(model).model.Config) if field.default is None}
    return {name: value for name, value in own.items() if name in known} | dict(options)


def longest_lead(task: SeriesSet) -> float | None:
    """How far from the last reading values are practised, but for the farthest 1 %."""
    assert task.hidden is not None
    lead = leads(task, causal=True)[task.hidden]
    lead = lead[(lead > 0) & np.isfinite(lead)]
    return float(np.quantile(lead, 0.99)) if len(lead) else None


def learn(
    parts: Parts,
    *,
    model: str,
    options: Mapping[str, Any],
    training: TrainingSettings,
    seed: int,
    listener: Listener | None,
) -> Model:
    """The best epoch of a model that practises on the training part, anew each epoch."""
    settings = RunSettings(
        data=DataSettings(dataset="own", task="practice"),
        model=ModelSettings(name=model, options=options),
        training=training,
        seed=seed,
    )
    pieces = _pieces(parts.validation)
    watched = np.unique(np.linspace(0, len(pieces) - 1, WATCH).round().astype(np.int64))
    validation = practice(pieces.take(watched), (seed, _VALIDATE))
    whole = practice(parts.train, (seed, _TRAIN))

    def renew(epoch: int) -> SeriesSet:
        return practice(windows(parts.train, generator((seed, epoch), "windows")), (seed, _TRAIN, epoch))

    spec = spec_of(whole, time_scale=TYPICAL_GAP / median_gap(parts.train))
    spec = dataclasses.replace(spec, longest_gap=longest_lead(renew(0)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = create(model, spec, **options)
    engine = Engine()
    made.to(engine.device).prepare(Batches(whole, training.batch_size, made.dtype, engine.device))
    del whole, pieces  # they may be large
    if made.num_parameters:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            loop = Loop(
                settings, made, renew(0), validation, engine=engine, folder=folder, listener=listener, renew=renew
            )
            loop.run()
            made.load_state_dict(under_prefix("model.", read_checkpoint(loop.best)[0]))
    return made.cpu().eval()
