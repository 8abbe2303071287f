"""Series of different lengths, step by step, without a step for those that have ended."""

from typing import NamedTuple

import torch
from torch import Tensor

from cru.shapes import Bool, Float, Int64, Shaped

ROUNDING = 1e-3  # of a part, by which a gap may exceed a whole number of them


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
        numbers, last = torch.arange(running.shape[1], device=running.device), last_step(running)
        order = last.argsort(descending=True, stable=True)
        counts = (last[:, None] >= numbers[: max(last.tolist(), default=0) + 1]).sum(0)
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
        return flat.index_select(0, self.place.flatten()).view(*self.place.shape, flat.shape[1])


class SplitGaps(NamedTuple):
    """Series in which a long gap has become a few short ones, with steps between them at which nothing is observed.

    Each series is split on its own, so that a batch takes as many steps as its series with the most, and not at every
    step as many as the longest gap needs.

    >>> parts = SplitGaps.of(torch.tensor([[0.0, 2.5, 1.0], [0.0, 0.5, 0.5]]), longest=1.0)
    >>> parts.delta
    tensor([[0.0000, 0.8333, 0.8333, 0.8333, 1.0000],
            [0.0000, 0.5000, 0.5000, 0.0000, 0.0000]])
    >>> parts.end  # where the given steps are now
    tensor([[0, 3, 4],
            [0, 1, 2]])
    """

    delta: Float[Tensor, "batch parts"]
    end: Int64[Tensor, "batch time"]

    @classmethod
    def of(cls, delta: Float[Tensor, "batch time"], longest: float, most: int = 16) -> "SplitGaps":
        """Equal parts of each gap, none above ``longest`` unless there would be more than ``most``."""
        count = (delta / longest - ROUNDING).ceil().clamp(1, most)
        end = count.long().cumsum(1) - 1
        longest_series = max(end[:, -1].tolist(), default=0) + 1
        number = torch.arange(longest_series, device=delta.device).expand(len(delta), -1).contiguous()
        step = torch.searchsorted(end, number).clamp(max=delta.shape[1] - 1)
        part = (delta / count).gather(1, step)
        return cls(torch.where(number <= end[:, -1:], part, 0.0), end)

    def spread(self, x: Shaped[Tensor, "batch time ..."]) -> Shaped[Tensor, "batch parts ..."]:
        """``x`` at its steps, zero between them."""
        spread = x.new_zeros(*self.delta.shape, *x.shape[2:])
        return spread.index_put((self._rows, self.end), x)

    def take(self, x: Shaped[Tensor, "batch parts ..."]) -> Shaped[Tensor, "batch time ..."]:
        """``x`` at the given steps alone."""
        return x[self._rows, self.end]

    @property
    def _rows(self) -> Int64[Tensor, "batch 1"]:
        return torch.arange(len(self.end), device=self.end.device)[:, None]


def last_step(where: Bool[Tensor, "batch time"]) -> Int64[Tensor, " batch"]:
    """The last step of each series at which it holds, 0 where it never does."""
    return torch.where(where, torch.arange(where.shape[1], device=where.device), 0).amax(1)


def reversed_series(
    x: Shaped[Tensor, "batch time ..."], last: Int64[Tensor, " batch"]
) -> Shaped[Tensor, "batch time ..."]:
    """Each series from its step ``last`` back to its first; what follows repeats the first."""
    steps = (last[:, None] - torch.arange(x.shape[1], device=x.device)).clamp(min=0)
    return x[torch.arange(x.shape[0], device=x.device)[:, None], steps]
