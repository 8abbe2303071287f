"""What a series has shown so far: last and next value, running mean, time since. Masks broadcast over their values."""

from typing import NamedTuple

import torch
from torch import Tensor

from cru.shapes import Bool, Float, Int64


class Seen(NamedTuple):
    """A value for every time and entry, where it was measured, and whether there is one at all."""

    value: Float[Tensor, "batch time *feature"]
    step: Int64[Tensor, "batch time *feature"]
    known: Bool[Tensor, "batch time *feature"]


def last_seen(values: Float[Tensor, "batch time *feature"], mask: Bool[Tensor, "batch time *mask"]) -> Seen:
    """The newest observation up to each time, that time included.

    >>> last_seen(torch.tensor([[5.0, 0.0, 7.0]]), torch.tensor([[True, False, True]])).value
    tensor([[5., 5., 7.]])
    """
    mask = mask.expand_as(values)
    steps = torch.arange(mask.shape[1], device=mask.device).reshape(-1, *(1,) * (mask.ndim - 2))
    newest = torch.where(mask, steps, -1).cummax(1).values
    step = newest.clamp(min=0)
    return Seen(values.gather(1, step), step, newest >= 0)


def next_seen(values: Float[Tensor, "batch time *feature"], mask: Bool[Tensor, "batch time *mask"]) -> Seen:
    """The first observation from each time on, that time included."""
    value, step, known = last_seen(values.flip(1), mask.expand_as(values).flip(1))
    return Seen(value.flip(1), values.shape[1] - 1 - step.flip(1), known.flip(1))


def running_mean(
    values: Float[Tensor, "batch time *feature"], mask: Bool[Tensor, "batch time *mask"]
) -> tuple[Float[Tensor, "batch time *feature"], Bool[Tensor, "batch time *feature"]]:
    """The mean of the observations up to each time, that time included, and whether there is one."""
    mask = mask.expand_as(values)
    count = mask.cumsum(1)
    return torch.where(mask, values, 0.0).cumsum(1) / count.clamp(min=1), count > 0


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
