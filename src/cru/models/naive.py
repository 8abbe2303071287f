"""Models that learn next to nothing: the honest floor under every table of results."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cru.functional.carry_forward import last_seen, next_seen, running_mean
from cru.layers.checks import require
from cru.models.base import BatchLike, Model, Prediction, Spec
from cru.models.config import ModelConfig
from cru.shapes import Float


@dataclass(frozen=True, kw_only=True)
class NaiveConfig(ModelConfig):
    """Nothing to choose."""


class Naive(Model):
    """A rule for the mean; the variance is that of the rule's errors on the training set. `prepare` finds both."""

    Config: ClassVar[type] = NaiveConfig
    mean: Tensor
    var: Tensor

    def __init__(self, spec: Spec, config: NaiveConfig) -> None:
        super().__init__(spec, config)
        self.register_buffer("mean", torch.zeros(spec.target_shape))
        self.register_buffer("var", torch.ones(spec.target_shape))

    def rule(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """What to predict."""
        raise TypeError("Naive is a base class: use cru.models.create")

    def prepare(self, batches: Iterable[BatchLike]) -> None:
        """The mean of each target entry over the training set, then the rule's mean squared error."""
        kept = batches if isinstance(batches, Sequence) else list(batches)  # it is gone through twice
        self.mean.copy_(self._average(kept, self.targets))
        self.find(kept)
        self.var.copy_(self._average(kept, lambda batch: (self.targets(batch) - self.rule(batch)).square()))

    def find(self, batches: Sequence[BatchLike]) -> None:
        """What else the rule takes from the training set."""

    def forward(self, batch: BatchLike, *, intermediates: bool = False) -> Prediction:
        """The rule, with the same variance at all times."""
        mean = self.rule(batch)
        if self.spec.likelihood == "bernoulli":
            return Prediction(mean.clamp(0, 1))
        return Prediction(mean, self.var.expand_as(mean))

    @staticmethod
    def _average(batches: Sequence[BatchLike], of: Callable[[BatchLike], Tensor]) -> Tensor:
        """The mean of a quantity of each target entry over all batches, counting masked-in entries only."""
        total = count = torch.zeros((), dtype=torch.float64)
        for batch in batches:
            mask = batch.target_mask.expand_as(batch.targets)
            total = total + torch.where(mask, of(batch).double(), 0.0).sum((0, 1))
            count = count + mask.sum((0, 1))
        return total / count.clamp(min=1)


class Mean(Naive):
    """The mean of the training set."""

    def rule(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """The same everywhere."""
        return self.mean.expand(*batch.times.shape, *self.spec.target_shape)


class Echo(Naive):
    """Rules that repeat what went in, so they need targets that are the inputs."""

    def __init__(self, spec: Spec, config: NaiveConfig) -> None:
        super().__init__(spec, config)
        if not spec.targets_are_inputs:
            raise ValueError(
                f"{type(self).__name__} predicts the inputs themselves, of the shape {spec.input_shape}, got a "
                f"regression to targets of the shape {spec.target_shape}: take 'mean'."
            )


class SeriesMean(Echo):
    """The mean of the series so far, else of the training set."""

    def rule(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """Up to and including each time."""
        mean, known = running_mean(self.inputs(batch), batch.mask)
        return torch.where(known, mean, self.mean)


class LastValue(Echo):
    """The last value seen, else the mean of the training set."""

    def rule(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """Up to and including each time."""
        last = last_seen(self.inputs(batch), batch.mask)
        return torch.where(last.known, last.value, self.mean)


class Linear(Echo):
    """Linear interpolation between the values before and after; beyond either end the nearest one."""

    causal: ClassVar[bool] = False

    def rule(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """Through every observation."""
        values = self.inputs(batch)
        last, following = last_seen(values, batch.mask), next_seen(values, batch.mask)
        times = batch.times.reshape(*batch.times.shape, *(1,) * (values.ndim - 2)).expand(values.shape)
        start, end = times.gather(1, last.step), times.gather(1, following.step)
        share = torch.where(end > start, (times - start) / (end - start), 0.0).to(values.dtype)
        between = last.value + share * (following.value - last.value)
        either = torch.where(last.known, last.value, torch.where(following.known, following.value, self.mean))
        return torch.where(last.known & following.known, between, either)


@dataclass(frozen=True, kw_only=True)
class BlendConfig(NaiveConfig):
    """Shares of the last value and of the series mean; the rest is the mean of the training set."""

    last: float = 0.3
    series: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_not_negative("last", "series")
        together = self.last + self.series
        require(together <= 1 + 1e-9, f"`last` and `series` must be shares, together at most 1, got {together}.")


class Blend(Echo):
    """A weighted mean of the last value, the series mean and the mean of the training set."""

    Config: ClassVar[type] = BlendConfig
    config: BlendConfig

    def rule(self, batch: BatchLike) -> Float[Tensor, "batch time *target"]:
        """All of the mean, where nothing has been seen."""
        values = self.inputs(batch)
        last, (mean, known) = last_seen(values, batch.mask).value, running_mean(values, batch.mask)
        a, b = self.config.last, self.config.series
        return torch.where(known, a * last + b * mean + (1 - a - b) * self.mean, self.mean)
