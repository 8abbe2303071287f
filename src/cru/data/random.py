"""Explicit random state: one place that turns a seed into a generator."""

import numpy as np


def generator(seed: int | tuple[int, ...]) -> np.random.Generator:
    """PCG64, whose stream numpy keeps the same on every machine. A tuple gives streams of one seed;
    zeros at its end do not count: (7, 0) is the stream of 7."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
