"""The predict steps of the f-CRU over a sequence, with a custom gradient.

The maths is in `eigen.py`, and `docs/explanation/backward-passes.md` derives the gradient. Two ideas save operations:

1. A covariance in the eigenbasis is symmetric. Its pairs a ≤ b are one row, and the maps into the eigenbasis and out of
   it are constant matrices. So each of them is one matrix product for the complete batch.
2. All factors of the gradient are known before the backward pass. So they are computed for many steps at once.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cru.functional.belief import bounds
from cru.functional.eigen import FLOOR_SLACK
from cru.functional.packed import UPPER
from cru.functional.stepped_rows import SteppedRows
from cru.functional.steps import PredictSteps
from cru.functional.transition import EigenTransition
from cru.shapes import Bool, Float, Int

_NUDGE = {torch.float32: 1.7e-20, torch.float64: 1.7e-100}
"""Added to every sum of eigenvalues, so that none is exactly zero. It is too small to change any other."""
_FLOORED = 1e-5
"""A variance within this relative distance of its floor is at the floor. Others are farther away (`FLOOR_SLACK`)."""


def covers(transition: EigenTransition, delta: Float[Tensor, "time batch"]) -> Bool[Tensor, "time batch"]:
    """Return where `EigenSteps` can be used: where no exponent can exceed its bound."""
    largest = transition.eigenvalues.amax().clamp_min(0.0)
    return largest * delta <= math.log(bounds(delta.dtype).transition)


def pairs_of(size: int, device: torch.device) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
    """Return the indices a ≤ b of all pairs, those with a = b first."""
    diagonal = torch.arange(size, device=device)
    above = torch.triu_indices(size, size, 1, device=device)
    return torch.cat([diagonal, above[0]]), torch.cat([diagonal, above[1]])


def rotation(E: Float[Tensor, "state state"]) -> Float[Tensor, "diagonals pairs"]:
    """Return the matrix of the linear map from (upper, side, lower) to the pairs of Eᵀ Σ E."""
    first, second = pairs_of(len(E), E.device)
    (top, top_), (bottom, bottom_) = ((half[:, first], half[:, second]) for half in E.chunk(2))
    return torch.cat([top * top_, top * bottom_ + bottom * top_, bottom * bottom_])


class Sums(NamedTuple):
    """Gradients by the constants of `EigenSteps`, summed over rows."""

    weight: Float[Tensor, "basis state"]
    bias: Float[Tensor, " basis"]
    rates: Float[Tensor, "basis sums"]
    E: Float[Tensor, "state state"]  # only the part from the maps of means
    into: Float[Tensor, "diagonals pairs"]
    out_of: Float[Tensor, "pairs diagonals"]
    noise: Float[Tensor, " pairs"]


class EigenSteps(PredictSteps):
    """The predict step of the f-CRU at each time.

    Columns of eigenvalues and exponentials are the sums of all pairs, then the single ones.

    Args:
        transition: the transition, without gradients.
        delta: the gap before each time.
        stepped: True where the predict step runs.
    """

    def __init__(
        self, transition: EigenTransition, delta: Float[Tensor, "time batch"], stepped: Bool[Tensor, "time batch"]
    ) -> None:
        super().__init__(SteppedRows(stepped))
        (self.weight, bias), eigenvalues, self.E, noise = transition
        self.state, self.basis = len(self.E), len(self.weight)
        self.index_a, self.index_b = pairs_of(self.state, self.E.device)
        self.pairs = len(self.index_a)
        self.row_size = self.pairs + self.state
        self.delta = self.rows.gather(delta)[:, None]
        self.delta_of_step = self.rows.split(self.delta)
        self.heads = torch.cat([self.weight, self.E.mT])  # μ ↦ logits and p = Eᵀ μ
        self.head_bias = torch.cat([bias, bias.new_zeros(self.state)])[:, None]
        self.rates = torch.cat([eigenvalues[:, self.index_a] + eigenvalues[:, self.index_b], eigenvalues], 1)
        self.nudge = eigenvalues.new_tensor(_NUDGE[eigenvalues.dtype])
        self.into = rotation(self.E)
        upper, lower = noise.chunk(2)
        self.noise = torch.cat([upper, torch.zeros_like(upper), lower])
        self.noise_pairs = self.noise @ self.into  # of S = Eᵀ diag(q) E
        self.twice = 2 - (self.index_a == self.index_b).to(noise.dtype)  # a pair a < b is two entries of the matrix
        self.half = noise.new_tensor([1.0, 0.5, 1.0]).repeat_interleave(len(upper))  # a side is two entries, too
        self.out_of = (self.into * self.twice).mT * self.half
        self.floor = ((1 - FLOOR_SLACK) * noise.min() * self.E.square()).mT

    def forward(self, t: int, before: Float[Tensor, "rows 5 obs"], out: Float[Tensor, "rows 5 obs"]) -> None:
        """Write the priors of the rows. With d = Σ_k α_k d_k, p = Eᵀ μ⁺, γ = exp(d Δ) and the pairs (a, b):

        F_ab = (Eᵀ Σ⁺ E)_ab exp((d_a + d_b) Δ) + S_ab (exp((d_a + d_b) Δ) - 1) / (d_a + d_b),
        μ⁻ = E (γ ⊙ p),  Σ⁻ = E F Eᵀ.
        """
        state, pairs = self.state, self.pairs
        belief, prior = before.flatten(1), out.flatten(1)
        _, mode, rate, exponent, growth = self._spectrum(belief, self.delta_of_step[t])
        integral = torch.expm1(exponent[:, :pairs]).div_(rate[:, :pairs])
        full = (belief[:, state:] @ self.into).mul_(growth[:, :pairs]).addcmul_(integral, self.noise_pairs)
        torch.mm(mode * growth[:, pairs:], self.E.mT, out=prior[:, :state])
        torch.mm(full, self.out_of, out=prior[:, state:])
        variance = out[:, UPPER::2]
        torch.maximum(variance, (integral[:, :state] @ self.floor).view_as(variance), out=variance)

    def _spectrum(
        self, belief: Float[Tensor, "rows fields"], delta: Float[Tensor, "rows 1"]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return α, p, the eigenvalues of all columns, their products with Δ, and the exponentials."""
        heads = torch.addmm(self.head_bias, self.heads, belief[:, : self.state].mT)  # a softmax of columns is faster
        alpha = heads[: self.basis].softmax(0).mT
        rate = torch.addmm(self.nudge, alpha, self.rates)
        exponent = rate * delta
        return alpha, heads[self.basis :].mT, rate, exponent, exponent.exp()

    def prepare(self, priors: Float[Tensor, "time batch 5 obs"], states: Float[Tensor, "states batch 5 obs"]) -> None:
        """Set all sums to zero."""
        super().prepare(priors, states)
        like = (self.weight, self.weight[:, 0], self.rates, self.E, self.into, self.out_of, self.noise_pairs)
        self.sums = Sums(*map(torch.zeros_like, like))

    def start_span(self, first: int, last: int) -> None:
        """Compute all factors of the gradient for the steps from ``last`` - 1 to ``first``."""
        state, pairs, rows = self.state, self.pairs, self.rows
        self.before = before = rows.gather(self.states, first, last).flatten(1)
        delta = self.delta[rows.offsets[first] : rows.offsets[last]]
        self.alpha, mode, rate, exponent, self.growth = self._spectrum(before, delta)
        rate, exponent, growth = rate[:, :pairs], exponent[:, :pairs], self.growth[:, :pairs]
        self.integral = torch.expm1(exponent).div_(rate)
        carried = (before[:, state:] @ self.into).mul_(growth)
        self.full = torch.addcmul(carried, self.integral, self.noise_pairs)
        self.mode_after = mode * self.growth[:, pairs:]
        slope = integral_slope(self.integral, rate, exponent, growth, delta)
        by_pair = torch.addcmul(delta * carried, slope, self.noise_pairs)
        self.by_rate = torch.cat([by_pair, delta * self.mode_after], 1)
        variance = rows.gather(self.priors, first, last)[:, UPPER::2]
        least = (self.integral[:, :state] @ self.floor).mul_(1 + _FLOORED).view_as(variance)
        free = torch.ones_like(before)
        free.view(len(free), 5, -1)[:, UPPER::2] = (variance > least).to(free.dtype)
        self.grads, self.grad_modes = torch.empty_like(before), torch.empty_like(self.by_rate)
        self.grad_logits = before.new_empty(len(before), self.basis)
        parts = free, self.grads, self.grad_modes, self.by_rate, self.growth, self.alpha, self.grad_logits
        split = zip(*(rows.split(part, first, last) for part in parts), strict=True)
        self.steps = dict(zip(range(first, last), split, strict=True))

    def backward(self, t: int, grad: Float[Tensor, "batch 5 obs"]) -> Float[Tensor, "rows 5 obs"]:
        """Return the gradient by the rows before the step. With Γ by Σ⁻ and g = Eᵀ μ̄⁻:

        F̄ = Eᵀ Γ E,  ū, s̄, l̄ from E (F̄ ⊙ exp((d_a + d_b) Δ)) Eᵀ,  μ̄⁺ = E (γ ⊙ g) + Wᵀ logit̄.

        A sum of two eigenvalues has the gradient F̄ ⊙ ``by_rate``. A single eigenvalue has the gradient g ⊙ ``by_rate``.
        """
        self.ensure_span(t)
        state, pairs = self.state, self.pairs
        free, grads, modes, by_rate, growth, alpha, logits = self.steps[t]
        torch.mul(self.rows.select(t, grad).flatten(1), free, out=grads)
        torch.mm(grads[:, state:], self.out_of.mT, out=modes[:, :pairs])
        torch.mm(grads[:, :state], self.E, out=modes[:, pairs:])
        weighted = alpha * ((modes * by_rate) @ self.rates.mT)
        torch.addcmul(weighted, alpha, weighted.sum(-1, keepdim=True), value=-1, out=logits)
        scaled, found = modes * growth, torch.empty_like(grads)
        torch.mm(scaled[:, :pairs], self.into.mT, out=found[:, state:])
        torch.addmm(scaled[:, pairs:] @ self.E.mT, logits, self.weight, out=found[:, :state])
        return found.view(len(found), 5, -1)

    def end_span(self) -> None:
        """Add the contribution of the steps since `start_span` to the sums."""
        state, pairs = self.state, self.pairs
        mean, diagonals = self.before[:, :state], self.before[:, state:]
        scaled = self.grad_modes * self.growth
        found = Sums(
            weight=self.grad_logits.mT @ mean,
            bias=self.grad_logits.sum(0),
            rates=self.alpha.mT @ (self.grad_modes * self.by_rate),
            E=self.grads[:, :state].mT @ self.mode_after + mean.mT @ scaled[:, pairs:],
            into=diagonals.mT @ scaled[:, :pairs],
            out_of=self.full.mT @ self.grads[:, state:],
            noise=(self.grad_modes[:, :pairs] * self.integral).sum(0),
        )
        for total, each in zip(self.sums, found, strict=True):
            total += each

    def gradients(self) -> tuple[Tensor, ...]:
        """Return the gradients by weight, bias, eigenvalues, eigenvectors and noise."""
        self.end_current_span()
        weight, bias, rates, E, into, out_of, noise = self.sums
        eigenvalues = rates[:, self.pairs :].clone()
        for index in (self.index_a, self.index_b):
            eigenvalues.index_add_(1, index, rates[:, : self.pairs])
        into = into + torch.outer(self.noise, noise) + (out_of * self.half).mT * self.twice
        with torch.enable_grad():
            leaf = self.E.detach().requires_grad_()
            E = E + torch.autograd.grad(rotation(leaf), leaf, into)[0]
        upper, _, lower = (self.into @ noise).chunk(3)
        return weight, bias, eigenvalues, E, torch.cat([upper, lower])


def integral_slope(
    integral: Float[Tensor, "rows pairs"],
    rate: Float[Tensor, "rows pairs"],
    exponent: Float[Tensor, "rows pairs"],
    growth: Float[Tensor, "rows pairs"],
    delta: Float[Tensor, "rows 1"],
) -> Float[Tensor, "rows pairs"]:
    """Return the derivative of I = (e^{rΔ} - 1) / r by r.

    It is (Δ e^{rΔ} - I) / r, and near zero the series Δ² Σ_k (rΔ)^k / (k! (k + 2)).

    Args:
        integral: I.
        rate: r.
        exponent: rΔ.
        growth: e^{rΔ}.
        delta: Δ.
    """
    order = 8 if rate.dtype == torch.float32 else 15
    series = torch.full_like(exponent, 1 / (math.factorial(order) * (order + 2)))
    for k in range(order - 1, -1, -1):
        series.mul_(exponent).add_(1 / (math.factorial(k) * (k + 2)))
    far = (delta * growth).sub_(integral).div_(rate)
    return torch.where(exponent.abs() < 0.5, series.mul_(delta.square()), far)
