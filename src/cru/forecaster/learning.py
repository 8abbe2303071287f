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

FEW = 20  # series; with fewer, each is cut into pieces and the latest ones validate
LEAST, MOST = 10, 500  # readings of a piece
PIECES = 40  # wanted, where there are few series
SHARE, CAP = 0.2, 500  # of the pieces validate, but at most so many
TYPICAL_GAP = 0.3  # what the median gap is to the Kalman family, whose time scale follows: 0.2 to 0.6 in the paper
_SPLIT, _TRAIN, _VALIDATE = 0, 1, 2  # streams of the seed


class Parts(NamedTuple):
    """What trains, and what chooses the best epoch and calibrates."""

    train: SeriesSet
    validation: SeriesSet


def divide(series: SeriesSet, seed: int) -> Parts:
    """By series where there are many, by time where there are few: the latest pieces of each validate."""
    total, many = len(series.times), len(series) >= FEW
    length = MOST if many else min(MOST, max(LEAST, math.ceil(total / PIECES)))
    counts = np.maximum(1, series.lengths // length)
    pieces, owner, number = _cut(series, counts)
    if many or len(pieces) == len(series):
        order = generator((seed, _SPLIT)).permutation(len(series))
        held = order[: max(1, min(CAP, int(SHARE * len(series))))]
        late = np.isin(owner, held)
    else:
        late = (counts[owner] > 1) & (number >= counts[owner] - np.maximum(1, counts[owner] // 5))
    if late.all() or not late.any():
        raise ValueError(
            f"the table must hold at least two series, or one with {2 * LEAST} readings, to train and to calibrate on, "
            f"got {len(series)} with {total}."
        )
    return Parts(pieces.take(np.flatnonzero(~late)), pieces.take(np.flatnonzero(late)))


def _cut(series: SeriesSet, counts: np.ndarray) -> tuple[SeriesSet, np.ndarray, np.ndarray]:
    """Each series in so many pieces of about equal length; whose piece, and which."""
    owner = np.repeat(np.arange(len(series)), counts)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = series.offsets[:-1][owner] + series.lengths[owner] * number // counts[owner]
    offsets = np.append(begins, len(series.times)).astype(np.int64)
    return dataclasses.replace(series, offsets=offsets, ids=tuple(series.ids[i] for i in owner)), owner, number


def default_options(model: str, variables: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """A state that grows with the root of the number of variables: 10 for up to 8, 22 for 37, at most 32.

    The variance of the output goes through softplus: with the square of the paper a training now and then runs away,
    when a raw output passes through zero.
    """
    size = 2 * min(16, max(5, math.ceil(math.sqrt(3 * variables))))
    own = {"hidden_size": size, "variance_map": "softplus"}
    known = {field.name for field in dataclasses.fields(entry(model).model.Config) if field.default is None}
    return {name: value for name, value in own.items() if name in known} | dict(options)


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
    validation = practice(parts.validation, (seed, _VALIDATE))
    first = practice(parts.train, (seed, _TRAIN, 0))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = create(model, spec_of(first, time_scale=TYPICAL_GAP / median_gap(parts.train)), **options)
    engine = Engine()
    made.prepare(Batches(first, training.batch_size, made.dtype, engine.device))
    if made.num_parameters:
        with tempfile.TemporaryDirectory() as folder:
            loop = Loop(
                settings,
                made,
                first,
                validation,
                engine=engine,
                folder=Path(folder),
                listener=listener,
                renew=lambda epoch: practice(parts.train, (seed, _TRAIN, epoch)),
            )
            loop.run()
            made.load_state_dict(under_prefix("model.", read_checkpoint(loop.best)[0]))
    return made.cpu().eval()
