"""A model on a set of series: its predictions, and its scores."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from cru.data import Batch, SeriesSet
from cru.evaluation.metrics import Scores, Tally
from cru.layers.modes import evaluating
from cru.models import Model, Prediction


def evaluate(
    model: Model,
    series: SeriesSet,
    *,
    batch_size: int = 50,
    device: torch.device | str | None = None,
    share: tuple[int, int] = (0, 1),
    total: Callable[[Tensor], Tensor] | None = None,
) -> Scores:
    """Score a model on series whose task has been chosen. Process ``share[0]`` of ``share[1]`` takes its share of the
    batches; ``total`` adds up over the processes.

    >>> evaluate(model, splits.test)["mse"]  # doctest: +SKIP
    """
    if series.task is None:
        raise ValueError("`series` must have a task: cru.data.interpolation(series), say.")
    tally = Tally(series.target_shape, series.task.likelihood, scored=series.task.scored)
    for batch, prediction in predict(model, series, batch_size=batch_size, device=device, share=share):
        tally.add(prediction, batch)
    if total is not None:
        tally.reduce(total)
    return tally.scores()


@torch.no_grad()
def predict(
    model: Model,
    series: SeriesSet,
    *,
    batch_size: int = 50,
    device: torch.device | str | None = None,
    share: tuple[int, int] = (0, 1),
    intermediates: bool = False,
) -> Iterator[tuple[Batch, Prediction]]:
    """Batches in order with what the model says of them."""
    with evaluating(model):
        for start in range(0, len(series), batch_size)[share[0] :: share[1]]:
            chosen = np.arange(start, min(start + batch_size, len(series)))
            batch = series.batch(chosen, dtype=model.dtype).to(device)
            yield batch, model(batch, intermediates=intermediates)
