"""Beliefs as one tensor, so that one operation works on all fields. The step classes (`steps.py`) use it.

A packed belief is (…, 5, obs): mean of the upper half, mean of the lower half, upper, side, lower. The side is between
the variances, so that (upper, side), to which the gains belong, and (upper, side, lower) are slices.
"""

import torch
from torch import Tensor

from cru.functional.belief import Belief, bounds, side_slack
from cru.shapes import Bool, Float

UPPER, SIDE, LOWER = 2, 3, 4
"""Positions of the fields after the two halves of the mean."""


def pack(belief: Belief) -> Float[Tensor, "*batch 5 obs"]:
    """Pack a belief into one tensor, without its time."""
    fields = torch.cat([belief.mean, belief.upper, belief.side, belief.lower], -1)
    return fields.view(*fields.shape[:-1], 5, -1)


def unpack(packed: Float[Tensor, "*batch 5 obs"]) -> Belief:
    """Return the fields of a packed belief, as views."""
    obs = packed.shape[-1]
    mean, upper, side, lower = packed.flatten(-2).split_with_sizes([2 * obs, obs, obs, obs], -1)
    return Belief(mean, upper, lower, side)


def finite_(grad: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Make a gradient finite in place, as `finite_gradient` does."""
    limit = bounds(grad.dtype).gradient
    return grad.nan_to_num_(0.0, limit, -limit).clamp_(-limit, limit)


class PackedClamp:
    """`clamp_belief` for packed beliefs.

    Args:
        like: a packed belief of the same size, type and device.
    """

    def __init__(self, like: Float[Tensor, "*batch 5 obs"]) -> None:
        bound = bounds(like.dtype)
        high = [bound.mean, bound.mean, bound.variance, bound.variance, bound.variance]
        low = [-bound.mean, -bound.mean, 0.0, -bound.variance, 0.0]
        ends = torch.tensor([low, high], dtype=like.dtype, device=like.device)
        self.low, self.high = ends[:, :, None].expand(2, 5, like.shape[-1]).contiguous()
        self.slack = side_slack(like.dtype)

    def apply_(self, packed: Float[Tensor, "*batch 5 obs"]) -> None:
        """Clamp in place."""
        torch.clamp(packed, self.low, self.high, out=packed)
        limit, side = self._limit(packed), packed[..., SIDE, :]
        torch.clamp(side, -limit, limit, out=side)

    def inside(self, packed: Float[Tensor, "*batch 5 obs"]) -> Bool[Tensor, "*batch 5 obs"]:
        """Return where a clamped belief passes a gradient: where it is not at a bound."""
        inside: Tensor = packed.abs() < self.high
        side = packed[..., SIDE, :]
        inside[..., SIDE, :] = (side.abs() < self._limit(packed)) | (side == 0)
        return inside

    def _limit(self, packed: Float[Tensor, "*batch 5 obs"]) -> Float[Tensor, "*batch obs"]:
        """Compute the bound of the side: sqrt(upper) sqrt(lower), minus a few units in the last place."""
        upper, lower = packed[..., UPPER::2, :].sqrt().unbind(-2)
        return (upper * lower).mul_(self.slack)
