"""Orthogonal matrices from free parameters."""

import torch
from torch import Tensor

from cru.shapes import Float


def orthogonal(raw: Float[Tensor, "state state"]) -> Float[Tensor, "state state"]:
    """Compute E = exp(L - Lᵀ) with the strictly lower triangle L of ``raw`` (Lezcano-Casado 2019).

    Zeros give the identity.

    The exponential is computed in float64, so that E is orthogonal to the last digit of the type of ``raw``.
    `torch.nn.utils.parametrizations.orthogonal` has an error of 2e-6 in float32.
    """
    lower = raw.double().tril(-1)
    return torch.matrix_exp(lower - lower.mT).to(raw.dtype)
