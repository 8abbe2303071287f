"""What models take from a training set besides gradients."""

from collections.abc import Iterable

import torch
from jaxtyping import Float64
from torch import Tensor

from cru.models.base import Batch


def feature_moments(
    batches: Iterable[Batch],
) -> tuple[Float64[Tensor, " entries"], Float64[Tensor, " entries"]]:
    """Mean and standard deviation of each input entry over all that is observed; 0 and 1 for one that never is, and a
    standard deviation of 1 for one that never changes."""
    count = total = square = torch.zeros((), dtype=torch.float64)
    for batch in batches:
        mask = batch.mask.expand_as(batch.values).flatten(2)
        seen = torch.where(mask, batch.values.flatten(2), 0.0).double()
        count = count + mask.sum((0, 1)).cpu()
        total, square = total + seen.sum((0, 1)).cpu(), square + seen.square().sum((0, 1)).cpu()
    mean = total / count.clamp(min=1)
    variance = square / count.clamp(min=1) - mean.square()
    varies = variance > 1e-12 * (1 + mean.square())
    return mean, torch.where(varies, variance, 1.0).sqrt()
