"""Maps from real to positive numbers, each with its inverse, so that a parameter can have a given initial value."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cru.errors import did_you_mean
from cru.shapes import Float


class Positive(NamedTuple):
    """A map from real to positive numbers, with its inverse.

    >>> from cru.functional import positive
    >>> noise = positive("softplus")
    >>> noise.forward(noise.start(0.1, 3))
    tensor([0.1000, 0.1000, 0.1000])
    """

    name: str
    forward: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]

    def start(
        self, value: float, size: int, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Float[Tensor, " size"]:
        """Return the raw parameter that the map sends to ``value``."""
        return self.inverse(torch.full((size,), value, device=device, dtype=dtype))


_LARGEST_EXPONENT = 69.0  # e^69 is about 1e30, the largest observation variance


def _softplus_inverse(value: Tensor) -> Tensor:
    return value + torch.log(-torch.expm1(-value))


def _exp(value: Tensor) -> Tensor:
    return torch.exp(value.clamp_max(_LARGEST_EXPONENT))


def _elu_plus_one(value: Tensor) -> Tensor:
    return F.elu(value) + 1


def _elu_plus_one_inverse(value: Tensor) -> Tensor:
    return torch.where(value < 1, torch.log(value), value - 1)


_MAPS = {
    "softplus": Positive("softplus", F.softplus, _softplus_inverse),
    "exp": Positive("exp", _exp, torch.log),
    "elu+1": Positive("elu+1", _elu_plus_one, _elu_plus_one_inverse),
    "square": Positive("square", torch.square, torch.sqrt),
    "relu": Positive("relu", F.relu, torch.clone),
}


def positive(name: str) -> Positive:
    """Return the map of this name: `softplus`, `exp`, `elu+1`, `square` or `relu`.

    Raises:
        ValueError: the name is unknown.
    """
    if name not in _MAPS:
        raise ValueError(f"a positive map must be a known one, got {name!r}; {did_you_mean(name, _MAPS)}")
    return _MAPS[name]
