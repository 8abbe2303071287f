"""The training, by cross-fitting, of the networks that correct a structural model: each leaves out one fold."""

import dataclasses
import math
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cru.compute import evaluating, threads_for
from cru.data import SeriesSet
from cru.data.random import generator
from cru.data.series import group_by_length
from cru.forecaster.masking import FEW_SERIES, make_training_task
from cru.models.corrected import CorrectedModel, Correction, correction_loss
from cru.models.correction_features import CORRECTION, without_observations
from cru.models.mlp import MLPModel
from cru.shapes import Bool, Float, Int64
from cru.training.callbacks import Callback

FOLD = "fold"  # key of the folds in `SeriesSet.per_time`


@dataclass(frozen=True)
class CorrectionTrainingConstants:
    """Constants of the training of the networks."""

    epochs: int = 24
    rows: tuple[int, int] = (20_000, 120_000)  # fewest and most time points of an epoch
    numbers: int = 60_000_000  # most feature entries (time points times features) of an epoch
    longest_segment: int = 500  # most time points of a segment
    validation: int = 30_000  # time points on which an epoch is scored
    batch: int = 512  # time points of an optimizer step
    rate: float = 2e-3
    end_rate: float = 0.02  # of the last step, as a share of `rate`
    betas: tuple[float, float] = (0.9, 0.98)  # of Adam
    decay: float = 1e-2
    warmup: int = 50  # optimizer steps of linear warm-up
    clip: float = 5.0
    observations: int = 300  # in a table with fewer observations, the networks are not trained
    weight_factor: int = 2  # time points that determine the correction weights, as a multiple of `validation`
    weight_candidates: int = 11  # number of candidate correction weights, from 0 to 1
    min_scored: int = 30  # variables with fewer targets do not count in the score of an epoch
    ridge: float = 200.0  # of the linear start, as a number of targets
    shared_weight: int = 200  # targets at which a variable's own correction weight and the common one count equally
    structural_batch: int = 64  # series per batch of the structural model


CORRECTION_TRAINING = CorrectionTrainingConstants()


@dataclass(frozen=True)
class FoldConstants:
    """Constants of the division of a table into folds."""

    blocks_per_fold: int = 8  # approximate number of blocks per fold in each series of a table with few series
    shortest_block: int = 10  # fewest time points of a block


FOLDS = FoldConstants()


class CorrectionRows(NamedTuple):
    """Time points with at least one target, as the networks are trained on them."""

    x: Float[Tensor, "row feature"]  # standardised
    error: Float[Tensor, "row variable"]  # of the structural model, in its standard deviations
    wanted: Bool[Tensor, "row variable"]  # mask of the targets
    fold: Int64[Tensor, " row"]


