"""The predict step of the f-CRU: everything elementwise in a shared orthogonal eigenbasis (appendix A.1).

A = E diag(d) Eᵀ,  w = Eᵀ z,  S = Eᵀ diag(q) E,  D̃_ij = d_i + d_j
μ⁻ = E (exp(d Δ) ⊙ Eᵀ μ⁺)
Σ_w⁻ = Σ_w⁺ ⊙ exp(D̃ Δ) + S ⊙ (exp(D̃ Δ) - 1) ⊘ D̃,   Σ⁻ = E Σ_w⁻ Eᵀ
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cru.functional.belief import Belief, bounds, covariance, factorised, hold

FLOOR_SLACK = 1e-3
"""How far rounding may take a variance below its floor: more than that of a sum of hundreds of terms in float32."""


def phi1(x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """(eˣ - 1) / x, one at zero, with a derivative that is right there too.

    Close to zero a Taylor series takes over: it also gives autograd a derivative without 0/0.
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
    """The prior after a gap ``delta``. Literal twin: `predict_eigen_reference`.

    Exponents d Δ above log of the bound on transitions are held there, from above: a dimension in which such a mode
    grows gets the largest variance. Only the rows that the three diagonals need are formed on the way back from the
    eigenbasis. These are differences of large numbers: a variance that rounding takes below min(q) ∫ (Φ Φᵀ)_ii ds,
    which the noise alone gives at least, is held there.
    """
    E, obs, bound = eigenvectors, belief.upper.shape[-1], bounds(eigenvectors.dtype)
    exponent = eigenvalues * delta[:, None]
    grown = _grown(exponent.detach(), E.detach())
    exponent = exponent.clamp_max(math.log(bound.transition))
    growth = exponent.exp()
    mean = (belief.mean @ E * growth) @ E.mT

    top, bottom = E[:obs], E[obs:]
    upper, lower, side = (v.unsqueeze(-1) for v in (belief.upper, belief.lower, belief.side))
    rotated = E.mT @ torch.cat([upper * top + side * bottom, side * top + lower * bottom], -2)
    S = E.mT @ (noise[:, None] * E)
    integral = delta[:, None, None] * phi1(exponent[:, :, None] + exponent[:, None, :])
    back = (rotated * growth[:, :, None] * growth[:, None, :] + S * integral) @ E.mT
    variance = (E.mT * back).sum(-2)
    least = (1 - FLOOR_SLACK) * noise.min() * (integral.diagonal(dim1=-2, dim2=-1) @ E.mT.square())
    variance = torch.where(variance >= least, variance, least.detach())
    variance = torch.where(grown, bound.variance, variance)
    return hold(
        Belief(
            mean,
            variance[:, :obs],
            variance[:, obs:],
            (top.mT * back[:, :, obs:]).sum(-2),
            belief.time,
        )
    )


def _grown(exponent: Float[Tensor, "batch state"], E: Float[Tensor, "state state"]) -> Bool[Tensor, "batch state"]:
    """Where Σ_a E_ia² e^{2 d_a Δ} is one or more, summed over the modes whose exponents are held."""
    square = (2 * exponent.clamp_max(math.log(torch.finfo(E.dtype).max) / 2 - 1)).exp()
    return torch.where(exponent > math.log(bounds(E.dtype).transition), square, 0.0) @ E.mT.square() >= 1


def predict_eigen_reference(
    belief: Belief,
    delta: Float[Tensor, " batch"],
    eigenvalues: Float[Tensor, "batch state"],
    eigenvectors: Float[Tensor, "state state"],
    noise: Float[Tensor, " state"],
) -> Belief:
    """Appendix A.1 to the letter, with the limit Δ in place of 0/0 where d_i + d_j is exactly zero."""
    E, gap = eigenvectors, delta[:, None, None]
    mean = (E @ (torch.exp(eigenvalues * delta[:, None]) * (E.mT @ belief.mean.mT).mT).mT).mT
    sums = eigenvalues[:, :, None] + eigenvalues[:, None, :]
    S = E.mT @ torch.diag(noise) @ E
    cov_w = E.mT @ covariance(belief) @ E
    growth = torch.exp(sums * gap)
    safe = torch.where(sums == 0, 1.0, sums)
    added = torch.where(sums == 0, S * gap, (S * growth - S) / safe)
    return factorised(mean, E @ (added + cov_w * growth) @ E.mT, belief.time)
