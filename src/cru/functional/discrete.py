"""The predict step of the RKN: one discrete transition per step, independent of the gap (Becker et al. 2019)."""

import torch
from torch import Tensor

from cru.functional.belief import Belief, bounds, clamp, clamp_belief, covariance, keep_block_diagonals
from cru.functional.expm import apply_transition
from cru.shapes import Float


def predict_discrete(belief: Belief, A: Float[Tensor, "batch state state"], noise: Float[Tensor, " state"]) -> Belief:
    """Predict the prior after one step: μ⁻ = A μ⁺, and three diagonals of Σ⁻ = A Σ⁺ Aᵀ + diag(q).

    Args:
        belief: the belief before the step.
        A: the transition matrix of each series.
        noise: the diagonal q.
    """
    limit = bounds(A.dtype).transition
    upper, lower = noise.chunk(2)
    added = Belief(belief.mean, upper, lower, torch.zeros_like(upper))
    return clamp_belief(apply_transition(belief, clamp(A, -limit, limit), added))


def predict_discrete_reference(
    belief: Belief, A: Float[Tensor, "batch state state"], noise: Float[Tensor, " state"]
) -> Belief:
    """Compute `predict_discrete` with the full covariance, as in the paper. The arguments are those of it."""
    mean = (A @ belief.mean.unsqueeze(-1)).squeeze(-1)
    return keep_block_diagonals(mean, A @ covariance(belief) @ A.mT + torch.diag(noise), belief.time)