def with_folds(series: SeriesSet, folds: int, seed: int) -> SeriesSet:
    """Assign a fold to every row.

    All rows of a series share a fold if there are at least `FEW_SERIES` series. Otherwise, the rows of a block of
    consecutive time points share one.

    Args:
        series: the table.
        folds: the number of folds.
        seed: the seed of the random assignment.

    Returns:
        The series with the folds in ``per_time["fold"]``.
    """
    if len(series) >= FEW_SERIES:
        fold = (generator(seed, "folds").permutation(len(series)) % folds)[series.series_index]
    else:
        size = np.maximum(series.lengths // (FOLDS.blocks_per_fold * folds), FOLDS.shortest_block)
        fold = (series.step_index // size[series.series_index] + series.series_index) % folds
    return dataclasses.replace(series, per_time={**series.per_time, FOLD: fold.astype(np.int64)})


def draw_segments(series: SeriesSet, rows: int, longest: int, rng: np.random.Generator) -> SeriesSet:
    """Draw random segments of series, more of them from longer series.

    Args:
        series: the series to draw from.
        rows: approximate total number of time points.
        longest: largest number of time points in a segment.
        rng: source of randomness.
    """
    size = np.minimum(series.lengths, longest)
    weight = np.where(series.lengths > 0, np.maximum(1.0, series.lengths / longest), 0.0)
    typical = float((weight * size).sum() / weight.sum())
    count = max(1, math.ceil(rows / max(typical, 1.0)))
    place = (np.arange(count) + rng.random()) / count * weight.sum()
    chosen = np.minimum(np.searchsorted(np.cumsum(weight), place, side="right"), len(series) - 1)
    return series.excerpts(chosen, rng.integers(0, series.lengths[chosen] - size[chosen] + 1), size[chosen])


@torch.no_grad()
def describe(model: CorrectedModel, task: SeriesSet) -> CorrectionRows:
    """Run the structural model on a training task, and return the time points with targets.

    Targets are the values that the task withholds, and some observed entries that are withheld from the networks only.
    """
    found = []
    for numbers in group_by_length(task.lengths, CORRECTION_TRAINING.structural_batch):
        batch = task.batch(numbers, dtype=model.dtype)
        features, mask = model.features(batch)
        dropped = model.draw_dropped(mask)
        wanted = batch.hidden | dropped
        rows = wanted.any(-1)
        x = ((without_observations(features.x[rows], dropped[rows]) - model.center) / model.scale).to(model.dtype)
        error = torch.where(wanted, (batch.targets - features.mean) / features.std, 0.0)[rows]
        found.append(CorrectionRows(x, error, wanted[rows], batch.extras[FOLD][rows]))
    return CorrectionRows._make(map(torch.cat, zip(*found, strict=True)))


def train_corrections(
    model: CorrectedModel,
    series: SeriesSet,
    *,
    seed: int,
    epochs: int | None = None,
    minutes: float | None = None,
    patience: int | None = None,
    callback: Callback | None = None,
) -> None:
    """Train the networks, and restore the weights of the best epoch.

    Network k is not trained on fold k. So each row has one network that was not trained on it, and all folds contribute
    to the score of an epoch. A single network has only one fold and is trained on all rows.

    If no epoch improves on the structural model, the networks have their initial weights, which correct nothing. After
    the training, `CorrectedModel.correction_weight` is set.

    Args:
        model: a prepared model with a network that has no memory.
        series: scaled series with folds, from `with_folds`.
        seed: the seed of the segments, the training tasks and the order of the rows.
        epochs: the number of epochs. None: the default.
        minutes: the limit of processor time.
        patience: the number of epochs without a better score after which the training stops.
        callback: the callback of the start, of every epoch and of the end.
    """
    callback = callback or Callback()
    epochs = epochs or CORRECTION_TRAINING.epochs
    if int(series.mask.sum()) < CORRECTION_TRAINING.observations:
        return
    most = max(CORRECTION_TRAINING.batch, CORRECTION_TRAINING.numbers // len(model.center))
    size = int(np.clip(len(series.times), CORRECTION_TRAINING.rows[0], min(CORRECTION_TRAINING.rows[1], most)))
    started, best, waited = time.process_time(), math.inf, 0
    with threads_for(0), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        rows = _draw(model, series, min(CORRECTION_TRAINING.validation, most), (seed, 0), "correction validation")
        best, kept = _score(model, rows), _copy(model)
        optimizer = torch.optim.AdamW(
            model.network.parameters(),
            CORRECTION_TRAINING.rate,
            betas=CORRECTION_TRAINING.betas,
            weight_decay=CORRECTION_TRAINING.decay,
        )
        callback.on_start(epochs, 1, [])
        try:
            for epoch in range(epochs):
                begun = time.perf_counter()
                drawn = _draw(model, series, size, (seed, epoch), "correction windows")
                if epoch == 0 and model.config.inputs:
                    _start_linear(model, drawn)
                loss = _epoch(model, drawn, optimizer, epoch, epochs)
                score = _score(model, rows)
                better = score < best
                best, kept = (score, _copy(model)) if better else (best, kept)
                waited = 0 if better else waited + 1
                scored = {"scored": "hidden", "hidden": {"nll": score}}
                record = {"epoch": epoch + 1, "loss": loss, "validation": scored}
                callback.on_epoch(record | {"seconds": time.perf_counter() - begun}, better=better)
                spent = time.process_time() - started
                if callback.should_stop():
                    break
                if (minutes is not None and spent > 60 * minutes) or (patience is not None and waited >= patience):
                    break
        finally:
            callback.on_end()
        model.network.load_state_dict(kept)
        size = min(CORRECTION_TRAINING.weight_factor * CORRECTION_TRAINING.validation, most)
        chosen = _draw(model, series, size, (seed, 0), "correction trust")
        _fit_correction_weights(model, chosen)


def _draw(
    model: CorrectedModel,
    series: SeriesSet,
    size: int,
    seed: tuple[int, int],
    stream: str,
) -> CorrectionRows:
    segments = draw_segments(series, size, CORRECTION_TRAINING.longest_segment, generator(seed, stream))
    return describe(model, make_training_task(segments, (*seed, len(stream))))


def _epoch(
    model: CorrectedModel,
    rows: CorrectionRows,
    optimizer: torch.optim.Optimizer,
    epoch: int,
    epochs: int,
) -> float:
    """Train for one epoch and return the mean loss. Each network has its own order of rows and leaves out its fold."""
    pools = [(rows.fold != k).nonzero()[:, 0] for k in range(model.members)]
    pools = [pool if len(pool) else torch.arange(len(rows.fold)) for pool in pools]
    shortest = min(map(len, pools))
    size = min(CORRECTION_TRAINING.batch, shortest)
    steps = shortest // size
    order = torch.stack([pool[torch.randperm(len(pool))[: steps * size]] for pool in pools])
    total, end = 0.0, CORRECTION_TRAINING.end_rate
    model.train()
    for number in range(steps):
        done = epoch * steps + number
        share = 0.5 * (1 + math.cos(math.pi * done / (epochs * steps)))
        for group in optimizer.param_groups:
            group["lr"] = (
                CORRECTION_TRAINING.rate * (end + (1 - end) * share) * min(1.0, (done + 1) / CORRECTION_TRAINING.warmup)
            )
        chosen = order[:, number * size : (number + 1) * size]
        wanted = rows.wanted[chosen]
        weight = model.weight * wanted
        each = correction_loss(rows.error[chosen], model.correct_rows(rows.x[chosen]))
        loss = (each * weight).sum((1, 2)) / weight.sum((1, 2)).clamp(min=1)
        optimizer.zero_grad()
        loss.sum().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.network.parameters(), CORRECTION_TRAINING.clip)
        optimizer.step()
        total += float(loss.detach().mean())
    return total / max(1, steps)


@torch.no_grad()
def _start_linear(model: CorrectedModel, rows: CorrectionRows) -> None:
    """Set the linear part of each network to the ridge regression of the errors on the inputs besides observations.

    A known cause of a variable can explain more than all other features, and a few epochs are not enough to learn it.

    Args:
        model: a model with networks that correct nothing so far.
        rows: the rows of the first epoch.
    """
    network, count, size = model.network, model.config.inputs, rows.x.shape[1]
    assert isinstance(network, MLPModel)
    x = rows.x[:, size - count :].double()
    error = rows.error.double().clamp(-CORRECTION.max_error, CORRECTION.max_error)
    for k in range(model.members):
        among = (rows.fold != k) if (rows.fold != k).any() else torch.ones_like(rows.fold, dtype=torch.bool)
        for variable in range(error.shape[1]):
            wanted = among & rows.wanted[:, variable]
            own, missed = x[wanted], error[wanted, variable]
            square = own.T @ own + CORRECTION_TRAINING.ridge * torch.eye(count, dtype=x.dtype)
            network.skip[k, size - count : size, variable] = torch.linalg.solve(square, own.T @ missed).to(model.dtype)


@torch.no_grad()
def _score(model: CorrectedModel, rows: CorrectionRows) -> float:
    """Return the loss, averaged over variables. The network that is not trained on the fold of a row predicts it."""
    total, count = torch.zeros_like(model.weight), torch.zeros_like(model.weight)
    with evaluating(model):
        for first in range(0, len(rows.fold), CORRECTION.rows_at_once):
            x, error, wanted, fold = (part[first : first + CORRECTION.rows_at_once] for part in rows)
            outputs = model.correct_rows(x.expand(model.members, -1, -1))
            correction = Correction._make(part[fold, torch.arange(len(fold))] for part in outputs)
            total += (correction_loss(error, correction) * wanted).sum(0)
            count += wanted.sum(0)
    often = count >= min(CORRECTION_TRAINING.min_scored, float(count.max()))
    return float((total / count.clamp(min=1))[often].mean())


@torch.no_grad()
def _fit_correction_weights(model: CorrectedModel, rows: CorrectionRows) -> None:
    """Set the share of a correction with the smallest error, for each variable and range of lead times.

    The share of a center minimises the absolute error, and the share of a mean minimises the squared error. The fewer
    targets a variable has in a range, the closer its share is to the common share of all variables.
    """
    shares = torch.linspace(0, 1, CORRECTION_TRAINING.weight_candidates)
    loss = torch.zeros(CORRECTION_TRAINING.weight_candidates, *model.correction_weight.shape)
    count = torch.zeros_like(model.correction_weight[0])
    with evaluating(model):
        for first in range(0, len(rows.fold), CORRECTION.rows_at_once):
            x, error, wanted, fold = (part[first : first + CORRECTION.rows_at_once] for part in rows)
            outputs = model.correct_rows(x.expand(model.members, -1, -1))
            center, mean = (part[fold, torch.arange(len(fold))] for part in outputs[:2])
            place = model.lead_range(x * model.scale + model.center)
            error = error.clamp(-CORRECTION.max_offset, CORRECTION.max_offset)
            for k, share in enumerate(shares):
                missed = (error - share * center).abs(), (error - share * mean).square()
                for number, each in enumerate(missed):
                    loss[k, number].index_add_(0, place, torch.where(wanted, each, 0.0))
            count.index_add_(0, place, wanted.to(count.dtype))
    shared = shares[loss.sum(-1).argmin(0)][..., None]
    weight = count / (count + CORRECTION_TRAINING.shared_weight)
    model.correction_weight.copy_(weight * shares[loss.argmin(0)] + (1 - weight) * shared)


def _copy(model: CorrectedModel) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in model.network.state_dict().items()}
