"""Naive baselines without training, for comparison in every table of results."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cru.functional.carry_forward import last_observation, next_observation, running_mean
from cru.layers.checks import require
from cru.models.base import BatchLike, Model, Prediction, Spec
from cru.models.config import ModelConfig
from cru.shapes import Float


@dataclass(frozen=True, kw_only=True)
class NaiveConfig(ModelConfig):
    """Options of a naive baseline: none."""


class Naive(Model):
    """Base class of naive baselines: a rule for the mean, with the mean squared error of the training set as variance.

    `prepare` computes both.
    """

    Config: ClassVar[type] = NaiveConfig
    mean: Tensor
    var: Tensor

    def __init__(self, spec: Spec, config: NaiveConfig) -> None:
        super().__init__(spec, config)
        self.register_buffer("mean", torch.zeros(spec.target_shape))
        self.register_buffer("var", torch.ones(spec.target_shape))

    def rule(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """Predict the mean."""
        raise TypeError("Naive is a base class: use cru.models.create")

    def prepare(self, batches: Iterable[BatchLike]) -> None:
        """Compute the mean of each target entry over the training set, then the mean squared error of the rule."""
        kept = batches if isinstance(batches, Sequence) else list(batches)  # two passes
        self.mean.copy_(self._average(kept, self.targets))
        self.fit_rule(kept)
        self.var.copy_(self._average(kept, lambda batch: (self.targets(batch) - self.rule(batch)).square()))

    def fit_rule(self, batches: Sequence[BatchLike]) -> None:
        """Compute further statistics of the training set that the rule needs."""

    def forward(self, batch: BatchLike, *, intermediates: bool = False) -> Prediction:
        """Apply the rule, with the same variance at all times."""
        mean = self.rule(batch)
        if self.spec.likelihood == "bernoulli":
            return Prediction(mean.clamp(0, 1))
        return Prediction(mean, self.var.expand_as(mean))

    @staticmethod
    def _average(batches: Sequence[BatchLike], of: Callable[[BatchLike], Tensor]) -> Tensor:
        """Average a quantity of each target entry over all batches, where the target mask is True."""
        total = count = torch.zeros((), dtype=torch.float64)
        for batch in batches:
            mask = batch.target_mask.expand_as(batch.targets)
            total = total + torch.where(mask, of(batch).double(), 0.0).sum((0, 1))
            count = count + mask.sum((0, 1))
        return total / count.clamp(min=1)


class Mean(Naive):
    """Predict the mean of the training set."""

    def rule(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """Predict the same mean everywhere."""
        return self.mean.expand(*batch.times.shape, *self.spec.target_shape)


class InputRule(Naive):
    """Base class of rules that predict from earlier inputs. The targets must be the inputs."""

    def __init__(self, spec: Spec, config: NaiveConfig) -> None:
        super().__init__(spec, config)
        if not spec.targets_are_inputs:
            raise ValueError(
                f"{type(self).__name__} predicts the inputs themselves, of the shape {spec.input_shape}, got a "
                f"regression to targets of the shape {spec.target_shape}. Use 'mean'."
            )


class SeriesMean(InputRule):
    """Predict the mean of the series so far, or else that of the training set."""

    def rule(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """Predict the mean up to and including each time."""
        mean, known = running_mean(self.inputs(batch), batch.mask)
        return torch.where(known, mean, self.mean)


class LastValue(InputRule):
    """Predict the last observation, or else the mean of the training set."""

    def rule(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """Predict the last observation up to and including each time."""
        last = last_observation(self.inputs(batch), batch.mask)
        return torch.where(last.known, last.value, self.mean)


class Linear(InputRule):
    """Interpolate linearly between the previous and the next observation. At either end, predict the nearest one."""

    causal: ClassVar[bool] = False

    def rule(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """Interpolate between observations."""
        values = self.inputs(batch)
        last, following = last_observation(values, batch.mask), next_observation(values, batch.mask)
        times = batch.times.reshape(*batch.times.shape, *(1,) * (values.ndim - 2)).expand(values.shape)
        start, end = times.gather(1, last.step), times.gather(1, following.step)
        share = torch.where(end > start, (times - start) / (end - start), 0.0).to(values.dtype)
        between = last.value + share * (following.value - last.value)
        either = torch.where(last.known, last.value, torch.where(following.known, following.value, self.mean))
        return torch.where(last.known & following.known, between, either)


@dataclass(frozen=True, kw_only=True)
class BlendConfig(NaiveConfig):
    """Weights of the last value and of the series mean. The rest is the weight of the mean of the training set."""

    last: float = 0.3
    series: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_not_negative("last", "series")
        total = self.last + self.series
        require(total <= 1 + 1e-9, f"`last` + `series` must be at most 1, got {total}.")


class Blend(InputRule):
    """Predict a weighted mean of the last value, the series mean and the mean of the training set."""

    Config: ClassVar[type] = BlendConfig
    config: BlendConfig

    def rule(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """Predict the weighted mean. Without an observation, predict the mean of the training set."""
        values = self.inputs(batch)
        last, (mean, known) = last_observation(values, batch.mask).value, running_mean(values, batch.mask)
        a, b = self.config.last, self.config.series
        return torch.where(known, a * last + b * mean + (1 - a - b) * self.mean, self.mean)
