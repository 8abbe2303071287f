"""The predict step of independent damped rotations, for which the factorised covariance is exact.

Every (upper, lower) pair follows its own SDE,

    d(u, l) = [[-γ, ω], [-ω, -γ]] (u, l) dt + noise(q_u, q_l).

Predict and update are therefore elementwise in the pairs, without any approximation. Over a gap Δ

    Φ = e^{-γΔ} [[cos ωΔ, sin ωΔ], [-sin ωΔ, cos ωΔ]]
    Q = [[q_u C + q_l S, -d I_s], [-d I_s, q_u S + q_l C]],   d = (q_u - q_l) / 2
    C = (I₀ + I_c) / 2 = ∫ e^{-2γs} cos² ωs ds,   S = (I₀ - I_c) / 2 = ∫ e^{-2γs} sin² ωs ds
    I₀ = ∫ e^{-2γs} ds,   I_c + i I_s = ∫ e^{(-2γ + 2iω)s} ds.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from cru.functional.belief import Belief, clamp_belief, finite_gradient
from cru.functional.eigen import phi1
from cru.functional.stepwise import stacked
from cru.functional.update import update
from cru.shapes import Bool, Float

LONG_GAP = 1e6
"""Above this gap a gradient times the square of the gap can exceed float32: 1e15 (`bounds`) · 1e12 · observations."""


class PairedTransition(NamedTuple):
    """The transition over one gap: damped Φ = [[cos, sin], [-sin, cos]] and the three entries of Q, of any shape."""

    cos: Float[Tensor, "*any"]
    sin: Float[Tensor, "*any"]
    upper: Float[Tensor, "*any"]
    lower: Float[Tensor, "*any"]
    side: Float[Tensor, "*any"]


def discretise_paired(
    decay: Float[Tensor, "*#any"],
    frequency: Float[Tensor, "*#any"],
    noise_upper: Float[Tensor, "*#any"],
    noise_lower: Float[Tensor, "*#any"],
    delta: Float[Tensor, "*#any"],
) -> PairedTransition:
    """Discretise the SDE (stochastic differential equation) over gaps.

    All arguments broadcast. The result is accurate for γ, ω, Δ → 0.

    Args:
        decay: γ >= 0.
        frequency: ω.
        noise_upper: q_u.
        noise_lower: q_l.
        delta: the gaps Δ.
    """
    if torch.compiler.is_compiling() or bool((delta > LONG_GAP).any()):
        decay, frequency = finite_gradient(decay), finite_gradient(frequency)
        noise_upper, noise_lower = finite_gradient(noise_upper), finite_gradient(noise_lower)
    damping, angle = -decay * delta, frequency * delta
    size = torch.exp(damping)
    cos, sin = size * torch.cos(angle), size * torch.sin(angle)
    flat = delta * phi1(2 * damping)
    even, odd = phi1_complex(2 * damping, 2 * angle)
    even, odd = delta * even, delta * odd
    direct, crossed = flat + even, (flat - even).clamp_min(0.0)  # negative only by rounding
    a, b = noise_upper / 2, noise_lower / 2
    upper, lower = torch.addcmul(a * direct, b, crossed), torch.addcmul(b * direct, a, crossed)
    return PairedTransition(cos, sin, upper, lower, (b - a) * odd)


def phi1_complex(
    x: Float[Tensor, "*any"], y: Float[Tensor, "*any"]
) -> tuple[Float[Tensor, "*any"], Float[Tensor, "*any"]]:
    """Compute real and imaginary part of (e^w - 1) / w, where w = x + iy and x <= 0. Near zero, use a Taylor series."""
    near = x * x + y * y < 0.01
    a, b = torch.where(near, x, 0.0), torch.where(near, y, 0.0)
    real, imaginary = torch.ones_like(x), torch.zeros_like(x)
    for k in range(5 if x.dtype == torch.float32 else 10, 1, -1):  # 1 + w/2 (1 + w/3 (1 + …))
        real, imaginary = 1 + (a * real - b * imaginary) / k, (a * imaginary + b * real) / k
    a, b = torch.where(near, -1.0, x), torch.where(near, 0.0, y)
    up, across = torch.expm1(a) * torch.cos(b) - 2 * torch.sin(b / 2) ** 2, torch.exp(a) * torch.sin(b)
    scale = 1 / (a * a + b * b)
    far = ((up * a + across * b) * scale, (across * a - up * b) * scale)
    return torch.where(near, real, far[0]), torch.where(near, imaginary, far[1])


def predict_paired(belief: Belief, step: PairedTransition) -> Belief:
    """Compute Φ μ and Φ Σ Φᵀ + Q exactly. Rounding cannot make a variance smaller than that of Q alone."""
    u, low = belief.mean.chunk(2, -1)
    c, s = step.cos, step.sin
    cc, ss, cs = c * c, s * s, c * s
    return clamp_belief(
        Belief(
            torch.cat([c * u + s * low, c * low - s * u], -1),
            (cc * belief.upper + 2 * cs * belief.side + ss * belief.lower).clamp_min(0.0) + step.upper,
            (ss * belief.upper - 2 * cs * belief.side + cc * belief.lower).clamp_min(0.0) + step.lower,
            (cc - ss) * belief.side + cs * (belief.lower - belief.upper) + step.side,
            belief.time,
        )
    )


def filter_paired(
    start: Belief,
    y: Float[Tensor, "batch time obs"],
    y_var: Float[Tensor, "batch time obs"],
    mask: Bool[Tensor, "batch time obs"],
    transitions: PairedTransition,
) -> tuple[Belief, Belief]:
    """Compute priors and posteriors over (batch, time), step by step.

    `cru.native.filter_paired` (compiled) and `filter_paired_scan` (parallel in time) compute the same.

    Args:
        start: belief before the first time.
        y: latent observations.
        y_var: their variances.
        mask: True where observed.
        transitions: the transition before each time, of shape (batch, time, obs).

    Returns:
        Priors and posteriors.
    """
    belief, priors, posteriors = start, [], []
    steps = (tensor.unbind(1) for tensor in (y, y_var, mask, *transitions))
    for y_t, var_t, mask_t, *transition_t in zip(*steps, strict=True):
        prior = predict_paired(belief, PairedTransition(*transition_t))
        belief = update(prior, y_t, var_t, mask_t)
        priors.append(prior)
        posteriors.append(belief)
    return stacked(priors), stacked(posteriors)
