"""Damped rotations: the dynamics for which three vectors are the whole covariance.

Every (upper, lower) pair follows an SDE of its own,

    d(u, l) = [[-γ, ω], [-ω, -γ]] (u, l) dt + noise(q_u, q_l),

so that predict and update are elementwise in the pairs and nothing is dropped. Over a gap Δ

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
from cru.functional.sequence import stacked
from cru.functional.update import update
from cru.shapes import Bool, Float

LONG_GAP = 1e6
"""Beyond this, a gradient times the square of the gap can exceed float32: 1e15 (`bounds`) · 1e12 · the readings."""


class Hop(NamedTuple):
    """Φ = [[cos, sin], [-sin, cos]] (damped) and the three entries of Q, for the gap before a time; any shape."""

    cos: Float[Tensor, "*any"]
    sin: Float[Tensor, "*any"]
    upper: Float[Tensor, "*any"]
    lower: Float[Tensor, "*any"]
    side: Float[Tensor, "*any"]


def hop(
    decay: Float[Tensor, "*#any"],
    frequency: Float[Tensor, "*#any"],
    noise_upper: Float[Tensor, "*#any"],
    noise_lower: Float[Tensor, "*#any"],
    delta: Float[Tensor, "*#any"],
) -> Hop:
    """Discretise: γ = ``decay`` >= 0, ω = ``frequency``, over gaps ``delta``; all broadcast. Stable as γ, ω, Δ → 0."""
    if torch.compiler.is_compiling() or bool((delta > LONG_GAP).any()):
        decay, frequency = finite_gradient(decay), finite_gradient(frequency)
        noise_upper, noise_lower = finite_gradient(noise_upper), finite_gradient(noise_lower)
    damping, angle = -decay * delta, frequency * delta
    size = torch.exp(damping)
    cos, sin = size * torch.cos(angle), size * torch.sin(angle)
    flat = delta * phi1(2 * damping)
    even, odd = phi1_complex(2 * damping, 2 * angle)
    even, odd = delta * even, delta * odd
    direct, crossed = flat + even, (flat - even).clamp_min(0.0)  # only rounding is negative
    a, b = noise_upper / 2, noise_lower / 2
    upper, lower = torch.addcmul(a * direct, b, crossed), torch.addcmul(b * direct, a, crossed)
    return Hop(cos, sin, upper, lower, (b - a) * odd)


def phi1_complex(
    x: Float[Tensor, "*any"], y: Float[Tensor, "*any"]
) -> tuple[Float[Tensor, "*any"], Float[Tensor, "*any"]]:
    """Real and imaginary part of (e^w - 1) / w, w = x + iy, x <= 0; one at zero, by a series near it."""
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


def predict_paired(belief: Belief, step: Hop) -> Belief:
    """The prior after a hop: Φ μ and Φ Σ Φᵀ + Q, exactly. Rounding takes no variance below that of Q alone."""
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
    hops: Hop,
) -> tuple[Belief, Belief]:
    """Priors and posteriors over (batch, time), step by step; ``hops`` (batch, time, obs) lead to each time.

    Twins: `cru.native.filter_paired` (compiled) and `filter_paired_scan` (parallel in time).
    """
    belief, priors, posteriors = start, [], []
    steps = (tensor.unbind(1) for tensor in (y, y_var, mask, *hops))
    for y_t, var_t, mask_t, *hop_t in zip(*steps, strict=True):
        prior = predict_paired(belief, Hop(*hop_t))
        belief = update(prior, y_t, var_t, mask_t)
        priors.append(prior)
        posteriors.append(belief)
    return stacked(priors), stacked(posteriors)
