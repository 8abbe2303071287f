"""What a series has shown so far, feature by feature: for how long nothing, and what the last value was."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


def since_last(
    times: Float[Tensor, "batch time"], mask: Bool[Tensor, "batch time feature"]
) -> Float[Tensor, "batch time feature"]:
    """δ of Che et al. 2018: time since a feature was last observed, before the time itself; else since the start.

    >>> since_last(torch.tensor([[0.0, 1.0, 3.0]]), torch.tensor([[[True], [False], [True]]]))[0, :, 0]
    tensor([0., 1., 3.])
    """
    elapsed = (times - times[:, :1])[..., None]
    last = torch.where(mask, elapsed, 0.0).cummax(1).values
    return elapsed - torch.cat([torch.zeros_like(last[:, :1]), last[:, :-1]], 1)


def last_value(
    values: Float[Tensor, "batch time feature"],
    mask: Bool[Tensor, "batch time feature"],
    default: Float[Tensor, " feature"],
) -> Float[Tensor, "batch time feature"]:
    """The value of the last observation at or before each time, feature by feature; ``default`` before the first.

    >>> values, mask = torch.tensor([[[1.0], [0.0], [3.0]]]), torch.tensor([[[False], [False], [True]]])
    >>> last_value(values, mask, torch.tensor([7.0]))[0, :, 0]
    tensor([7., 7., 3.])
    """
    last = last_step(mask)
    return torch.where(last >= 0, values.gather(1, last.clamp(min=0)), default)


def last_step(mask: Bool[Tensor, "batch time feature"]) -> Int64[Tensor, "batch time feature"]:
    """The position of the last observation at or before each time, -1 before the first."""
    steps = torch.arange(mask.shape[1], device=mask.device)[None, :, None]
    return torch.where(mask, steps, -1).cummax(1).values
