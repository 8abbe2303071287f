"""A block of a deep paired CRU: a filter with independent pairs, then a gated unit that mixes them."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cru.functional import Belief
from cru.functional.carry_forward import last_observation
from cru.layers.paired import PairedCRU
from cru.shapes import Bool, Float

VARIANCE_OFFSET = 1e-6  # added to a variance before its logarithm
INITIAL_PAIRS = [(0.1, 0.0), (5.0, 0.0), (100.0, 0.0)]  # decay and turns per span: level, drift and last value
MAX_DEVIATION = 5.0  # inputs of networks are clamped to this many standard deviations; the filter has the full value
LOG_SCALE = 0.3  # scales log variances to about the size of the means


class GatedUnit(nn.Module):
    """A gated linear unit from means and log variances of a belief to the width of the residual stream."""

    def __init__(self, pairs: int, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner, self.gate = nn.Linear(4 * pairs, width), nn.Linear(width, 2 * width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, belief: Belief) -> Float[Tensor, "batch time width"]:
        """Map the belief at each time."""
        spread = torch.cat([belief.upper, belief.lower], -1)
        seen = torch.cat([belief.mean, LOG_SCALE * torch.log(spread + VARIANCE_OFFSET)], -1)
        return F.glu(self.gate(self.dropout(F.gelu(self.inner(seen)))), -1)


class BlockState(NamedTuple):
    """The state of a block: its belief, and the shift of its dynamics by the last observation (empty if unused)."""

    belief: Belief
    shift: Float[Tensor, "batch shift"]


class PairedBlock(nn.Module):
    """The block x + mix(filter(heads(norm(x)))).

    Only ``observed`` times update the filter, so a query time has no influence on any other time.

    >>> from cru.layers.paired_block import PairedBlock
    >>> block = PairedBlock(16, 8)
    >>> block(torch.randn(2, 5, 16), torch.arange(5.0).expand(2, 5), torch.ones(2, 5, dtype=torch.bool)).shape
    torch.Size([2, 5, 16])

    Args:
        width: size of the residual stream.
        pairs: number of pairs of the filter.
        dropout: dropout of the gated unit.
        modulated: whether observations change the dynamics.
        smooth: whether to use the smoother instead of the filter.
        options: as for `PairedCRU`.
    """

    def __init__(
        self,
        width: int,
        pairs: int,
        *,
        dropout: float = 0.0,
        modulated: bool = False,
        smooth: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layer = PairedCRU(width, 2 * pairs, variance_map="softplus", **options)
        self.mix = GatedUnit(pairs, width, dropout)
        self.shift = nn.Linear(width, 2 * pairs) if modulated else None
        if self.shift is not None:
            nn.init.zeros_(self.shift.weight)
            nn.init.zeros_(self.shift.bias)
        self.smooth = smooth

    def forward(
        self, x: Float[Tensor, "batch time width"], times: Tensor, observed: Bool[Tensor, "batch time"]
    ) -> Float[Tensor, "batch time width"]:
        """Return the residual stream after this block. The arguments are those of `run`."""
        return self.run(x, times, observed)[0]

    def run(
        self,
        x: Float[Tensor, "batch time width"],
        times: Tensor,
        observed: Bool[Tensor, "batch time"],
        state: BlockState | None = None,
    ) -> tuple[Float[Tensor, "batch time width"], BlockState]:
        """Compute the residual stream after this block.

        Args:
            x: the residual stream before this block.
            times: absolute times, not decreasing.
            observed: True where anything is observed.
            state: the state to continue from.

        Returns:
            The residual stream, and the state after the last time.
        """
        h = self.norm(x)
        y, y_var = self.layer.observe(h)
        start, shift, last = None if state is None else state.belief, None, x.new_zeros(len(x), 0)
        if self.shift is not None:  # the last observation changes the dynamics after it
            latest = last_observation(self.shift(h), observed[..., None])
            before = torch.zeros_like(latest.value[:, :1]) if state is None else state.shift[:, None]
            shifts = torch.cat([before, torch.where(latest.known, latest.value, before)], 1)
            shift, last = shifts[:, :-1], shifts[:, -1]
        seen = observed[..., None].expand_as(y)
        belief = self.layer.filter_or_smooth(y, y_var, times, seen, shift=shift, state=start, smooth=self.smooth)
        return x + self.mix(belief), BlockState(belief.at(-1), last)


class FeatureBank(nn.Module):
    """A filter with ``copies`` pairs for every feature, which are updated only where that feature is observed.

    A missing feature therefore has no influence. The other features of the same time add a correction to the
    observation (initially zero) and determine its variance.

    >>> from cru.layers.paired_block import FeatureBank
    >>> bank = FeatureBank(3, 2)
    >>> values, mask = torch.randn(1, 5, 3), torch.ones(1, 5, 3, dtype=torch.bool)
    >>> bank(values, mask, torch.arange(5.0).expand(1, 5)).upper.shape
    torch.Size([1, 5, 6])
    """

    def __init__(
        self, features: int, copies: int, *, span: float = 100.0, smooth: bool = False, **options: Any
    ) -> None:
        super().__init__()
        self.layer = PairedCRU(2 * features, 2 * copies * features, span=span, variance_map="softplus", **options)
        nn.init.zeros_(self.layer.observation.weight)
        nn.init.zeros_(self.layer.observation.bias)
        further = [(0.01, 2.0**n) for n in range(copies - len(INITIAL_PAIRS))]
        decay, turns = torch.tensor(INITIAL_PAIRS[:copies] + further).T
        self.layer.set_dynamics(
            decay.repeat_interleave(features) / span, turns.repeat_interleave(features) * 2 * math.pi / span
        )
        self.copies, self.smooth = copies, smooth

    def forward(
        self,
        values: Float[Tensor, "batch time feature"],
        mask: Bool[Tensor, "batch time feature"],
        times: Tensor,
        state: Belief | None = None,
    ) -> Belief:
        """Return the beliefs. Pair i of copy c has the index c · features + i.

        Args:
            values: the inputs.
            mask: True where observed.
            times: absolute times, not decreasing.
            state: the belief to continue from.
        """
        limited = values.clamp(-MAX_DEVIATION, MAX_DEVIATION)
        added, y_var = self.layer.observe(torch.cat([limited, mask.to(values)], -1))
        y, seen = values.repeat(1, 1, self.copies) + added, mask.repeat(1, 1, self.copies)
        return self.layer.filter_or_smooth(y, y_var, times, seen, state=state, smooth=self.smooth)
