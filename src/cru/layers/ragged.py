"""Series of different lengths, step by step, without a step for those that have ended."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor


class Ragged(NamedTuple):
    """The series of a batch with the longest first, so that those still running are always the first few.

    >>> running = torch.tensor([[True, False, False], [True, True, True]])
    >>> plan = Ragged.of(running)
    >>> plan.counts
    [2, 1, 1]
    >>> steps = plan.steps(torch.tensor([[1.0, 0.0, 0.0], [2.0, 3.0, 4.0]]))
    >>> steps
    [tensor([2., 1.]), tensor([3.]), tensor([4.])]
    >>> plan.join([step[:, None] for step in steps])[..., 0]  # a series that has ended keeps its last value
    tensor([[1., 1., 1.],
            [2., 3., 4.]])
    """

    order: Int64[Tensor, " batch"]
    counts: list[int]  # series that are still running, at each step that any runs
    place: Int64[Tensor, "batch time"]  # where each series and step is when the steps lie one after another

    @classmethod
    def of(cls, running: Bool[Tensor, "batch time"]) -> "Ragged":
        """A series ends after the last step at which it is ``running``, and has one step at least."""
        numbers = torch.arange(running.shape[1], device=running.device)
        last = torch.where(running, numbers, 0).amax(1)
        order = last.argsort(descending=True, stable=True)
        counts = (last[:, None] >= numbers[: int(last.max()) + 1]).sum(0)
        offsets = counts.cumsum(0) - counts
        rank = order.argsort()
        return cls(order, counts.tolist(), offsets[torch.minimum(numbers, last[:, None])] + rank[:, None])

    def steps(self, x: Shaped[Tensor, "batch time ..."]) -> list[Shaped[Tensor, "..."]]:
        """``x`` at each step, of the series that are running."""
        columns = x.index_select(0, self.order).unbind(1)
        return [column[:count] for column, count in zip(columns, self.counts, strict=False)]

    def join(self, steps: list[Float[Tensor, "_ size"]]) -> Float[Tensor, "batch time size"]:
        """What was found at each step, in the order of the batch; a series that has ended keeps what it had last."""
        flat = torch.cat(steps)
        return flat.index_select(0, self.place.flatten()).view(*self.place.shape, -1)


def reversed_series(
    x: Shaped[Tensor, "batch time ..."], last: Int64[Tensor, " batch"]
) -> Shaped[Tensor, "batch time ..."]:
    """Each series from its step ``last`` back to its first; what follows repeats the first."""
    steps = (last[:, None] - torch.arange(x.shape[1], device=x.device)).clamp(min=0)
    return x[torch.arange(x.shape[0], device=x.device)[:, None], steps]
