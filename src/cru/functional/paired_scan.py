"""The paired filter and smoother, parallel in time (Särkkä & García-Fernández 2021), on 2×2 matrices."""

from typing import NamedTuple

import torch
from torch import Tensor

from cru.functional.belief import Belief, clamp_belief, finite_gradient
from cru.functional.paired import PairedTransition, predict_paired
from cru.functional.scan import Matrix2, associative_scan
from cru.functional.update import MIN_VARIANCE, update
from cru.shapes import Bool, Float


class _Filtering(NamedTuple):
    """p(z_t | z_s, y) = N(A z_s + b, C), and the likelihood of y as a function of z_s in information form η, J."""

    a11: Tensor
    a12: Tensor
    a21: Tensor
    a22: Tensor
    b1: Tensor
    b2: Tensor
    c11: Tensor
    c12: Tensor
    c22: Tensor
    eta1: Tensor
    eta2: Tensor
    j11: Tensor
    j12: Tensor
    j22: Tensor


def _combine(i: _Filtering, j: _Filtering) -> _Filtering:
    """Combine two elements, i before j (lemma 8 of the paper)."""
    A_i, A_j = Matrix2(*i[:4]), Matrix2(*j[:4])
    C_i, J_j = Matrix2(i.c11, i.c12, i.c12, i.c22), Matrix2(j.j11, j.j12, j.j12, j.j22)
    one, none = torch.ones_like(i.a11), torch.zeros_like(i.a11)
    inner = Matrix2(one, none, none, one).plus(C_i @ J_j).inverse()
    left, right = A_j @ inner, A_i.mT @ inner.mT
    A = left @ A_i
    e1, e2 = C_i.times(j.eta1, j.eta2)
    b1, b2 = left.times(i.b1 + e1, i.b2 + e2)
    C = left @ C_i @ A_j.mT
    f1, f2 = J_j.times(i.b1, i.b2)
    eta1, eta2 = right.times(j.eta1 - f1, j.eta2 - f2)
    J = right @ J_j @ A_i
    off_c, off_j = (C.b + C.c) / 2, (J.b + J.c) / 2
    return _Filtering(
        *A, b1 + j.b1, b2 + j.b2, C.a + j.c11, off_c + j.c12, C.d + j.c22,
        eta1 + i.eta1, eta2 + i.eta2, J.a + i.j11, off_j + i.j12, J.d + i.j22,
    )  # fmt: skip


def _extend(i: _Filtering, j: _Filtering) -> _Filtering:
    """Combine two elements where i includes the start of the series, so that its A, η and J stay zero."""
    A_j = Matrix2(*j[:4])
    C_i, J_j = Matrix2(i.c11, i.c12, i.c12, i.c22), Matrix2(j.j11, j.j12, j.j12, j.j22)
    one, none = torch.ones_like(i.a11), torch.zeros_like(i.a11)
    left = A_j @ Matrix2(one, none, none, one).plus(C_i @ J_j).inverse()
    e1, e2 = C_i.times(j.eta1, j.eta2)
    b1, b2 = left.times(i.b1 + e1, i.b2 + e2)
    C = left @ C_i @ A_j.mT
    return i._replace(
        b1=b1 + j.b1, b2=b2 + j.b2, c11=C.a + j.c11, c12=(C.b + C.c) / 2 + j.c12, c22=C.d + j.c22
    )  # fmt: skip


def filter_paired_scan(
    start: Belief,
    y: Float[Tensor, "batch time obs"],
    y_var: Float[Tensor, "batch time obs"],
    mask: Bool[Tensor, "batch time obs"],
    transitions: PairedTransition,
) -> tuple[Belief, Belief]:
    """Compute `filter_paired` in O(log T) depth. The arguments are those of `filter_paired`.

    The arithmetic is in float64. An element holds both the information 1 / σ_obs of precise observations and the
    variance of an uncertain belief, whose ratio exceeds float32. One step of the plain recursion at all times removes
    the remaining rounding errors.
    """
    dtype = y.dtype
    start, transitions = Belief(*map(_double, start[:4])), PairedTransition(*map(_double, transitions))
    y, y_var = _double(y), _double(y_var).clamp_min(MIN_VARIANCE)
    weight = torch.where(mask, 1 / (transitions.upper + y_var), 0.0)  # 1 / S, or 0 where nothing is observed
    k1, k2 = transitions.upper * weight, transitions.side * weight
    kept = torch.where(mask, y_var * weight, 1.0)  # 1 - k1, accurate for k1 close to one
    seen = torch.where(mask, y, 0.0)
    c, s = transitions.cos, transitions.sin
    elements = _Filtering(
        kept * c, kept * s, -s - k2 * c, c - k2 * s, k1 * seen, k2 * seen,
        kept * transitions.upper, kept * transitions.side, transitions.lower - k2 * transitions.side,
        c * seen * weight, s * seen * weight, c * c * weight, c * s * weight, s * s * weight,
    )  # fmt: skip
    first = update(
        predict_paired(start, PairedTransition(*(h[:, 0] for h in transitions))), y[:, 0], y_var[:, 0], mask[:, 0]
    )
    u, low = first.mean.chunk(2, -1)
    none = torch.zeros_like(u)
    head = (none, none, none, none, u, low, first.upper, first.side, first.lower, none, none, none, none, none)
    elements = _Filtering(*(torch.cat([h[:, None], e[:, 1:]], 1) for h, e in zip(head, elements, strict=True)))
    e = associative_scan(_combine, elements, _extend)
    posterior = clamp_belief(Belief(torch.cat([e.b1, e.b2], -1), e.c11, e.c22, e.c12))
    before = Belief(*(torch.cat([f[:, None], p[:, :-1]], 1) for f, p in zip(start[:4], posterior[:4], strict=True)))
    prior = predict_paired(before, transitions)
    posterior = update(prior, y, y_var, mask)
    return _to_dtype(prior, dtype), _to_dtype(posterior, dtype)


