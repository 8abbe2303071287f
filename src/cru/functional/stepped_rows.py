"""The rows of a sequence at which the predict step runs."""

from itertools import accumulate, pairwise

import torch
from torch import Tensor

from cru.shapes import Bool, Float, Int, Shaped


class SteppedRows:
    """The rows at which the predict step runs. A row is one series at one time. The rows of a step are consecutive.

    Args:
        stepped: True where the predict step runs.
        rank: the sort key of the rows of a step, largest first. Without it, they have the order of the series.
    """

    def __init__(self, stepped: Bool[Tensor, "time batch"], rank: Float[Tensor, "time batch"] | None = None) -> None:
        times, batch = stepped.shape
        self.counts: list[int] = stepped.sum(1).tolist()
        self.offsets = list(accumulate(self.counts, initial=0))
        self.whole = rank is None and all(count in (0, batch) for count in self.counts)
        order = stepped.to(torch.uint8) if rank is None else torch.where(stepped, rank, -1.0)
        series = torch.sort(order, dim=1, descending=True, stable=True).indices
        kept = torch.arange(batch, device=stepped.device) < stepped.sum(1, keepdim=True)
        positions = series + batch * torch.arange(times, device=stepped.device)[:, None]
        self.positions: Int[Tensor, " rows"] = positions[kept]  # in (time, batch), flattened
        self.series = series[kept].split_with_sizes(self.counts)

    def select(self, t: int, tensor: Shaped[Tensor, "batch *rest"]) -> Shaped[Tensor, "rows *rest"]:
        """Return the rows of a step."""
        return tensor if self.whole else tensor.index_select(0, self.series[t])

    def replace(
        self, t: int, tensor: Shaped[Tensor, "batch *rest"], rows: Shaped[Tensor, "rows *rest"]
    ) -> Shaped[Tensor, "batch *rest"]:
        """Return the tensor with other values in the rows of a step."""
        return rows if self.whole else tensor.index_copy(0, self.series[t], rows)

    def gather(
        self, tensor: Shaped[Tensor, "time batch *rest"], first: int = 0, last: int | None = None
    ) -> Shaped[Tensor, "rows *rest"]:
        """Return the rows of the steps from ``first`` to ``last`` - 1."""
        last = len(self.counts) if last is None else last
        return tensor.flatten(0, 1).index_select(0, self.positions[self.offsets[first] : self.offsets[last]])

    def split(
        self, rows: Shaped[Tensor, "rows *rest"], first: int = 0, last: int | None = None
    ) -> tuple[Shaped[Tensor, "_ *rest"], ...]:
        """Split the rows that `gather` returns into those of each step."""
        return tuple(rows.split_with_sizes(self.counts[first:last]))

    def first_of_each(self, rows: Float[Tensor, " rows"]) -> list[float]:
        """Return the first row of each step, or 0 without rows. It is the largest if ``rows`` is the rank."""
        starts = [start for start, end in pairwise(self.offsets) if end > start]
        found = iter(rows[torch.tensor(starts, dtype=torch.long, device=rows.device)].tolist())
        return [next(found) if count else 0.0 for count in self.counts]
