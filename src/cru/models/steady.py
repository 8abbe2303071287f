"""What models share whose mean is fitted with a noise that is fixed, as their papers have it."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from cru.models.base import Batch, Model, Prediction
from cru.models.options import Config


@dataclass(frozen=True, kw_only=True)
class SteadyConfig(Config):
    """How far targets are taken to be from the mean."""

    target_noise: float = 0.01  # standard deviation, in the units of the (scaled) targets

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("target_noise")


class SteadyModel(Model):
    """The mean is trained as if targets lay around it with one fixed variance, that is, on the squared error; the
    variance that the model says is trained beside it, on the likelihood of what the mean leaves over."""

    config: "SteadyConfig"

    def loss(self, batch: Batch, *, progress: float = 1.0) -> Float[Tensor, ""]:
        """For the mean, and for the variance."""
        return self.steady_nll(self(batch), batch)

    def steady_nll(self, prediction: Prediction, batch: Batch) -> Float[Tensor, ""]:
        """The sum of both; the likelihood alone where it is Bernoulli."""
        if prediction.var is None:
            return self.nll(prediction, batch)
        fixed = prediction._replace(var=torch.full_like(prediction.var, self.config.target_noise**2))
        return self.nll(fixed, batch) + self.nll(prediction._replace(mean=prediction.mean.detach()), batch)
