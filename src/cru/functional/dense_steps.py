"""The common part of the predict steps of CRU and RKN, with a transition matrix for each series and custom gradients.

`docs/explanation/backward-passes.md` derives the formulas ("Three diagonals" and "Weights of the bases").
"""

import torch
from torch import Tensor

from cru.functional.packed import SIDE, UPPER
from cru.functional.stepped_rows import SteppedRows
from cru.functional.steps import PredictSteps
from cru.functional.transition import Coefficients
from cru.shapes import Float


def diagonals_times(
    diagonals: Float[Tensor, "rows 3 obs"], X: Float[Tensor, "rows state columns"]
) -> Float[Tensor, "rows state columns"]:
    """Return Γ X for the three diagonals (upper, side, lower) of Γ."""
    halves, side = X.view(len(X), 2, -1, X.shape[2]), diagonals[:, 1, :, None]
    out = halves * diagonals[:, ::2, :, None]
    out[:, 0].addcmul_(halves[:, 1], side)
    out[:, 1].addcmul_(halves[:, 0], side)
    return out.view(X.shape)


def times_diagonals(
    X: Float[Tensor, "rows state state"], diagonals: Float[Tensor, "rows 3 obs"]
) -> Float[Tensor, "rows state state"]:
    """Return X Σ for the three diagonals (upper, side, lower) of Σ."""
    halves, side = X.view(*X.shape[:2], 2, -1), diagonals[:, 1, None]
    out = halves * diagonals[:, None, ::2]
    out[:, :, 0].addcmul_(halves[:, :, 1], side)
    out[:, :, 1].addcmul_(halves[:, :, 0], side)
    return out.view(X.shape)


def transport(
    before: Float[Tensor, "rows 5 obs"], phi: Float[Tensor, "rows state state"], out: Float[Tensor, "rows 5 obs"]
) -> None:
    """Write Φ μ and the three diagonals of Φ Σ Φᵀ.

    Args:
        before: the packed belief (μ, Σ).
        phi: Φ.
        out: the tensor to write to.
    """
    obs = before.shape[-1]
    torch.bmm(phi, before[:, :UPPER].flatten(1)[:, :, None], out=out[:, :UPPER].flatten(1)[:, :, None])
    weighted = times_diagonals(phi, before[:, UPPER:])
    variance = out[:, UPPER::2]
    torch.sum((weighted * phi).view(*variance.shape, -1), -1, out=variance)
    variance.clamp_min_(0.0)  # negative only by rounding
    torch.sum(weighted[:, :obs] * phi[:, obs:], -1, out=out[:, SIDE])


def transport_backward(
    before: Float[Tensor, "rows 5 obs"],
    phi: Float[Tensor, "rows state state"],
    grad: Float[Tensor, "rows 5 obs"],
    product: Float[Tensor, "rows state state"],
    along: Float[Tensor, "rows state"],
) -> tuple[Float[Tensor, "rows 5 obs"], Float[Tensor, "rows state state"]]:
    """Return the gradients by the belief before and by Φ, from the gradient (μ̄', Γ) by the result.

    Φ̄ = 2 Γ Φ Σ + μ̄' μᵀ,  μ̄ = Φᵀ μ̄',  and (ū, s̄, l̄) from the three diagonals of Φᵀ Γ Φ.

    Args:
        before: the belief before.
        phi: Φ.
        grad: the gradient by the result.
        product: Γ Φ.
        along: the diagonal of Φᵀ Γ Φ.
    """
    obs, grad_mean = before.shape[-1], grad[:, :UPPER].flatten(1)
    out = torch.empty_like(before)
    torch.bmm(grad_mean[:, None], phi, out=out[:, :UPPER].flatten(1)[:, None])
    out[:, UPPER::2] = along.reshape(-1, 2, obs)
    torch.sum(phi[:, :, :obs] * product[:, :, obs:], 1, out=out[:, SIDE])
    out[:, SIDE].mul_(2)
    grad_phi = times_diagonals(product, 2 * before[:, UPPER:])
    return out, grad_phi.addcmul_(grad_mean[:, :, None], before[:, :UPPER].flatten(1)[:, None])


def symmetric(grad: Float[Tensor, "rows 5 obs"]) -> Float[Tensor, "rows 3 obs"]:
    """Return the diagonals of Γ. The side is two entries of the covariance, so each has half of its gradient."""
    diagonals = grad[:, UPPER:].clone()
    diagonals[:, 1].mul_(0.5)
    return diagonals


