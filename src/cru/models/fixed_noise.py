"""The base class of models that train the mean with a fixed noise variance, as in their papers."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cru.functional.likelihood import bernoulli_nll, gaussian_nll
from cru.models.base import BatchLike, Model, ModelConfig, Prediction
from cru.shapes import Float


@dataclass(frozen=True, kw_only=True)
class FixedNoiseConfig(ModelConfig):
    """The fixed noise of the targets."""

    target_noise: float = 0.01  # standard deviation, in the unit of the scaled targets

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("target_noise")


class FixedNoiseModel(Model):
    """A model that trains its mean with a fixed noise variance, as with the squared error.

    The predicted variance is trained by the likelihood of the residuals, without a gradient for the mean.
    """

    config: "FixedNoiseConfig"

    def loss(self, batch: BatchLike, *, progress: float = 1.0) -> Float[Tensor, ""]:
        """Compute the loss of mean and variance."""
        return self.fixed_noise_nll(self(batch), batch)

    def fixed_noise_nll(self, prediction: Prediction, batch: BatchLike) -> Float[Tensor, ""]:
        """Add the loss of the mean and the loss of the variance. A Bernoulli likelihood has no variance."""
        return self.nll(self._fixed(prediction), batch) + self.variance_nll(prediction, batch)

    def variance_nll(self, prediction: Prediction, batch: BatchLike) -> Float[Tensor, ""]:
        """Compute the loss that trains the variance and not the mean, or 0 if there is no variance."""
        if prediction.var is None:
            return prediction.mean.new_zeros(())
        return self.nll(prediction._replace(mean=prediction.mean.detach()), batch)

    def fixed_log_likelihood(self, prediction: Prediction, batch: BatchLike) -> Float[Tensor, " batch"]:
        """Compute log p(targets) of each series with the fixed noise, summed over time points."""
        mean, var = self._fixed(prediction)[:2]
        targets, mask = self.targets(batch).to(mean.dtype), batch.target_mask
        nll = bernoulli_nll(targets, mean, mask) if var is None else gaussian_nll(targets, mean, var, mask)
        return -nll.sum(-1)

    def _fixed(self, prediction: Prediction) -> Prediction:
        if prediction.var is None:
            return prediction
        return prediction._replace(var=torch.full_like(prediction.var, self.config.target_noise**2))
