"""What GRU-ODE-Bayes believes of its inputs: a distribution of each, its errors, and the two parts of the loss."""

from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from cru.functional.divergence import gaussian_kl
from cru.functional.likelihood import clamp_value
from cru.shapes import Float

LOG_VARIANCE_LIMIT = 10.0


@runtime_checkable
class ObservationModel(Protocol):
    """A distribution of each of ``size`` inputs, from raw parameters.

    ``nll`` is what is lost before the update; ``surprise`` the divergence, after it, from the observation.
    """

    size: int
    parameters_per_input: ClassVar[int]
    statistics: ClassVar[int]

    def moments(self, raw: Tensor) -> tuple[Tensor, Tensor]: ...  # noqa: D102

    def compare(self, x: Tensor, raw: Tensor) -> Tensor: ...  # noqa: D102

    def nll(self, x: Tensor, raw: Tensor) -> Tensor: ...  # noqa: D102

    def surprise(self, x: Tensor, after: Tensor) -> Tensor: ...  # noqa: D102


class GaussianObservation:
    """Mean and log variance; the log variance is held between -10 and 10.

    ``noise`` is the standard deviation of the observations themselves.
    """

    parameters_per_input: ClassVar[int] = 2
    statistics: ClassVar[int] = 4

    def __init__(self, size: int, noise: float = 0.01) -> None:
        self.size, self.noise = size, noise

    def split(self, raw: Float[Tensor, "*n parameters"]) -> tuple[Float[Tensor, "*n input"], Float[Tensor, "*n input"]]:
        """Mean and log variance."""
        mean, log_var = raw.chunk(2, -1)
        return mean, clamp_value(log_var, -LOG_VARIANCE_LIMIT, LOG_VARIANCE_LIMIT)

    def moments(
        self, raw: Float[Tensor, "*n parameters"]
    ) -> tuple[Float[Tensor, "*n input"], Float[Tensor, "*n input"]]:
        """Mean and variance."""
        mean, log_var = self.split(raw)
        return mean, log_var.exp()

    def compare(self, x: Float[Tensor, "*n input"], raw: Float[Tensor, "*n parameters"]) -> Float[Tensor, "*n input 4"]:
        """x, mean, log variance, and the error in standard deviations."""
        mean, log_var = self.split(raw)
        return torch.stack([x, mean, log_var, (x - mean) * (-0.5 * log_var).exp()], -1)

    def nll(self, x: Float[Tensor, "*n input"], raw: Float[Tensor, "*n parameters"]) -> Float[Tensor, "*n input"]:
        """-log N(x | mean, variance)."""
        mean, var = self.moments(raw)
        return F.gaussian_nll_loss(mean, x, var, full=True, reduction="none")

    def surprise(
        self, x: Float[Tensor, "*n input"], after: Float[Tensor, "*n parameters"]
    ) -> Float[Tensor, "*n input"]:
        """KL(p_post ‖ N(x, noise²))."""
        return gaussian_kl(*self.moments(after), x, torch.full_like(x, self.noise**2))


class BernoulliObservation:
    """A logit for each input in [0, 1]. An observed value is exact."""

    parameters_per_input: ClassVar[int] = 1
    statistics: ClassVar[int] = 3

    def __init__(self, size: int) -> None:
        self.size = size

    def moments(
        self, raw: Float[Tensor, "*n parameters"]
    ) -> tuple[Float[Tensor, "*n input"], Float[Tensor, "*n input"]]:
        """Mean and variance."""
        mean = raw.sigmoid()
        return mean, mean * (1 - mean)

    def compare(self, x: Float[Tensor, "*n input"], raw: Float[Tensor, "*n parameters"]) -> Float[Tensor, "*n input 3"]:
        """x, probability, and the error."""
        mean = raw.sigmoid()
        return torch.stack([x, mean, x - mean], -1)

    def nll(self, x: Float[Tensor, "*n input"], raw: Float[Tensor, "*n parameters"]) -> Float[Tensor, "*n input"]:
        """-x log p - (1 - x) log(1 - p)."""
        return F.binary_cross_entropy_with_logits(raw, x, reduction="none")

    def surprise(
        self, x: Float[Tensor, "*n input"], after: Float[Tensor, "*n parameters"]
    ) -> Float[Tensor, "*n input"]:
        """KL(Bernoulli(x) ‖ p_post): the other direction is infinite for an exact value."""
        entropy = -(torch.xlogy(x, x) + torch.xlogy(1 - x, 1 - x))
        return self.nll(x, after) - entropy
