"""The batch type of all datasets, tasks and models."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cru.shapes import Bool, Float, Float64, Int64, Shaped


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Series of different lengths in one tensor, padded at the end.

    ============  ============================  =======================================================
    field         shape                         meaning
    ============  ============================  =======================================================
    times         (batch, time) float64         absolute times in the unit of the data, never decreasing
    values        (batch, time, ...feature)     inputs; 0 where nothing is observed, never NaN
    mask          (batch, time, ...feature)     True = observed; images: (batch, time, 1, 1, 1)
    targets       (batch, time, ...target)      values to predict at ``times``; 0 without a target
    target_mask   (batch, time, ...target)      True = a target that counts in loss and scores
    hidden        (batch, time, ...target)      True = a target that is not an input
    lengths       (batch,)                      time points of each series; later ones are padding
    ids           ``batch`` strings             the names of the series
    extras        name -> (batch, time, ...)    other arrays of the dataset, such as ``noise``
    ============  ============================  =======================================================

    A mask broadcasts against its tensor. For images it has one entry per frame. The number of target entries is
    always ``batch.target_mask.expand_as(batch.targets).sum()``.

    Targets have the times of the inputs. A query is a time point without an observation.

    Padding repeats the last time, so its gaps are 0. It has no observations and no targets, so a filter leaves it
    unchanged. A series without time points consists of padding at time 0.

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
        """Mask of the time points with at least one observation."""
        return self.mask.flatten(2).any(-1)

    @property
    def valid(self) -> Bool[Tensor, "batch time"]:
        """Mask of the time points that are not padding."""
        return torch.arange(self.times.shape[1], device=self.lengths.device) < self.lengths[:, None]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Batch":
        """Move to ``device``, and convert values, targets and extras to ``dtype``. Times stay float64."""

        def move(tensor: Tensor, name: str) -> Tensor:
            keep = name == "times" or not tensor.is_floating_point()
            return tensor.to(device=device, dtype=None if keep else dtype)

        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        moved: dict[str, Any] = {name: move(value, name) for name, value in fields.items() if isinstance(value, Tensor)}
        return dataclasses.replace(self, **moved, extras={k: move(t, k) for k, t in self.extras.items()})
