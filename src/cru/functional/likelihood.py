"""The two training losses of the paper, with masks: Gaussian (eq. 15) and Bernoulli (eq. 16)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from cru.shapes import Bool, Float

VARIANCE_FLOOR = 1e-6
_LOG_2_PI = 1.8378770664093453


def gaussian_nll(
    targets: Float[Tensor, "batch time *target"],
    mean: Float[Tensor, "batch time *target"],
    var: Float[Tensor, "batch time *target"],
    mask: Bool[Tensor, "batch time *mask"],
    weight: Float[Tensor, "batch time *target"] | float = 1.0,
) -> Float[Tensor, "batch time"]:
    """Compute -log N(targets | mean, var), summed over the target entries where ``mask`` is True.

    Args:
        targets: the targets.
        mean: the predicted means.
        var: the predicted variances. Those below `VARIANCE_FLOOR` are set to it.
        mask: True where a target counts.
        weight: the factor on each entry.

    >>> from cru.functional import gaussian_nll
    >>> ones = torch.ones(1, 1, 2)
    >>> gaussian_nll(ones, ones, ones, ones.bool())
    tensor([[1.8379]])
    """
    var = clamp_value(var, VARIANCE_FLOOR)
    error = torch.where(mask, targets - mean, 0.0)
    return summed(0.5 * weight * (_LOG_2_PI + var.log() + error.square() / var), mask)


def bernoulli_nll(
    targets: Float[Tensor, "batch time *target"],
    probability: Float[Tensor, "batch time *target"],
    mask: Bool[Tensor, "batch time *mask"],
) -> Float[Tensor, "batch time"]:
    """Compute -x log p - (1 - x) log(1 - p), summed over the target entries where ``mask`` is True.

    The logarithms are at least -100, so p = 0 and p = 1 are allowed. The result for NaN is NaN.

    Args:
        targets: x, also grey values between 0 and 1.
        probability: p.
        mask: True where a target counts.
    """
    counted = torch.where(mask, targets, 0.0)
    entries = F.binary_cross_entropy(probability.nan_to_num(0.5), counted, reduction="none")
    return summed(torch.where(probability.isnan(), probability, entries), mask)


def clamp_value(x: Float[Tensor, "*shape"], low: float, high: float | None = None) -> Float[Tensor, "*shape"]:
    """Clamp the value of ``x`` to [low, high] but not its gradient, so that training can move it inside the bounds.

    >>> from cru.functional.likelihood import clamp_value
    >>> x = torch.tensor([-2.0, 0.5], requires_grad=True)
    >>> clamp_value(x, 0.0).sum().backward()
    >>> x.grad
    tensor([1., 1.])
    """
    return x.clamp(low, high).detach() + (x - x.detach())


def mean_over_times(nll: Float[Tensor, "batch time"], mask: Bool[Tensor, "batch time *mask"]) -> Float[Tensor, ""]:
    """Average over all time points of all series that have a target. Without any target, return 0."""
    return nll.sum() / mask.flatten(2).any(-1).sum().clamp(min=1)


def summed(
    entries: Float[Tensor, "batch time *target"], mask: Bool[Tensor, "batch time *mask"]
) -> Float[Tensor, "batch time"]:
    """Sum the entries where ``mask`` is True, at each time."""
    return torch.where(mask, entries, 0.0).flatten(2).sum(-1)
