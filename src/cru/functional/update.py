"""The update step: weigh an observation against the prior (appendix B)."""

from typing import NamedTuple

import torch
from torch import Tensor

from cru.functional.belief import Belief, Gain, clamp_belief
from cru.shapes import Bool, Float

MIN_VARIANCE, MAX_VARIANCE = 1e-12, 1e30
"""Observation variances outside count as these: no reading is believed, or doubted, without limit."""


def gain(prior: Belief, y_var: Float[Tensor, "*batch obs"]) -> Gain:
    """The Kalman gain, eq. (14) factorised: k_u = σ_u / (σ_u + σ_obs), k_l = σ_s / (σ_u + σ_obs)."""
    total = prior.upper + y_var.clamp(MIN_VARIANCE, MAX_VARIANCE)
    return Gain(prior.upper / total, prior.side / total)


class FilterResult(NamedTuple):
    """What the bare filter returns: beliefs before and after each update, over (batch, time).

    ``y_var`` holds the variances of the latent observations.
    """

    prior: Belief
    posterior: Belief
    y_var: Float[Tensor, "batch time obs"]

    @property
    def gain(self) -> Gain:
        """The Kalman gain at every time, observed or not. Each access computes it."""
        return gain(self.prior, self.y_var)


def update(
    prior: Belief,
    y: Float[Tensor, "*batch obs"],
    y_var: Float[Tensor, "*batch obs"],
    mask: Bool[Tensor, "*batch obs"],
) -> Belief:
    """The posterior after the latent observation ``y`` with variance ``y_var``; where ``mask`` is False, the prior.

    μ_u⁺ = μ_u + k_u (y - μ_u),  μ_l⁺ = μ_l + k_l (y - μ_u),
    σ_u⁺ = (1 - k_u) σ_u,  σ_s⁺ = (1 - k_u) σ_s,  σ_l⁺ = σ_l - k_l σ_s.

    1 - k_u is computed as σ_obs / (σ_u + σ_obs), which keeps its precision when k_u is close to one. As σ_s² ≤ σ_u σ_l,
    σ_l⁺ ≥ (1 - k_u) σ_l: where rounding takes the difference below this floor, it is held there.
    """
    y_var = y_var.clamp(MIN_VARIANCE, MAX_VARIANCE)
    k_upper, k_lower = gain(prior, y_var)
    kept = y_var / (prior.upper + y_var)
    mean_upper, mean_lower = prior.mean.chunk(2, -1)
    lower = (prior.lower - k_lower * prior.side).clamp(min=(kept * prior.lower).detach())
    residual = torch.where(mask, y - mean_upper, 0.0)
    posterior = Belief(
        torch.cat([mean_upper + k_upper * residual, mean_lower + k_lower * residual], -1),
        torch.where(mask, kept * prior.upper, prior.upper),
        torch.where(mask, lower, prior.lower),
        torch.where(mask, kept * prior.side, prior.side),
        prior.time,
    )
    return clamp_belief(posterior)


def update_reference(
    mean: Float[Tensor, "*batch state"],
    cov: Float[Tensor, "*batch state state"],
    y: Float[Tensor, "*batch obs"],
    y_var: Float[Tensor, "*batch obs"],
) -> tuple[Float[Tensor, "*batch state"], Float[Tensor, "*batch state state"]]:
    """The unfactorised update, eqs. (12)-(14), with H = [I 0] and the full covariance.

    K = Σ Hᵀ (H Σ Hᵀ + Σ_obs)⁻¹,  μ⁺ = μ + K (y - H μ),  Σ⁺ = (I - K H) Σ.
    """
    obs, state = y.shape[-1], mean.shape[-1]
    H = torch.eye(obs, state, dtype=mean.dtype, device=mean.device)
    K = torch.linalg.solve(H @ cov @ H.mT + torch.diag_embed(y_var), H @ cov).mT
    mean = mean + (K @ (y - mean[..., :obs]).unsqueeze(-1)).squeeze(-1)
    return mean, cov - K @ H @ cov
