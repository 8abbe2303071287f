"""The predict steps of the RKN over a sequence, with a custom gradient. The maths is in `discrete.py`."""

import torch
from torch import Tensor

from cru.functional.belief import bounds
from cru.functional.dense_steps import DenseSteps, diagonals_times, symmetric, transport, transport_backward
from cru.functional.packed import UPPER
from cru.functional.stepped_rows import SteppedRows
from cru.functional.transition import DiscreteTransition
from cru.shapes import Bool, Float


def covers(transition: DiscreteTransition, delta: Float[Tensor, "time batch"]) -> Bool[Tensor, "time batch"]:
    """Return where `DiscreteSteps` can be used: everywhere, if no entry of A can reach its bound."""
    return (transition.basis.abs().amax() + 1 < bounds(delta.dtype).transition).expand_as(delta)


class DiscreteSteps(DenseSteps):
    """The predict step of the RKN at each time: A = I + Σ_k α_k B_k, μ⁻ = A μ⁺, Σ⁻ = A Σ⁺ Aᵀ + diag(q).

    Args:
        transition: the transition, without gradients.
        delta: the gap before each time.
        stepped: True where the predict step runs.
    """

    def __init__(
        self, transition: DiscreteTransition, delta: Float[Tensor, "time batch"], stepped: Bool[Tensor, "time batch"]
    ) -> None:
        rows = SteppedRows(stepped)
        gap = rows.gather(delta)[:, None]
        super().__init__(transition.coefficients, transition.basis, rows, torch.ones_like(gap), gap)
        self.noise, self.row_size = transition.noise.view(2, -1), self.state**2

    def forward(self, t: int, before: Float[Tensor, "rows 5 obs"], out: Float[Tensor, "rows 5 obs"]) -> None:
        """Write the priors of the rows."""
        _, A = self.weigh(before, self.scales[t], self.gaps[t])
        A.diagonal(dim1=1, dim2=2).add_(1)
        transport(before, A, out)
        out[:, UPPER::2].add_(self.noise)

    def prepare(self, priors: Float[Tensor, "time batch 5 obs"], states: Float[Tensor, "states batch 5 obs"]) -> None:
        """Set all sums to zero."""
        super().prepare(priors, states)
        self.grad_noise = torch.zeros_like(self.noise)

    def start_span(self, first: int, last: int) -> None:
        """Compute α and A for the steps from ``last`` - 1 to ``first``."""
        super().start_span(first, last)
        self.Z.diagonal(dim1=1, dim2=2).add_(1)
        self.matrices = dict(zip(range(first, last), self.rows.split(self.Z, first, last), strict=True))

    def backward(self, t: int, grad: Float[Tensor, "batch 5 obs"]) -> Float[Tensor, "rows 5 obs"]:
        """Return the gradient by the rows before the step."""
        self.ensure_span(t)
        before, A, grad = self.steps[t][0], self.matrices[t], self.rows.select(t, grad)
        product = diagonals_times(symmetric(grad), A)
        found, grad_A = transport_backward(before, A, grad, product, (product * A).sum(1))
        self.weigh_backward(t, grad_A, found)
        self.grad_noise.add_(grad[:, UPPER::2].sum(0))
        return found

    def gradients(self) -> tuple[Tensor, ...]:
        """Return the gradients by weight, bias, bases and noise."""
        return *self.shared_gradients(), self.grad_noise.flatten()
