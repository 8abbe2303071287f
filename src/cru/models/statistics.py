"""Statistics of a training set."""

from collections.abc import Iterable

import torch
from torch import Tensor

from cru.models.base import BatchLike
from cru.shapes import Float64


def feature_moments(
    batches: Iterable[BatchLike],
) -> tuple[Float64[Tensor, " entries"], Float64[Tensor, " entries"]]:
    """Compute mean and standard deviation of each input entry over its observations.

    An entry without observations has the mean 0. It has a standard deviation of 1, as has a constant entry.
    """
    count = total = square = shift = torch.zeros((), dtype=torch.float64)
    for batch in batches:
        mask = batch.mask.expand_as(batch.values).flatten(2).cpu()
        seen = torch.where(mask, batch.values.flatten(2).cpu().double(), 0.0)
        # Without the first value of each entry, the variance is accurate for a large mean.
        if count.ndim == 0 or bool((count == 0).any()):
            first = seen.flatten(0, 1)[mask.flatten(0, 1).int().argmax(0), torch.arange(mask.shape[-1])]
            shift = torch.where(count == 0, first, shift)
        moved = torch.where(mask, seen - shift, 0.0)
        count, total = count + mask.sum((0, 1)), total + moved.sum((0, 1))
        square = square + moved.square().sum((0, 1))
    mean = total / count.clamp(min=1)
    variance = square / count.clamp(min=1) - mean.square()
    varies = variance > 1e-12 * mean.square()
    return shift + mean, torch.where(varies, variance, 1.0).sqrt()
