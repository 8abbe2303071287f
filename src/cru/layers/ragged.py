"""Steps over series of different lengths, without steps for series that have ended."""

from typing import NamedTuple

import torch
from torch import Tensor

from cru.shapes import Bool, Float, Int64, Shaped

COUNT_TOLERANCE = 1e-3  # a gap may exceed an integer number of parts by this fraction of a part


class Ragged(NamedTuple):
    """The series of a batch in order of length, longest first. The running series are then always the first ones.

    >>> from cru.layers.ragged import Ragged
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
    counts: list[int]  # number of running series at each step
    place: Int64[Tensor, "batch time"]  # index of each series and step in the concatenation of all steps

    @classmethod
    def of(cls, running: Bool[Tensor, "batch time"]) -> "Ragged":
        """Sort the series. Each has at least one step, and ends after its last step with ``running`` True."""
        numbers, last = torch.arange(running.shape[1], device=running.device), last_step(running)
        order = last.argsort(descending=True, stable=True)
        counts = (last[:, None] >= numbers[: max(last.tolist(), default=0) + 1]).sum(0)
        offsets = counts.cumsum(0) - counts
        rank = order.argsort()
        return cls(order, counts.tolist(), offsets[torch.minimum(numbers, last[:, None])] + rank[:, None])

    def steps(self, x: Shaped[Tensor, "batch time ..."]) -> list[Shaped[Tensor, "..."]]:
        """Split ``x`` into steps, each with the running series only."""
        columns = x.index_select(0, self.order).unbind(1)
        return [column[:count] for column, count in zip(columns, self.counts, strict=False)]

    def join(self, steps: list[Float[Tensor, "_ size"]]) -> Float[Tensor, "batch time size"]:
        """Join the results of all steps, in the order of the batch. A series that has ended repeats its last result."""
        flat = torch.cat(steps)
        return flat.index_select(0, self.place.flatten()).view(*self.place.shape, flat.shape[1])


class SplitGaps(NamedTuple):
    """Series whose long gaps are divided into equal parts, by added steps without an observation.

    Each series is divided separately. The number of steps of a batch is therefore that of its longest series.

    >>> from cru.layers.ragged import SplitGaps
    >>> parts = SplitGaps.of(torch.tensor([[0.0, 2.5, 1.0], [0.0, 0.5, 0.5]]), longest=1.0)
    >>> parts.delta
    tensor([[0.0000, 0.8333, 0.8333, 0.8333, 1.0000],
            [0.0000, 0.5000, 0.5000, 0.0000, 0.0000]])
    >>> parts.end  # the new index of each original step
    tensor([[0, 3, 4],
            [0, 1, 2]])
    """

    delta: Float[Tensor, "batch parts"]
    end: Int64[Tensor, "batch time"]

    @classmethod
    def of(cls, delta: Float[Tensor, "batch time"], longest: float, most: int = 16) -> "SplitGaps":
        """Divide each gap into equal parts of at most ``longest``, but into no more than ``most`` parts."""
        count = (delta / longest - COUNT_TOLERANCE).ceil().clamp(1, most)
        end = count.long().cumsum(1) - 1
        longest_series = max(end[:, -1].tolist(), default=0) + 1
        number = torch.arange(longest_series, device=delta.device).expand(len(delta), -1).contiguous()
        step = torch.searchsorted(end, number).clamp(max=delta.shape[1] - 1)
        part = (delta / count).gather(1, step)
        return cls(torch.where(number <= end[:, -1:], part, 0.0), end)

    def spread(self, x: Shaped[Tensor, "batch time ..."]) -> Shaped[Tensor, "batch parts ..."]:
        """Insert zeros into ``x`` at the added steps."""
        spread = x.new_zeros(*self.delta.shape, *x.shape[2:])
        return spread.index_put((self._rows, self.end), x)

    def take(self, x: Shaped[Tensor, "batch parts ..."]) -> Shaped[Tensor, "batch time ..."]:
        """Select the original steps of ``x``."""
        return x[self._rows, self.end]

    @property
    def _rows(self) -> Int64[Tensor, "batch 1"]:
        return torch.arange(len(self.end), device=self.end.device)[:, None]


def last_step(where: Bool[Tensor, "batch time"]) -> Int64[Tensor, " batch"]:
    """Find the last step of each series where the condition is True, or 0 if there is none."""
    return torch.where(where, torch.arange(where.shape[1], device=where.device), 0).amax(1)


def reversed_series(
    x: Shaped[Tensor, "batch time ..."], last: Int64[Tensor, " batch"]
) -> Shaped[Tensor, "batch time ..."]:
    """Reverse each series from its step ``last`` to its first step. The rest repeats the first step."""
    steps = (last[:, None] - torch.arange(x.shape[1], device=x.device)).clamp(min=0)
    return x[torch.arange(x.shape[0], device=x.device)[:, None], steps]
