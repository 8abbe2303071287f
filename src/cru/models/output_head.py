"""The output of a model: networks whose raw outputs become mean and variance, or a probability."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from cru.functional import positive
from cru.functional.likelihood import clamp_value
from cru.layers.encoders import apply_where
from cru.models.base import Spec

_MAX_LOGIT = 15.0  # above 17 a probability is 1 in float32, and a wrong one has no gradient


class OutputHead(nn.Module):
    """Map features at each time to the parameters of the likelihood, in the shape of the targets.

    For a Gaussian likelihood, ``mean`` gives the mean, and ``variance_map`` of ``variance`` the variance. For a
    Bernoulli likelihood, the sigmoid of ``mean`` is the probability, and ``variance`` is not used.

    Args:
        spec: description of the data.
        mean: any module from (n, features) to (n, *target) or (n, entries of target).
        variance: the same for the raw variance.
        variance_map: a name in `cru.functional.positive`.

    >>> output = OutputHead(Spec(input_shape=(5,), target_shape=(2,)), nn.Linear(8, 2), nn.Linear(8, 2), "exp")
    >>> mean, var = output(torch.zeros(3, 4, 8))
    >>> mean.shape
    torch.Size([3, 4, 2])
    """

    def __init__(self, spec: Spec, mean: nn.Module, variance: nn.Module, variance_map: str = "square") -> None:
        super().__init__()
        self.target_shape = spec.target_shape
        self.mean = mean
        self.variance = variance if spec.likelihood == "gaussian" else None
        self.variance_map = positive(variance_map)

    def forward(
        self,
        features: Float[Tensor, "batch time features"],
        spread: Float[Tensor, "batch time spread"] | None = None,
        *,
        valid: Bool[Tensor, "batch time"] | None = None,
    ) -> tuple[Float[Tensor, "batch time *target"], Float[Tensor, "batch time *target"] | None]:
        """Compute mean and variance, or probability and None.

        Args:
            features: inputs of the mean.
            spread: inputs of the variance. Default: ``features``.
            valid: times to decode. Elsewhere the results are finite but have no meaning.
        """
        shape = (*features.shape[:2], *self.target_shape)
        if valid is None:
            valid = features.new_ones(shape[:2], dtype=torch.bool)
        mean = apply_where(self.mean, features, valid).reshape(shape)
        if self.variance is None:
            return clamp_value(mean, -_MAX_LOGIT, _MAX_LOGIT).sigmoid(), None
        raw = apply_where(self.variance, features if spread is None else spread, valid, fill=1.0)
        return mean, self.variance_map.forward(raw.reshape(shape))
