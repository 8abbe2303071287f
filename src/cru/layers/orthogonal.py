"""Orthogonal matrices as free parameters."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Orthogonal(nn.Module):
    """E = exp(R - Rᵀ), R strictly lower triangular (Lezcano-Casado 2019): for `register_parametrization`.

    The exponential is taken in float64, so that E stays orthogonal to the last digit of the layer's own type; that of
    `torch.nn.utils.parametrizations.orthogonal` drifts to 2e-6 in float32.
    """

    def forward(self, raw: Float[Tensor, "state state"]) -> Float[Tensor, "state state"]:
        """Any square matrix to an orthogonal one; zeros to the identity."""
        lower = raw.double().tril(-1)
        return torch.matrix_exp(lower - lower.mT).to(raw.dtype)
