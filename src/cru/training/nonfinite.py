"""The error after repeated non-finite steps."""

import torch
from torch import nn

from cru.data import Batch
from cru.errors import RunError, some
from cru.models import Model


def nonfinite_error(model: Model, batch: Batch, *, epoch: int, number: int, skipped: int) -> RunError:
    """Make an error that names the epoch, the batch, the series and the parameter.

    Args:
        model: the model.
        batch: the batch of the last step.
        epoch: the number of the epoch.
        number: the number of the batch.
        skipped: the number of consecutive non-finite steps.
    """
    return RunError(
        f"training stops at epoch {epoch}, batch {number}: the loss or its gradient was not finite in {skipped} "
        f"consecutive steps. Found: {_series(model, batch)}; {_parameter(model)}. Try a smaller "
        "training.learning_rate, training.clip=1.0 or training.dtype=float64, in a new folder."
    )


def _series(model: Model, batch: Batch) -> str:
    """Name the series without a finite prediction, or all series of the batch."""
    with torch.no_grad():
        prediction = model(batch)
        entries = prediction.mean if prediction.var is None else prediction.mean + prediction.var
        bad = ~entries.flatten(1).isfinite().all(1)
        values = batch.values.flatten(1).isfinite().all(1) & batch.targets.flatten(1).isfinite().all(1)
    chosen = [name for name, wrong, fine in zip(batch.ids, bad, values, strict=True) if wrong or not fine]
    where = f"series {some(chosen, 5)}" if chosen else f"series {some(list(batch.ids), 5)} (all of the batch)"
    return where + ("" if bool(values.all()) else ", whose values are not finite")


def _parameter(model: nn.Module) -> str:
    values = [name for name, p in model.named_parameters() if not bool(p.isfinite().all())]
    grads = [name for name, p in model.named_parameters() if p.grad is not None and not bool(p.grad.isfinite().all())]
    if values:
        return f"the parameter {some(values, 5)} is not finite"
    return f"the gradient of {some(grads, 5)} is not finite" if grads else "all parameters and gradients are finite"
