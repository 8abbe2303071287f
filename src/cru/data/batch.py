"""The one batch type: what every dataset and task gives, and every model takes."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cru.shapes import Bool, Float, Float64, Int64, Shaped


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Series of different lengths side by side, padded at the end.

    ============  ============================  =======================================================
    field         shape                         meaning
    ============  ============================  =======================================================
    times         (batch, time) float64         absolute times in the data's own unit, never decreasing
    values        (batch, time, ...feature)     inputs; 0 where nothing is observed, never NaN
    mask          (batch, time, ...feature)     True = observed; images: (batch, time, 1, 1, 1)
    targets       (batch, time, ...target)      what to predict at ``times``; 0 where there is nothing
    target_mask   (batch, time, ...target)      True = a target that counts in loss and scores
    hidden        (batch, time, ...target)      the targets that the task withheld from the inputs
    lengths       (batch,)                      time points of each series; later ones are padding
    ids           ``batch`` strings             the names of the series
    extras        name -> (batch, time, ...)    what a dataset keeps beside the values: ``noise``
    ============  ============================  =======================================================

    A mask always broadcasts against what it masks. For images it has one entry a frame, so that a count of target
    entries is ``batch.target_mask.expand_as(batch.targets).sum()`` everywhere.

    Targets sit at the input times. A time to be predicted without a reading is a time point with nothing observed.

    Padding repeats the last time (the gaps are 0), with nothing observed and nothing to predict: a filter that runs
    over it changes nothing. A series without any time point is all padding, at time 0.

    >>> series = cru.data.from_arrays({"X": np.ones((5, 3, 2))})
    >>> series.batch([0, 1]).to("cpu").values.shape
    torch.Size([2, 3, 2])
    """

    times: Float64[Tensor, "batch time"]
    values: Float[Tensor, "batch time *feature"]
    mask: Bool[Tensor, "batch time *mask"]
    targets: Float[Tensor, "batch time *target"]
    target_mask: Bool[Tensor, "batch time *target_mask"]
    hidden: Bool[Tensor, "batch time *target_mask"]
    lengths: Int64[Tensor, " batch"]
    ids: tuple[str, ...]
    extras: Mapping[str, Shaped[Tensor, "batch time ..."]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def observed(self) -> Bool[Tensor, "batch time"]:
        """Time points at which anything at all is observed."""
        return self.mask.flatten(2).any(-1)

    @property
    def valid(self) -> Bool[Tensor, "batch time"]:
        """Time points that are not padding."""
        return torch.arange(self.times.shape[1], device=self.lengths.device) < self.lengths[:, None]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Batch":
        """The same batch on ``device``, with values, targets and extras in ``dtype``; times stay float64."""

        def move(tensor: Tensor, name: str) -> Tensor:
            keep = name == "times" or not tensor.is_floating_point()
            return tensor.to(device=device, dtype=None if keep else dtype)

        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        moved: dict[str, Any] = {name: move(value, name) for name, value in fields.items() if isinstance(value, Tensor)}
        return dataclasses.replace(self, **moved, extras={k: move(t, k) for k, t in self.extras.items()})
