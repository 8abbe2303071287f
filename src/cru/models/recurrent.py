"""The base class of recurrent models: a hidden state at every time point, with a decoder and streaming."""

from typing import NamedTuple

import torch
from torch import Tensor

from cru.models.base import BatchLike, Model, OutputHead, Prediction
from cru.shapes import Float


class RecurrentState(NamedTuple):
    """The state of a recurrent network and its time."""

    value: Float[Tensor, "batch state"]
    time: Float[Tensor, " batch"]

    @staticmethod
    def after(states: Float[Tensor, "batch time state"], batch: BatchLike) -> "RecurrentState":
        """Select the state of each series at its last time, before the padding."""
        rows, last = torch.arange(len(states), device=states.device), (batch.lengths - 1).clamp(min=0)
        return RecurrentState(states[rows, last], batch.times[rows, last])


class RecurrentModel(Model):
    """Base class of recurrent models. A subclass defines `run` and ``output``."""

    output: OutputHead

    def run(self, batch: BatchLike, state: RecurrentState | None = None) -> Float[Tensor, "batch time state"]:
        """Compute the state at every time point, continuing from ``state``."""
        raise TypeError(f"{type(self).__name__} is a base class: use cru.models.create")

    def _advance(self, batch: BatchLike, state: RecurrentState | None) -> RecurrentState:
        """Return the state after the last time."""
        return RecurrentState.after(self.run(batch, state), batch)

    def forward(
        self, batch: BatchLike, *, state: RecurrentState | None = None, intermediates: bool = False
    ) -> Prediction:
        """Decode the state at every time point.

        Args:
            batch: the batch.
            state: the state to continue from.
            intermediates: whether to return the states, too.
        """
        states = self.run(batch, state)
        mean, var = self.output(states, valid=batch.valid)
        return Prediction(mean, var, {"states": states} if intermediates else {})
