"""What the two variational models share: a Gaussian code, its divergence from the prior, and how that is annealed."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cru.functional.divergence import standard_normal_kl
from cru.models.base import Batch, Prediction
from cru.models.steady import SteadyConfig, SteadyModel

_LOG_VARIANCE_LIMIT = 20.0


@dataclass(frozen=True, kw_only=True)
class VariationalConfig(SteadyConfig):
    """How the lower bound is estimated and annealed."""

    samples: int = 1  # draws of the code for each series, in the loss and in the intermediates
    annealing: float = 0.5  # share of the training over which the weight of the divergence grows from 0 to 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("samples")
        self.check_not_negative("annealing")


class Code(NamedTuple):
    """q(z | series), a Gaussian with independent entries."""

    mean: Float[Tensor, "batch *code"]
    log_var: Float[Tensor, "batch *code"]

    @staticmethod
    def split(raw: Float[Tensor, "batch *any"]) -> "Code":
        """From (..., 2 × latent) raw outputs; the log variance is held between -20 and 20."""
        mean, log_var = raw.chunk(2, -1)
        return Code(mean, _LOG_VARIANCE_LIMIT * torch.tanh(log_var / _LOG_VARIANCE_LIMIT))

    def sample(self) -> Float[Tensor, "batch *code"]:
        """A draw for every series."""
        return self.mean + (0.5 * self.log_var).exp() * torch.randn_like(self.mean)

    def kl(self) -> Float[Tensor, " batch"]:
        """KL(q ‖ N(0, I)) of each series."""
        return standard_normal_kl(self.mean, self.log_var).flatten(1).sum(-1)


class VariationalModel(SteadyModel):
    """A model that encodes a series into a `Code` and decodes predictions from a draw of it.

    A prediction is decoded from the mean of the code, so it does not change from call to call; its variance is the
    decoder's own head. The loss is the negative evidence lower bound per time point, on draws, with the divergence
    annealed through ``progress``.
    """

    causal: ClassVar[bool] = False
    config: "VariationalConfig"

    def encode(self, batch: Batch) -> Code:
        """q(z | batch)."""
        raise TypeError("VariationalModel is a base class: use cru.models.create")

    def decode(self, code: Tensor, batch: Batch) -> Prediction:
        """Mean and variance at the times of ``batch``."""
        raise TypeError("VariationalModel is a base class: use cru.models.create")

    def forward(self, batch: Batch, *, intermediates: bool = False) -> Prediction:
        """Decode the mean of the code. On request also ``code``, and as ``samples`` the means of draws of it."""
        code = self.encode(batch)
        prediction = self.decode(code.mean, batch)
        if not intermediates:
            return prediction
        draws = [self.decode(code.sample(), batch).mean for _ in range(self.config.samples)]
        return prediction._replace(intermediates={"code": code, "samples": torch.stack(draws)})

    def loss(self, batch: Batch, *, progress: float = 1.0) -> Float[Tensor, ""]:
        """E_q[-log p(targets | z)] + weight · KL(q ‖ N(0, I)), per time point with a target."""
        code, samples = self.encode(batch), self.config.samples
        nll = torch.stack([self.steady_nll(self.decode(code.sample(), batch), batch) for _ in range(samples)]).mean()
        points = batch.target_mask.flatten(2).any(-1)
        divergence = torch.where(points.any(1), code.kl(), 0.0).sum() / points.sum().clamp(min=1)
        return nll + kl_weight(progress, self.config.annealing) * divergence


def kl_weight(progress: float, annealing: float) -> float:
    """From 0 up to 1 over the first ``annealing`` of the training.

    >>> [kl_weight(progress, 0.5) for progress in (0.0, 0.25, 0.5, 1.0)]
    [0.0, 0.5, 1.0, 1.0]
    """
    return min(1.0, progress / annealing) if annealing > 0 else 1.0
