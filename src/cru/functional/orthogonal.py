"""Orthogonal matrices from free parameters."""

import torch
from torch import Tensor

from cru.shapes import Float


def orthogonal(raw: Float[Tensor, "state state"]) -> Float[Tensor, "state state"]:
    """E = exp(L - Lᵀ), L the strictly lower triangle of ``raw`` (Lezcano-Casado 2019); zeros give the identity.

    The exponential is taken in float64, so that E is orthogonal to the last digit of the layer's own type; that of
    `torch.nn.utils.parametrizations.orthogonal` drifts to 2e-6 in float32.
    """
    lower = raw.double().tril(-1)
    return torch.matrix_exp(lower - lower.mT).to(raw.dtype)
