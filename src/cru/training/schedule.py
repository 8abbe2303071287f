"""The learning rate as a pure function of the step, so that there is nothing to store."""

import math

from cru.training.settings import TrainingSettings


def learning_rate(settings: TrainingSettings, step: int, steps: int) -> float:
    """The rate of step ``step`` of ``steps``, both counted from 0.

    >>> learning_rate(TrainingSettings(learning_rate=0.1, schedule="cosine", floor=0.0), 50, 101)
    0.05
    """
    rate, floor = settings.learning_rate, settings.floor * settings.learning_rate
    if step < settings.warmup:
        return rate * (step + 1) / (settings.warmup + 1)
    if settings.schedule == "exponential":
        return max(rate * settings.decay ** (step - settings.warmup), floor)
    if settings.schedule == "cosine":
        done = (step - settings.warmup) / max(1, steps - 1 - settings.warmup)
        return floor + (rate - floor) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    if settings.schedule == "step" and step * settings.epochs >= settings.decay_epoch * steps:
        return rate * settings.decay
    return rate
