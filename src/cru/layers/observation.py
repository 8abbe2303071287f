"""Observation models of GRU-ODE-Bayes: the distribution of the inputs, and the two terms of the loss."""

from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from cru.functional.divergence import gaussian_kl
from cru.functional.likelihood import clamp_value
from cru.shapes import Float

LOG_VARIANCE_LIMIT = 10.0  # of the absolute value


@runtime_checkable
class ObservationModel(Protocol):
    """A distribution for each of ``size`` inputs, from raw parameters.

    ``nll`` is the loss before the update. ``posterior_kl`` is the divergence from the observation after the update.
    """

    size: int
    parameters_per_input: ClassVar[int]
    statistics: ClassVar[int]

    def moments(self, raw: Tensor) -> tuple[Tensor, Tensor]: ...  # noqa: D102

    def compare(self, x: Tensor, raw: Tensor) -> Tensor: ...  # noqa: D102

    def nll(self, x: Tensor, raw: Tensor) -> Tensor: ...  # noqa: D102

    def posterior_kl(self, x: Tensor, after: Tensor) -> Tensor: ...  # noqa: D102


class GaussianObservation:
    """A Gaussian with mean and log variance. The log variance is clamped to [-10, 10].

    ``noise`` is the standard deviation of the observation noise.
    """

    parameters_per_input: ClassVar[int] = 2
    statistics: ClassVar[int] = 4

    def __init__(self, size: int, noise: float = 0.01) -> None:
        self.size, self.noise = size, noise

    def split(self, raw: Float[Tensor, "*n parameters"]) -> tuple[Float[Tensor, "*n input"], Float[Tensor, "*n input"]]:
        """Return mean and log variance."""
        mean, log_var = raw.chunk(2, -1)
        return mean, clamp_value(log_var, -LOG_VARIANCE_LIMIT, LOG_VARIANCE_LIMIT)

    def moments(
        self, raw: Float[Tensor, "*n parameters"]
    ) -> tuple[Float[Tensor, "*n input"], Float[Tensor, "*n input"]]:
        """Return mean and variance."""
        mean, log_var = self.split(raw)
        return mean, log_var.exp()

    def compare(self, x: Float[Tensor, "*n input"], raw: Float[Tensor, "*n parameters"]) -> Float[Tensor, "*n input 4"]:
        """Return x, mean, log variance and standardised error."""
        mean, log_var = self.split(raw)
        return torch.stack([x, mean, log_var, (x - mean) * (-0.5 * log_var).exp()], -1)

    def nll(self, x: Float[Tensor, "*n input"], raw: Float[Tensor, "*n parameters"]) -> Float[Tensor, "*n input"]:
        """Compute -log N(x | mean, variance)."""
        mean, var = self.moments(raw)
        return F.gaussian_nll_loss(mean, x, var, full=True, reduction="none")

    def posterior_kl(
        self, x: Float[Tensor, "*n input"], after: Float[Tensor, "*n parameters"]
    ) -> Float[Tensor, "*n input"]:
        """Compute KL(p_post ‖ N(x, noise²))."""
        return gaussian_kl(*self.moments(after), x, torch.full_like(x, self.noise**2))


class BernoulliObservation:
    """A Bernoulli distribution with one logit for each input in [0, 1], observed without noise."""

    parameters_per_input: ClassVar[int] = 1
    statistics: ClassVar[int] = 3

    def __init__(self, size: int) -> None:
        self.size = size

    def moments(
        self, raw: Float[Tensor, "*n parameters"]
    ) -> tuple[Float[Tensor, "*n input"], Float[Tensor, "*n input"]]:
        """Return mean and variance."""
        mean = raw.sigmoid()
        return mean, mean * (1 - mean)

    def compare(self, x: Float[Tensor, "*n input"], raw: Float[Tensor, "*n parameters"]) -> Float[Tensor, "*n input 3"]:
        """Return x, probability and error."""
        mean = raw.sigmoid()
        return torch.stack([x, mean, x - mean], -1)

    def nll(self, x: Float[Tensor, "*n input"], raw: Float[Tensor, "*n parameters"]) -> Float[Tensor, "*n input"]:
        """Compute -x log p - (1 - x) log(1 - p)."""
        return F.binary_cross_entropy_with_logits(raw, x, reduction="none")

    def posterior_kl(
        self, x: Float[Tensor, "*n input"], after: Float[Tensor, "*n parameters"]
    ) -> Float[Tensor, "*n input"]:
        """Compute KL(Bernoulli(x) ‖ p_post). The other direction is infinite for x = 0 and x = 1."""
        entropy = -(torch.xlogy(x, x) + torch.xlogy(1 - x, 1 - x))
        return self.nll(x, after) - entropy
