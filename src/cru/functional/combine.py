"""The combination of two independent beliefs about one state: the product of their densities."""

import torch

from cru.functional.belief import Belief, clamp_belief
from cru.functional.scan import Matrix2

MIN_VARIANCE_SUM = 1e-12  # floor of a diagonal entry of S, which divides


def combine(a: Belief, b: Belief) -> Belief:
    """Combine two beliefs. For each 2×2 block, with S = Σ_a + Σ_b:

    Σ = (Σ_a⁻¹ + Σ_b⁻¹)⁻¹ = Σ_a S⁻¹ Σ_b,  μ = μ_a + Σ_a S⁻¹ (μ_b - μ_a).

    >>> from cru import Belief
    >>> from cru.functional.combine import combine
    >>> one = torch.ones(1, 1)
    >>> both = combine(Belief(torch.zeros(1, 2), one, one, 0 * one), Belief(torch.ones(1, 2), one, one, 0 * one))
    >>> both.mean, both.upper
    (tensor([[0.5000, 0.5000]]), tensor([[0.5000]]))
    """
    A, B = (Matrix2(x.upper, x.side, x.side, x.lower) for x in (a, b))
    S = A.plus(B)
    upper, lower = S.a.clamp_min(MIN_VARIANCE_SUM), S.d.clamp_min(MIN_VARIANCE_SUM)  # invert S as a correlation
    side = (upper * lower).sqrt()
    ridge = torch.finfo(side.dtype).eps  # S is singular where both beliefs have zero variance in one direction
    scaled = Matrix2(S.a / upper + ridge, S.b / side, S.c / side, S.d / lower + ridge).inverse()
    weight = A @ Matrix2(scaled.a / upper, scaled.b / side, scaled.c / side, scaled.d / lower)
    cov = weight @ B
    u, low = weight.times(*(y - x for x, y in zip(a.mean.chunk(2, -1), b.mean.chunk(2, -1), strict=True)))
    return clamp_belief(Belief(a.mean + torch.cat([u, low], -1), cov.a, cov.d, (cov.b + cov.c) / 2, a.time))