def _double(value: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Convert to float64, with a gradient that the original type can represent."""
    return finite_gradient(value).double()


def _to_dtype(belief: Belief, dtype: torch.dtype) -> Belief:
    """Convert a belief to another type and clamp it to the bounds of that type."""
    return belief if belief.mean.dtype == dtype else clamp_belief(Belief(*(field.to(dtype) for field in belief[:4])))


class _Smoothing(NamedTuple):
    """p(z_t | z_T) = N(G z_T + m, P)."""

    g11: Tensor
    g12: Tensor
    g21: Tensor
    g22: Tensor
    m1: Tensor
    m2: Tensor
    p11: Tensor
    p12: Tensor
    p22: Tensor


def _compose(later: _Smoothing, earlier: _Smoothing) -> _Smoothing:
    G = Matrix2(*earlier[:4])
    m1, m2 = G.times(later.m1, later.m2)
    P = G @ Matrix2(later.p11, later.p12, later.p12, later.p22) @ G.mT
    return _Smoothing(
        *(G @ Matrix2(*later[:4])), m1 + earlier.m1, m2 + earlier.m2,
        P.a + earlier.p11, (P.b + P.c) / 2 + earlier.p12, P.d + earlier.p22,
    )  # fmt: skip


def smooth_paired(prior: Belief, posterior: Belief, transitions: PairedTransition) -> Belief:
    """Condition the beliefs of the filter on all observations: the exact Rauch-Tung-Striebel smoother, elementwise.

    With G_t = Σ_t Φᵀ (Σ⁻_{t+1})⁻¹:
    μˢ_t = μ_t + G_t (μˢ_{t+1} - μ⁻_{t+1}),  Σˢ_t = Σ_t + G_t (Σˢ_{t+1} - Σ⁻_{t+1}) G_tᵀ.

    Both are affine in the result of the next time, so `associative_scan` computes them. The arithmetic is in float64,
    because Σ⁻ can be nearly singular. `cru.native.smooth_paired` is the compiled version.

    Args:
        prior: the priors of the filter.
        posterior: the posteriors of the filter.
        transitions: the transition before each time.
    """
    dtype = posterior.mean.dtype
    u, low = (part.double() for part in posterior.mean.chunk(2, -1))
    P = Matrix2(*(f.double() for f in (posterior.upper, posterior.side, posterior.side, posterior.lower)))
    c, s = transitions.cos[:, 1:].double(), transitions.sin[:, 1:].double()
    ahead = [f[:, 1:].double() for f in prior[:4]]
    next_u, next_low = ahead[0].chunk(2, -1)
    next_P = Matrix2(ahead[1], ahead[3], ahead[3], ahead[2])
    still = (transitions.upper[:, 1:] == 0) & (transitions.lower[:, 1:] == 0) & (c == 1) & (s == 0)
    known = next_P.a * next_P.d - next_P.b * next_P.c < torch.finfo(torch.float64).tiny  # no uncertainty left: G = 0
    unit = (1.0, 0.0, 0.0, 1.0)
    regular = Matrix2(*(torch.where(still | known, e, p) for e, p in zip(unit, next_P, strict=True)))
    now = Matrix2(*(entry[:, :-1] for entry in P))
    G = now @ Matrix2(c, -s, s, c) @ regular.inverse()
    G = Matrix2(*(torch.where(still, e, torch.where(known, 0.0, g)) for e, g in zip(unit, G, strict=True)))
    m1, m2 = G.times(next_u, next_low)
    C = now.minus(G @ next_P @ G.mT)
    none = torch.zeros_like(u[:, :1])
    last = (none, none, none, none, u[:, -1:], low[:, -1:], P.a[:, -1:], P.b[:, -1:], P.d[:, -1:])
    body = (*G, u[:, :-1] - m1, low[:, :-1] - m2, C.a, (C.b + C.c) / 2, C.d)
    elements = _Smoothing(*(torch.cat([b, e], 1).flip(1) for b, e in zip(body, last, strict=True)))
    e = _Smoothing(*(field.flip(1).to(dtype) for field in associative_scan(_compose, elements)))
    return clamp_belief(Belief(torch.cat([e.m1, e.m2], -1), e.p11, e.p22, e.p12, posterior.time))
