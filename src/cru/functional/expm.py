"""The predict step of the CRU: matrix exponential and noise integral of a linear SDE (appendix A.2).

    dz = A z dt + dβ,  cov(dβ) = diag(q) dt
    Φ = exp(A Δ),   Q = ∫₀^Δ exp(A s) diag(q) exp(A s)ᵀ ds
    μ⁻ = Φ μ⁺,      Σ⁻ = Φ Σ⁺ Φᵀ + Q

The paper takes both from the exponential of a 2M × 2M block. This module uses M × M matrices only:

1. Divide the gap into steps h = Δ / 2^s that are short enough for a Taylor series. Then Φ(σh) is a polynomial in σ.
2. Integrate Φ(σh) diag(q) Φ(σh)ᵀ by Gauss-Lobatto quadrature, which is exact for polynomials of its degree.
3. Double the step s times: (Φ, Q) ← (Φ Φ, Q + Φ Q Φᵀ).
"""

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from cru.functional.belief import Belief, bounds, clamp, clamp_belief, clamp_noise, covariance, keep_block_diagonals
from cru.shapes import Float

MAX_DOUBLINGS = 64
"""Enough for ‖A Δ‖ up to 1e19. Exported graphs always use this count, because it cannot depend on the data."""


class TaylorOrder(NamedTuple):
    """Taylor order and number of quadrature points of the short step, for ‖A h‖ <= 1."""

    order: int
    points: int


_TAYLOR = {torch.float32: TaylorOrder(10, 6), torch.float64: TaylorOrder(18, 10)}


