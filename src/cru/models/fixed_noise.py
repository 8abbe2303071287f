"""What models share whose mean is fitted with a noise that is fixed, as their papers have it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cru.functional.likelihood import bernoulli_nll, gaussian_nll
from cru.models.base import BatchLike, Model, Prediction
from cru.models.config import ModelConfig
from cru.shapes import Float


@dataclass(frozen=True, kw_only=True)
class FixedNoiseConfig(ModelConfig):
    """How far targets are taken to be from the mean."""

    target_noise: float = 0.01  # standard deviation, in the units of the (scaled) targets

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("target_noise")


class FixedNoiseModel(Model):
    """The mean is trained as if targets lay around it with one fixed variance, that is, on the squared error; the
    variance that the model says is trained beside it, on the likelihood of what the mean leaves over."""

    config: "FixedNoiseConfig"

    def loss(self, batch: BatchLike, *, progress: float = 1.0) -> Float[Tensor, ""]:
        """For the mean, and for the variance."""
        return self.fixed_noise_nll(self(batch), batch)

    def fixed_noise_nll(self, prediction: Prediction, batch: BatchLike) -> Float[Tensor, ""]:
        """The sum of both; the likelihood alone where it is Bernoulli."""
        return self.nll(self._fixed(prediction), batch) + self.variance_nll(prediction, batch)

    def variance_nll(self, prediction: Prediction, batch: BatchLike) -> Float[Tensor, ""]:
        """The likelihood that trains the variance and not the mean; 0 where there is no variance."""
        if prediction.var is None:
            return prediction.mean.new_zeros(())
        return self.nll(prediction._replace(mean=prediction.mean.detach()), batch)

    def fixed_log_likelihood(self, prediction: Prediction, batch: BatchLike) -> Float[Tensor, " batch"]:
        """log p(targets) of each series with the fixed noise, summed over time points."""
        mean, var = self._fixed(prediction)[:2]
        targets, mask = self.targets(batch).to(mean.dtype), batch.target_mask
        nll = bernoulli_nll(targets, mean, mask) if var is None else gaussian_nll(targets, mean, var, mask)
        return -nll.sum(-1)

    def _fixed(self, prediction: Prediction) -> Prediction:
        if prediction.var is None:
            return prediction
        return prediction._replace(var=torch.full_like(prediction.var, self.config.target_noise**2))
