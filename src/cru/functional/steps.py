"""Base classes of the steps of a filter with a custom gradient."""

import torch
from torch import Tensor

from cru.functional.stepped_rows import SteppedRows
from cru.shapes import Float

_SPAN = {"cpu": 2**19}
_LARGE_SPAN = 2**24
"""Elements that a backward pass prepares at once. On a CPU they fit into the cache, elsewhere into memory."""


class Steps:
    """The steps of a sequence. The backward pass goes from the last to the first, and prepares a span of steps at once.

    Each call of `backward` calls `ensure_span` first. It calls `start_span` where a span starts, and `end_span`
    where one is done.
    """

    first, last, span = 0, 0, 1

    def set_span(self, elements: int, device: torch.device) -> None:
        """Choose the length of a span, so that ``elements`` for each step fit into the cache or the memory."""
        self.first, self.last = 0, 0
        self.span = max(1, _SPAN.get(device.type, _LARGE_SPAN) // max(1, elements))

    def ensure_span(self, t: int) -> None:
        """Start the span of step t, unless it is the current one."""
        if not self.first <= t < self.last:
            self.end_current_span()
            self.first, self.last = max(0, t + 1 - self.span), t + 1
            self.start_span(self.first, self.last)

    def end_current_span(self) -> None:
        """End the current span, if there is one."""
        if self.last:
            self.end_span()
        self.first, self.last = 0, 0

    def start_span(self, first: int, last: int) -> None:
        """Compute the factors of the backward steps from ``last`` - 1 to ``first`` that do not depend on gradients."""

    def end_span(self) -> None:
        """Add the contribution of the steps since `start_span` to the gradients by the parameters."""


class PredictSteps(Steps):
    """The predict step at each time of a sequence, on packed beliefs.

    Args:
        rows: the rows of these steps.
    """

    row_size = 0
    """Elements that `start_span` computes for each row."""
    priors: Float[Tensor, "time batch 5 obs"]
    states: Float[Tensor, "states batch 5 obs"]

    def __init__(self, rows: SteppedRows) -> None:
        self.rows = rows

    def forward(self, t: int, before: Float[Tensor, "rows 5 obs"], out: Float[Tensor, "rows 5 obs"]) -> None:
        """Write the priors of the rows, not clamped yet.

        Args:
            t: the step.
            before: the packed beliefs before the step.
            out: the tensor to write to.
        """
        raise NotImplementedError

    def prepare(self, priors: Float[Tensor, "time batch 5 obs"], states: Float[Tensor, "states batch 5 obs"]) -> None:
        """Prepare a backward pass. ``states[t]`` is the belief before step t."""
        self.priors, self.states = priors, states
        self.set_span(self.row_size * max(self.rows.counts), states.device)

    def backward(self, t: int, grad: Float[Tensor, "batch 5 obs"]) -> Float[Tensor, "rows 5 obs"]:
        """Return the gradient by the rows before the step, from the gradient by the priors of all series."""
        raise NotImplementedError

    def gradients(self) -> tuple[Tensor, ...]:
        """Return the gradients by the parameters of the transition, in their order."""
        raise NotImplementedError