@cache
def lobatto(points: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute nodes and weights of the Gauss-Lobatto rule on [0, 1]. It is exact up to degree 2·points - 3."""
    import numpy as np

    legendre = np.polynomial.Legendre.basis(points - 1)
    nodes = np.concatenate([[-1.0], np.sort(legendre.deriv().roots().real), [1.0]])
    weights = 2 / (points * (points - 1) * legendre(nodes) ** 2)
    return tuple((nodes + 1) / 2), tuple(weights / 2)


def spectral_bound(A: Float[Tensor, "*batch state state"]) -> Float[Tensor, "*batch"]:
    """Bound the spectral norm from above by the smaller of ‖A‖_F and sqrt(‖A‖_1 ‖A‖_∞)."""
    return _smaller(*_norms(A))


def spectral_bound_of_means(basis: Float[Tensor, "basis state state"]) -> Float[Tensor, ""]:
    """Bound the spectral norm of every weighted mean of the bases.

    A norm of a mean is at most the largest norm of its terms. The geometric mean of two norms is not a norm. So the
    largest value of each norm is computed first.
    """
    return _smaller(*(norm.amax() for norm in _norms(basis)))


def _norms(A: Float[Tensor, "*batch state state"]) -> tuple[Tensor, Tensor, Tensor]:
    size = A.detach().abs()
    return torch.linalg.matrix_norm(A.detach()), size.sum(-2).amax(-1), size.sum(-1).amax(-1)


def _smaller(frobenius: Tensor, one: Tensor, infinity: Tensor) -> Tensor:
    return torch.minimum(frobenius, (one * infinity).sqrt())


def doublings(bound: Float[Tensor, "..."]) -> int:
    """Count the doublings for ‖A Δ‖ <= ``bound``. In an exported graph, return `MAX_DOUBLINGS`."""
    if torch.compiler.is_exporting():
        return MAX_DOUBLINGS
    largest = min(max(1.0, float(bound.max()) if bound.numel() else 0.0), 2.0**MAX_DOUBLINGS)  # NaN counts as 1
    return math.ceil(math.log2(largest))


def discretise(
    A: Float[Tensor, "batch state state"],
    noise: Float[Tensor, " state"],
    delta: Float[Tensor, " batch"],
    count: int,
) -> tuple[Float[Tensor, "batch state state"], Float[Tensor, "batch state state"]]:
    """Compute Φ and Q over the gap of each series.

    Each series doubles its step as often as its own ‖A Δ‖ needs, at most ``count`` times (see `doublings`). More
    doublings would only add rounding errors. The results are clamped to the bounds of the floating type. A dimension
    whose row of Φ reaches the bound has the largest variance.

    Args:
        A: the drift matrix of each series.
        noise: the diagonal q.
        delta: the gap Δ of each series.
        count: the largest number of doublings.
    """
    bound, taylor = bounds(A.dtype), _TAYLOR[A.dtype]
    X = A * delta[:, None, None]
    levels = spectral_bound(X).clamp_min(1.0).log2().ceil().clamp(0, count)
    shrink = torch.exp2(-levels)[:, None, None]
    X, h = X * shrink, delta[:, None, None] * shrink
    X = X / spectral_bound(X).clamp_min(1.0)[:, None, None]  # only where `count` is too small: the bounds apply anyway

    terms = [torch.eye(A.shape[-1], dtype=A.dtype, device=A.device).expand_as(A)]
    for k in range(1, taylor.order + 1):
        terms.append(terms[-1] @ X / k)
    nodes, weights = lobatto(taylor.points)
    powers = torch.tensor([[s**k for k in range(len(terms))] for s in nodes], dtype=A.dtype, device=A.device)
    phis = torch.einsum("pk,kbij->bipj", powers, torch.stack(terms))
    w = torch.tensor(weights, dtype=A.dtype, device=A.device)
    Q = h * (phis * (w[:, None] * noise)).flatten(2) @ phis.flatten(2).mT
    phi = phis[:, :, -1]

    for level in range(count):
        more = (level < levels)[:, None, None]
        squared = clamp(phi @ phi, -bound.transition, bound.transition)
        least = Q.detach().diagonal(dim1=-2, dim2=-1)
        if 2 ** (level + 1) > math.log(bound.transition):  # otherwise ‖Φ‖ ≤ e^‖A h‖ is within the bound
            overflows = squared.detach().abs().amax(-1) >= bound.transition
            least = torch.where(overflows, bound.variance, least)
        Q = torch.where(more, clamp_noise(Q + phi @ Q @ phi.mT, least), Q)
        phi = torch.where(more, squared, phi)
    return phi, Q


def predict_expm(
    belief: Belief,
    delta: Float[Tensor, " batch"],
    A: Float[Tensor, "batch state state"],
    noise: Float[Tensor, " state"],
    count: int,
) -> Belief:
    """Predict the prior after a gap: its mean, and three diagonals of its covariance.

    `predict_expm_reference` follows the paper literally.

    Args:
        belief: the belief before the gap.
        delta: the gap Δ of each series.
        A: the drift matrix of each series.
        noise: the diagonal q.
        count: the largest number of doublings; see `doublings`.
    """
    phi, Q = discretise(A, noise, delta, count)
    return clamp_belief(apply_transition(belief, phi, keep_block_diagonals(belief.mean, Q)))


def apply_transition(belief: Belief, phi: Float[Tensor, "batch state state"], noise: Belief) -> Belief:
    """Compute Φ μ and the three diagonals of Φ Σ Φᵀ + Q, without the rest of that matrix.

    Σ has three diagonals, so Σ Φᵀ is elementwise and costs O(M²).

    Args:
        belief: the belief (μ, Σ).
        phi: Φ.
        noise: the three diagonals of Q.
    """
    obs = belief.upper.shape[-1]
    left, right = phi[..., :obs], phi[..., obs:]
    upper, lower, side = (v.unsqueeze(-2) for v in (belief.upper, belief.lower, belief.side))
    weighted = torch.cat([left * upper + right * side, left * side + right * lower], -1)
    variance = (weighted * phi).sum(-1).clamp_min(0.0)  # negative only by rounding
    return Belief(
        (phi @ belief.mean.unsqueeze(-1)).squeeze(-1),
        variance[..., :obs] + noise.upper,
        variance[..., obs:] + noise.lower,
        (weighted[:, :obs] * phi[:, obs:]).sum(-1) + noise.side,
        belief.time,
    )


def predict_expm_reference(
    belief: Belief,
    delta: Float[Tensor, " batch"],
    A: Float[Tensor, "batch state state"],
    noise: Float[Tensor, " state"],
) -> Belief:
    """Compute `predict_expm` as in appendix A.2: exponential of the 2M × 2M block, full covariance, then its diagonals.

    B = [[A, diag(q)], [0, -Aᵀ]],  exp(B Δ) = [[M₁, M₂], [0, M₃]],  Σ⁻ = exp(AΔ) Σ⁺ exp(AΔ)ᵀ + M₂ exp(AΔ)ᵀ.
    """
    M = A.shape[-1]
    Q = torch.diag(noise).expand_as(A)
    B = torch.cat([torch.cat([A, Q], -1), torch.cat([torch.zeros_like(A), -A.mT], -1)], -2)
    gap = delta[:, None, None]
    M2 = torch.matrix_exp(B * gap)[:, :M, M:]
    phi = torch.matrix_exp(A * gap)
    mean = (phi @ belief.mean.unsqueeze(-1)).squeeze(-1)
    return keep_block_diagonals(mean, phi @ covariance(belief) @ phi.mT + M2 @ phi.mT, belief.time)
