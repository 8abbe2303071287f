"""The mode of a module, training or not."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """``module`` in evaluation mode, and afterwards each part of it in the mode in which it was.

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
