"""Temporary evaluation mode of a module."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Set ``module`` to evaluation mode, and restore the mode of each of its submodules afterwards.

    >>> from torch import nn
    >>> from cru.layers.modes import evaluating
    >>> frozen = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).eval())
    >>> with evaluating(frozen):
    ...     frozen.training
    False
    >>> frozen.training, frozen[1].training
    (True, False)
    """
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
