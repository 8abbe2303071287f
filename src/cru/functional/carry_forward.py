"""Last and next observation, running mean, and time since the last observation. Masks broadcast over values."""

from typing import NamedTuple

import torch
from torch import Tensor

from cru.shapes import Bool, Float, Int64


class NearestObservation(NamedTuple):
    """The nearest observation of every entry: its value, its step, and whether there is one."""

    value: Float[Tensor, "batch time *feature"]
    step: Int64[Tensor, "batch time *feature"]
    known: Bool[Tensor, "batch time *feature"]


def last_observation(
    values: Float[Tensor, "batch time *feature"], mask: Bool[Tensor, "batch time *mask"]
) -> NearestObservation:
    """Find the last observation up to each time, that time included.

    >>> from cru.functional.carry_forward import last_observation
    >>> last_observation(torch.tensor([[5.0, 0.0, 7.0]]), torch.tensor([[True, False, True]])).value
    tensor([[5., 5., 7.]])
    """
    mask = mask.expand_as(values)
    steps = torch.arange(mask.shape[1], device=mask.device).reshape(-1, *(1,) * (mask.ndim - 2))
    newest = torch.where(mask, steps, -1).cummax(1).values
    step = newest.clamp(min=0)
    return NearestObservation(values.gather(1, step), step, newest >= 0)


def next_observation(
    values: Float[Tensor, "batch time *feature"], mask: Bool[Tensor, "batch time *mask"]
) -> NearestObservation:
    """Find the first observation from each time on, that time included."""
    value, step, known = last_observation(values.flip(1), mask.expand_as(values).flip(1))
    return NearestObservation(value.flip(1), values.shape[1] - 1 - step.flip(1), known.flip(1))


def running_mean(
    values: Float[Tensor, "batch time *feature"], mask: Bool[Tensor, "batch time *mask"]
) -> tuple[Float[Tensor, "batch time *feature"], Bool[Tensor, "batch time *feature"]]:
    """Compute the mean of the observations up to each time, that time included, and whether there is any."""
    mask = mask.expand_as(values)
    count = mask.cumsum(1)
    return torch.where(mask, values, 0.0).cumsum(1) / count.clamp(min=1), count > 0


def since_last(
    times: Float[Tensor, "batch time"], mask: Bool[Tensor, "batch time feature"]
) -> Float[Tensor, "batch time feature"]:
    """Compute δ of Che et al. 2018: the time since the last earlier observation of a feature, or since the start.

    >>> from cru.functional.carry_forward import since_last
    >>> since_last(torch.tensor([[0.0, 1.0, 3.0]]), torch.tensor([[[True], [False], [True]]]))[0, :, 0]
    tensor([0., 1., 3.])
    """
    elapsed = (times - times[:, :1])[..., None]
    last = torch.where(mask, elapsed, 0.0).cummax(1).values
    return elapsed - torch.cat([torch.zeros_like(last[:, :1]), last[:, :-1]], 1)
