"""The end of every model: networks whose raw outputs become a mean and a variance, or a probability."""

import torch
from torch import Tensor, nn

from cru.functional import positive
from cru.functional.likelihood import clamp_value
from cru.layers.encoders import apply_where
from cru.models.base import Spec
from cru.shapes import Bool, Float

_LIMIT = 15.0  # of a logit: beyond 17 a probability is 1 in float32, and one that is wrong would have no gradient


class OutputHead(nn.Module):
    """From features at each time to the parameters of the likelihood, in the shape of the targets.

    ``mean`` and ``variance`` are any modules from (n, features) to (n, *target) or (n, entries of target), with raw
    outputs: the mean is taken as it is, or through a sigmoid for probabilities; the variance through ``variance_map``.
    Where the likelihood is Bernoulli ``variance`` is dropped.

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
        """Mean and variance, or probability and None. The variance is decoded from ``spread`` where that is given.

        Times that are not ``valid`` are not decoded: what is said there means nothing, but is finite.
        """
        shape = (*features.shape[:2], *self.target_shape)
        if valid is None:
            valid = features.new_ones(shape[:2], dtype=torch.bool)
        mean = apply_where(self.mean, features, valid).reshape(shape)
        if self.variance is None:
            return clamp_value(mean, -_LIMIT, _LIMIT).sigmoid(), None
        raw = apply_where(self.variance, features if spread is None else spread, valid, fill=1.0)
        return mean, self.variance_map.forward(raw.reshape(shape))