class DenseSteps(PredictSteps):
    """The common part of the predict steps of CRU and RKN: Z = c A with A = Σ_k α_k B_k.

    Args:
        coefficients: the network that weighs the bases.
        basis: the bases B_k.
        rows: the rows of these steps.
        scale: the factor c of each row.
        delta: the gap of each row, one more input of a network with M + 1 inputs.
    """

    def __init__(
        self,
        coefficients: Coefficients,
        basis: Float[Tensor, "basis state state"],
        rows: SteppedRows,
        scale: Float[Tensor, "rows 1"],
        delta: Float[Tensor, "rows 1"],
    ) -> None:
        super().__init__(rows)
        self.state, self.basis = basis.shape[-1], basis.flatten(1)
        self.weight, self.gap_weight = coefficients.weight.tensor_split([self.state], 1)
        self.bias = coefficients.bias[:, None]
        self.all_scales, self.all_gaps = scale, delta
        self.scales, self.gaps = rows.split(scale), rows.split(delta)

    def weigh(
        self, before: Float[Tensor, "rows 5 obs"], scale: Float[Tensor, "rows 1"], delta: Float[Tensor, "rows 1"]
    ) -> tuple[Float[Tensor, "rows basis"], Float[Tensor, "rows state state"]]:
        """Return the weights α of the bases, and Z.

        Args:
            before: the packed beliefs before the step.
            scale: the factor c of each row.
            delta: the gap of each row.
        """
        logits = torch.addmm(self.bias, self.weight, before[:, :UPPER].flatten(1).mT)  # a softmax of columns is faster
        if self.gap_weight.shape[1]:
            logits.addmm_(self.gap_weight, delta.mT)
        alpha = logits.softmax(0).mT
        return alpha, ((alpha * scale) @ self.basis).view(-1, self.state, self.state)

    def prepare(self, priors: Float[Tensor, "time batch 5 obs"], states: Float[Tensor, "states batch 5 obs"]) -> None:
        """Set all sums to zero."""
        super().prepare(priors, states)
        self.grad_basis, self.grad_bias = torch.zeros_like(self.basis), torch.zeros_like(self.bias[:, 0])
        self.grad_weight, self.grad_gap_weight = torch.zeros_like(self.weight), torch.zeros_like(self.gap_weight)

    def start_span(self, first: int, last: int) -> None:
        """Compute α and Z for the steps from ``last`` - 1 to ``first``."""
        rows = slice(self.rows.offsets[first], self.rows.offsets[last])
        self.before, self.span_gaps = self.rows.gather(self.states, first, last), self.all_gaps[rows]
        self.alpha, self.Z = self.weigh(self.before, self.all_scales[rows], self.span_gaps)
        self.grad_logits = self.alpha.new_empty(self.alpha.shape)
        shared = (self.before, self.alpha, self.grad_logits)
        split = zip(*(self.rows.split(part, first, last) for part in shared), strict=True)
        self.steps = dict(zip(range(first, last), split, strict=True))

    def weigh_backward(
        self, t: int, grad: Float[Tensor, "rows state state"], grad_before: Float[Tensor, "rows 5 obs"]
    ) -> None:
        """Add to the gradients by the bases and by the belief before, from the gradient Z̄.

        B̄_k = c α_k Z̄,  ᾱ_k = c ⟨Z̄, B_k⟩,  logit̄ = α ⊙ (ᾱ - Σ_k α_k ᾱ_k),  μ̄ += Wᵀ logit̄.

        Args:
            t: the step.
            grad: the gradient Z̄.
            grad_before: the gradient by the belief before, which changes in place.
        """
        _, alpha, logits = self.steps[t]
        flat, scaled, mean = grad.flatten(1), alpha * self.scales[t], grad_before.flatten(1)[:, : self.state]
        self.grad_basis.addmm_(scaled.mT, flat)
        weighted = scaled.mul_(flat @ self.basis.mT)
        torch.addcmul(weighted, alpha, weighted.sum(-1, keepdim=True), value=-1, out=logits)
        torch.addmm(mean, logits, self.weight, out=mean)

    def end_span(self) -> None:
        """Add the contribution of the steps since `start_span` to the gradients by the coefficients."""
        self.grad_weight.addmm_(self.grad_logits.mT, self.before[:, :UPPER].flatten(1))
        self.grad_gap_weight.add_((self.grad_logits.mT @ self.span_gaps)[:, : self.gap_weight.shape[1]])
        self.grad_bias.add_(self.grad_logits.sum(0))

    def shared_gradients(
        self,
    ) -> tuple[Float[Tensor, "basis inputs"], Float[Tensor, " basis"], Float[Tensor, "basis state state"]]:
        """Return the gradients by weight, bias and bases."""
        self.end_current_span()
        weight = torch.cat([self.grad_weight, self.grad_gap_weight], 1)
        return weight, self.grad_bias, self.grad_basis.view(-1, self.state, self.state)
