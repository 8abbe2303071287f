"""What the recurrent networks share: a hidden state at every time point, decoded there, and kept between calls."""

from typing import NamedTuple

import torch
from torch import Tensor

from cru.models.base import BatchLike, Model, Prediction
from cru.models.output_head import OutputHead
from cru.shapes import Float


class Hidden(NamedTuple):
    """The state of a recurrent network, and the time that it speaks of."""

    value: Float[Tensor, "batch state"]
    time: Float[Tensor, " batch"]

    @staticmethod
    def after(states: Float[Tensor, "batch time state"], batch: BatchLike) -> "Hidden":
        """That of each series at its last time, before any padding."""
        rows, last = torch.arange(len(states), device=states.device), (batch.lengths - 1).clamp(min=0)
        return Hidden(states[rows, last], batch.times[rows, last])


class RecurrentModel(Model):
    """A subclass writes `run` and has an ``output``."""

    output: OutputHead

    def run(self, batch: BatchLike, state: Hidden | None = None) -> Float[Tensor, "batch time state"]:
        """The state at every time point, going on from ``state``."""
        raise TypeError(f"{type(self).__name__} is a base class: use cru.models.create")

    def _advance(self, batch: BatchLike, state: Hidden | None) -> Hidden:
        """The state after the last time."""
        return Hidden.after(self.run(batch, state), batch)

    def forward(self, batch: BatchLike, *, state: Hidden | None = None, intermediates: bool = False) -> Prediction:
        """Decode the state at every time point."""
        states = self.run(batch, state)
        mean, var = self.output(states, valid=batch.valid)
        return Prediction(mean, var, {"states": states} if intermediates else {})
