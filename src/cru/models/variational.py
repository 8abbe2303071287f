"""The base class of the variational models: a Gaussian code, and its annealed divergence from the prior."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from cru.functional.divergence import standard_normal_kl
from cru.models.base import BatchLike, Prediction
from cru.models.fixed_noise import FixedNoiseConfig, FixedNoiseModel
from cru.shapes import Float

_LOG_VARIANCE_LIMIT = 20.0  # of the absolute value
_KL_FREE_PERCENT = 10  # first part of the training, in which the weight of the divergence is 0


@dataclass(frozen=True, kw_only=True)
class VariationalConfig(FixedNoiseConfig):
    """Options of the estimate of the lower bound."""

    samples: int = 3  # draws of the code for each series, in the loss and in the intermediates
    annealing: float = 0.99  # the weight of the divergence is 1 - annealing^n; with 0 it is always 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("samples")
        self.check_shares("annealing")


class LatentDistribution(NamedTuple):
    """The distribution q(z | series), a Gaussian with independent entries."""

    mean: Float[Tensor, "batch *code"]
    log_var: Float[Tensor, "batch *code"]

    @staticmethod
    def split(raw: Float[Tensor, "batch *any"]) -> "LatentDistribution":
        """Make a code from raw outputs (..., 2 × latent). The log variance is between -20 and 20."""
        mean, log_var = raw.chunk(2, -1)
        return LatentDistribution(mean, _LOG_VARIANCE_LIMIT * torch.tanh(log_var / _LOG_VARIANCE_LIMIT))

    def sample(self) -> Float[Tensor, "batch *code"]:
        """Draw one code for every series."""
        return self.mean + (0.5 * self.log_var).exp() * torch.randn_like(self.mean)

    def log_ratio(self, draw: Float[Tensor, "batch *code"]) -> Float[Tensor, " batch"]:
        """Compute log N(draw | 0, I) - log q(draw) of each series, one term of the importance weight."""
        error = (draw - self.mean).square() * (-self.log_var).exp()
        return 0.5 * (error + self.log_var - draw.square()).flatten(1).sum(-1)

    def kl(self) -> Float[Tensor, " batch"]:
        """Compute KL(q ‖ N(0, I)) of each series."""
        return standard_normal_kl(self.mean, self.log_var).flatten(1).sum(-1)


class VariationalModel(FixedNoiseModel):
    """A model that encodes a series into a `LatentDistribution` and decodes predictions from it.

    A prediction uses the mean of the code, so it is deterministic. The loss is the negative evidence lower bound per
    time point, estimated from draws of the code, with an annealed divergence.
    """

    causal: ClassVar[bool] = False
    config: "VariationalConfig"

    def encode(self, batch: BatchLike) -> LatentDistribution:
        """Compute q(z | batch)."""
        raise TypeError("VariationalModel is a base class: use cru.models.create")

    def decode(self, code: Tensor, batch: BatchLike) -> Prediction:
        """Predict mean and variance at the times of ``batch``."""
        raise TypeError("VariationalModel is a base class: use cru.models.create")

    def forward(self, batch: BatchLike, *, intermediates: bool = False) -> Prediction:
        """Decode the mean of the code. On request, return also ``code`` and the means of its draws as ``samples``."""
        code = self.encode(batch)
        prediction = self.decode(code.mean, batch)
        if not intermediates:
            return prediction
        draws = [self.decode(code.sample(), batch).mean for _ in range(self.config.samples)]
        return prediction._replace(intermediates={"code": code, "samples": torch.stack(draws)})

    def loss(self, batch: BatchLike, *, progress: float = 1.0) -> Float[Tensor, ""]:
        """Compute E_q[-log p(targets | z)] + weight · KL(q ‖ N(0, I)), per time point with a target."""
        code, samples = self.encode(batch), self.config.samples
        nll = torch.stack(
            [self.fixed_noise_nll(self.decode(code.sample(), batch), batch) for _ in range(samples)]
        ).mean()
        points = batch.target_mask.flatten(2).any(-1)
        divergence = torch.where(points.any(1), code.kl(), 0.0).sum() / points.sum().clamp(min=1)
        return nll + kl_weight(progress, self.config.annealing) * divergence


def kl_weight(progress: float, annealing: float) -> float:
    """Return 1 - annealing^n, where n is the number of per cent of the training after the first ten.

    With 100 epochs, the weight is 0 for ten epochs, then 1 - 0.99^n (Rubanova et al. 2019).

    >>> from cru.models.variational import kl_weight
    >>> [round(kl_weight(progress, 0.99), 4) for progress in (0.0, 0.1, 0.11, 1.0)]
    [0.0, 0.0, 0.01, 0.5953]
    """
    return 1.0 - annealing ** max(0, math.floor(100 * progress + 1e-9) - _KL_FREE_PERCENT) if annealing > 0 else 1.0
