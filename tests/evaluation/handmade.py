"""Outputs without a model."""

import numpy as np

from cru.data.random import generator
from cru.evaluation.evaluate import SeriesPrediction


def output(times, targets, mean, std=None, *, mask=None, hidden=None, gain=None, noise=None, name="s"):
    """Features (time, channel); seen everywhere unless ``mask`` says otherwise."""
    times, targets, mean = np.asarray(times, float), np.asarray(targets, float), np.asarray(mean, float)
    mask = np.ones(targets.shape, bool) if mask is None else np.asarray(mask)
    hidden = ~mask if hidden is None else hidden
    values = np.where(mask, targets, 0.0)
    std = None if std is None else np.broadcast_to(np.asarray(std, float), targets.shape)
    everything = np.ones(targets.shape, bool)
    return SeriesPrediction(name, times, values, mask, targets, everything, hidden, mean, std, gain, noise)


def weather(days: int = 730, features: int = 5, *, seed: int = 0, name: str = "USC00000000") -> SeriesPrediction:
    """As large as a station of USHCN, half of it withheld."""
    rng = generator(seed, "test")
    targets = rng.standard_normal((days, features)) * 10
    mask = np.repeat((np.arange(days) < days // 2)[:, None], features, 1)
    gain = np.where(mask[:, 0], rng.random(days), np.nan)
    mean = targets + rng.standard_normal(targets.shape)
    return output(
        np.arange(days) * 2.0, targets, mean, 1.0 + rng.random(targets.shape), mask=mask, gain=gain, name=name
    )


def frames(count: int = 20, *, seed: int = 0, noisy: bool = True, name: str = "0000") -> SeriesPrediction:
    """A sequence of images with two labels each."""
    rng = generator(seed, "test")
    images, labels = rng.random((count, 1, 24, 24)), rng.standard_normal((count, 2))
    noise = np.linspace(0, 1, count) if noisy else np.zeros(count)
    times = np.cumsum(rng.integers(1, 4, count)).astype(float)
    mask, known = np.ones((count, 1, 1, 1), bool), np.ones((count, 2), bool)
    std = np.full((count, 2), 0.5)
    return SeriesPrediction(name, times, images, mask, labels, known, ~known, labels + 0.1, std, 3 - 2 * noise, noise)


def filled_in(count: int = 30, *, seed: int = 0, name: str = "0000") -> SeriesPrediction:
    """A sequence of images half of which were withheld, with a prediction of each."""
    rng = generator(seed, "test")
    images = rng.random((count, 1, 24, 24))
    mask = (rng.random(count) < 0.5).reshape(-1, 1, 1, 1)
    known = np.ones_like(mask)
    seen = np.where(mask, images, 0.0)
    return SeriesPrediction(
        name, np.arange(count) * 1.0, seen, mask, images, known, ~mask, images * 0.5, None, None, None
    )
