"""The predict steps of any transition, differentiated by PyTorch: for the few rows with extreme gaps."""

import torch
from torch import Tensor

from cru.functional.packed import pack, unpack
from cru.functional.stepped_rows import SteppedRows
from cru.functional.steps import PredictSteps
from cru.functional.transition import Transition, parameters_of, with_parameters
from cru.shapes import Bool, Float


class PlainSteps(PredictSteps):
    """The predict step at each time.

    Args:
        transition: the transition, without gradients.
        delta: the gap before each time.
        stepped: True where the predict step runs.
    """

    def __init__(
        self, transition: Transition, delta: Float[Tensor, "time batch"], stepped: Bool[Tensor, "time batch"]
    ) -> None:
        super().__init__(SteppedRows(stepped))
        gap = self.rows.gather(delta)
        self.transition, self.delta, self.plan = transition, self.rows.split(gap), transition.plan(gap)

    def forward(self, t: int, before: Float[Tensor, "rows 5 obs"], out: Float[Tensor, "rows 5 obs"]) -> None:
        """Write the priors of the rows."""
        out.copy_(pack(self.transition.predict(unpack(before), self.delta[t], self.plan)))

    def prepare(self, priors: Float[Tensor, "time batch 5 obs"], states: Float[Tensor, "states batch 5 obs"]) -> None:
        """Set all sums to zero."""
        super().prepare(priors, states)
        self.sums = [torch.zeros_like(parameter) for parameter in parameters_of(self.transition)]

    def backward(self, t: int, grad: Float[Tensor, "batch 5 obs"]) -> Float[Tensor, "rows 5 obs"]:
        """Return the gradient by the rows before the step."""
        with torch.enable_grad():
            before = self.rows.select(t, self.states[t]).detach().requires_grad_()
            leaves = [parameter.detach().requires_grad_() for parameter in parameters_of(self.transition)]
            prior = with_parameters(self.transition, leaves).predict(unpack(before), self.delta[t], self.plan)
            found = torch.autograd.grad(
                pack(prior), [before, *leaves], self.rows.select(t, grad), allow_unused=True, materialize_grads=True
            )
        for total, each in zip(self.sums, found[1:], strict=True):
            total += each
        return found[0]

    def gradients(self) -> tuple[Tensor, ...]:
        """Return the gradients by the parameters."""
        return tuple(self.sums)
