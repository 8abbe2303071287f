"""The predict step of the f-CRU: elementwise in a shared orthogonal eigenbasis (appendix A.1).

A = E diag(d) Eᵀ,  w = Eᵀ z,  S = Eᵀ diag(q) E,  D̃_ij = d_i + d_j
μ⁻ = E (exp(d Δ) ⊙ Eᵀ μ⁺)
Σ_w⁻ = Σ_w⁺ ⊙ exp(D̃ Δ) + S ⊙ (exp(D̃ Δ) - 1) ⊘ D̃,   Σ⁻ = E Σ_w⁻ Eᵀ
"""

import math

import torch
from torch import Tensor

from cru.functional.belief import Belief, bounds, clamp_belief, covariance, keep_block_diagonals
from cru.shapes import Float

FLOOR_SLACK = 1e-3
"""Relative slack of the variance floor. It exceeds the rounding error of a sum of hundreds of terms in float32."""


def phi1(x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Compute (eˣ - 1) / x, which is 1 at zero. Its derivative is exact at zero, too.

    A Taylor series replaces the formula near zero. So autograd has a derivative without 0/0.
    """
    near = x.abs() < 0.5
    small, far = torch.where(near, x, 0.0), torch.where(near, 1.0, x)
    series = torch.ones_like(x)
    for k in range(8 if x.dtype == torch.float32 else 14, 1, -1):
        series = 1 + small * series / k
    return torch.where(near, series, torch.expm1(far) / far)


def predict_eigen(
    belief: Belief,
    delta: Float[Tensor, " batch"],
    eigenvalues: Float[Tensor, "batch state"],
    eigenvectors: Float[Tensor, "state state"],
    noise: Float[Tensor, " state"],
) -> Belief:
    """Predict the prior after a gap. `predict_eigen_reference` follows the paper literally.

    Exponents d Δ are at most the logarithm of the bound on transitions. The map from the eigenbasis back computes only
    the three diagonals. They are differences of large numbers, so `_least_variance` bounds them from below.

    Args:
        belief: the belief before the gap.
        delta: the gap Δ of each series.
        eigenvalues: d of each series.
        eigenvectors: E.
        noise: the diagonal q.
    """
    E, obs = eigenvectors, belief.upper.shape[-1]
    exponent = eigenvalues * delta[:, None]
    clamped = exponent.clamp_max(math.log(bounds(E.dtype).transition))
    growth = clamped.exp()
    mean = (belief.mean @ E * growth) @ E.mT

    top, bottom = E[:obs], E[obs:]
    upper, lower, side = (v.unsqueeze(-1) for v in (belief.upper, belief.lower, belief.side))
    rotated = E.mT @ torch.cat([upper * top + side * bottom, side * top + lower * bottom], -2)
    S = E.mT @ (noise[:, None] * E)
    integral = delta[:, None, None] * phi1(clamped[:, :, None] + clamped[:, None, :])
    back = (rotated * growth[:, :, None] * growth[:, None, :] + S * integral) @ E.mT
    least = _least_variance(exponent, integral.diagonal(dim1=-2, dim2=-1), E, noise)
    variance = (E.mT * back).sum(-2).clamp(min=least)
    return clamp_belief(
        Belief(
            mean,
            variance[:, :obs],
            variance[:, obs:],
            (top.mT * back[:, :, obs:]).sum(-2),
            belief.time,
        )
    )


@torch.no_grad()
def _least_variance(
    exponent: Float[Tensor, "batch state"],
    integral: Float[Tensor, "batch state"],
    E: Float[Tensor, "state state"],
    noise: Float[Tensor, " state"],
) -> Float[Tensor, "batch state"]:
    """Bound each variance from below by the noise alone: min(q) ∫ (Φ Φᵀ)_ii ds = Σ_a E_ia² w_a, minus `FLOOR_SLACK`.

    The weight w_a of a mode is min(q) times ``integral`` = ∫ e^{2ds} ds. Where the exponent is clamped, the weight is
    the bound on variances times e^{2dΔ}. A dimension with any share in such a mode then reaches the bound.
    """
    bound, most = bounds(E.dtype), torch.finfo(E.dtype).max
    double, limit = 2 * exponent, 2 * math.log(bound.transition)
    overflow = bound.variance * double.clamp_max(math.log(most / bound.variance) - 1).exp()
    return torch.where(double > limit, overflow, (1 - FLOOR_SLACK) * noise.min() * integral) @ E.mT.square()


def predict_eigen_reference(
    belief: Belief,
    delta: Float[Tensor, " batch"],
    eigenvalues: Float[Tensor, "batch state"],
    eigenvectors: Float[Tensor, "state state"],
    noise: Float[Tensor, " state"],
) -> Belief:
    """Compute `predict_eigen` as in appendix A.1. Where d_i + d_j is exactly zero, the limit Δ replaces 0/0.

    The arguments are those of `predict_eigen`.
    """
    E, gap = eigenvectors, delta[:, None, None]
    mean = (E @ (torch.exp(eigenvalues * delta[:, None]) * (E.mT @ belief.mean.mT).mT).mT).mT
    sums = eigenvalues[:, :, None] + eigenvalues[:, None, :]
    S = E.mT @ torch.diag(noise) @ E
    cov_w = E.mT @ covariance(belief) @ E
    growth = torch.exp(sums * gap)
    safe = torch.where(sums == 0, 1.0, sums)
    added = torch.where(sums == 0, S * gap, (S * growth - S) / safe)
    return keep_block_diagonals(mean, E @ (added + cov_w * growth) @ E.mT, belief.time)
