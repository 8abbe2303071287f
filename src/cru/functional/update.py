"""The Kalman update step, which combines an observation with the prior (appendix B)."""

from typing import NamedTuple

import torch
from torch import Tensor

from cru.functional.belief import Belief, Gain, clamp_belief
from cru.shapes import Bool, Float

MIN_VARIANCE, MAX_VARIANCE = 1e-12, 1e30
"""Observation variances are clamped to this range."""


def gain(prior: Belief, y_var: Float[Tensor, "*batch obs"]) -> Gain:
    """Compute the factorised Kalman gain of eq. (14): k_u = σ_u / (σ_u + σ_obs), k_l = σ_s / (σ_u + σ_obs).

    Args:
        prior: the belief before the update.
        y_var: the variances of the latent observation.

    Returns:
        The two diagonals of the gain.
    """
    total = prior.upper + y_var.clamp(MIN_VARIANCE, MAX_VARIANCE)
    return Gain(prior.upper / total, prior.side / total)


class FilterResult(NamedTuple):
    """The result of a filter over (batch, time).

    Attributes:
        prior: beliefs before each update.
        posterior: beliefs after each update.
        y_var: variances of the latent observations.
    """

    prior: Belief
    posterior: Belief
    y_var: Float[Tensor, "batch time obs"]

    @property
    def gain(self) -> Gain:
        """The Kalman gain at every time, observed or not. Every access computes it again."""
        return gain(self.prior, self.y_var)


def update(
    prior: Belief,
    y: Float[Tensor, "*batch obs"],
    y_var: Float[Tensor, "*batch obs"],
    mask: Bool[Tensor, "*batch obs"],
) -> Belief:
    """Compute the posterior after the latent observation ``y``. Where ``mask`` is False, it is the prior.

    μ_u⁺ = μ_u + k_u (y - μ_u),  μ_l⁺ = μ_l + k_l (y - μ_u),
    σ_u⁺ = (1 - k_u) σ_u,  σ_s⁺ = (1 - k_u) σ_s,  σ_l⁺ = σ_l - k_l σ_s.

    1 - k_u is computed as σ_obs / (σ_u + σ_obs), which is accurate for k_u close to one. Because σ_s² ≤ σ_u σ_l,
    σ_l⁺ is at least (1 - k_u) σ_l. This floor corrects rounding errors.

    Args:
        prior: the belief before the update.
        y: the latent observation.
        y_var: its variance.
        mask: True where observed.
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
    """Compute the update with the full covariance and H = [I 0], eqs. (12)-(14).

    K = Σ Hᵀ (H Σ Hᵀ + Σ_obs)⁻¹,  μ⁺ = μ + K (y - H μ),  Σ⁺ = (I - K H) Σ.
    """
    obs, state = y.shape[-1], mean.shape[-1]
    H = torch.eye(obs, state, dtype=mean.dtype, device=mean.device)
    K = torch.linalg.solve(H @ cov @ H.mT + torch.diag_embed(y_var), H @ cov).mT
    mean = mean + (K @ (y - mean[..., :obs]).unsqueeze(-1)).squeeze(-1)
    return mean, cov - K @ H @ cov
