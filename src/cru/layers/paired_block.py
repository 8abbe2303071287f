"""A layer of a deep paired CRU: the filter keeps channels apart, the gated unit after it mixes them."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cru.functional import Belief
from cru.functional.carry_forward import last_seen
from cru.layers.paired import PairedCRU
from cru.shapes import Bool, Float

SMALL_VARIANCE = 1e-6
INITIAL_PAIRS = [(0.1, 0.0), (5.0, 0.0), (100.0, 0.0)]  # decay and turns per span: a level, a drift, the last value
MAX_DEVIATION = 5.0  # standard deviations at which networks see an outlier; the pairs of its feature see all of it
LOG_SCALE = 0.3  # log variances are then about as large as the means


class Mix(nn.Module):
    """[means, log variances] of a belief -> gated linear unit, of the size that the residual stream has."""

    def __init__(self, pairs: int, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner, self.gate = nn.Linear(4 * pairs, width), nn.Linear(width, 2 * width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, belief: Belief) -> Float[Tensor, "batch time width"]:
        """For each belief."""
        spread = torch.cat([belief.upper, belief.lower], -1)
        seen = torch.cat([belief.mean, LOG_SCALE * torch.log(spread + SMALL_VARIANCE)], -1)
        return F.glu(self.gate(self.dropout(F.gelu(self.inner(seen)))), -1)


class BlockState(NamedTuple):
    """What a block knows after a time: its belief, and how the last reading moves its pairs (of size 0 if not)."""

    belief: Belief
    shift: Float[Tensor, "batch shift"]


class PairedBlock(nn.Module):
    """x + mix(filter(heads(norm(x)))). Only what is ``observed`` is filtered, so a time that one merely asks for has no
    influence on any other.

    ``smooth`` puts the belief given the whole series in the place of the filter's; ``options`` are of `PairedCRU`.

    >>> block = PairedBlock(16, 8)
    >>> block(torch.randn(2, 5, 16), torch.arange(5.0).expand(2, 5), torch.ones(2, 5, dtype=torch.bool)).shape
    torch.Size([2, 5, 16])
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
        self.mix = Mix(pairs, width, dropout)
        self.shift = nn.Linear(width, 2 * pairs) if modulated else None
        if self.shift is not None:
            nn.init.zeros_(self.shift.weight)
            nn.init.zeros_(self.shift.bias)
        self.smooth = smooth

    def forward(
        self, x: Float[Tensor, "batch time width"], times: Tensor, observed: Bool[Tensor, "batch time"]
    ) -> Float[Tensor, "batch time width"]:
        """The stream after this layer."""
        return self.run(x, times, observed)[0]

    def run(
        self,
        x: Float[Tensor, "batch time width"],
        times: Tensor,
        observed: Bool[Tensor, "batch time"],
        state: BlockState | None = None,
    ) -> tuple[Float[Tensor, "batch time width"], BlockState]:
        """The same from ``state`` on, and the state after the last time."""
        h = self.norm(x)
        y, y_var = self.layer.observe(h)
        start, shift, last = None if state is None else state.belief, None, x.new_zeros(len(x), 0)
        if self.shift is not None:  # what was last read says how the state moves on from there
            moved = last_seen(self.shift(h), observed[..., None])
            before = torch.zeros_like(moved.value[:, :1]) if state is None else state.shift[:, None]
            moves = torch.cat([before, torch.where(moved.known, moved.value, before)], 1)
            shift, last = moves[:, :-1], moves[:, -1]
        seen = observed[..., None].expand_as(y)
        belief = self.layer.filter_or_smooth(y, y_var, times, seen, shift=shift, state=start, smooth=self.smooth)
        return x + self.mix(belief), BlockState(belief.at(-1), last)


class FeatureBank(nn.Module):
    """``copies`` pairs for every feature, which see that feature alone and only where it is observed.

    So a missing feature has no say at all. What is read beside it moves the reading (by nothing at the start) and says
    how far it can be trusted.

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
        """Pair i of copy c stands at c · features + i."""
        moved, y_var = self.layer.observe(torch.cat([values.clamp(-MAX_DEVIATION, MAX_DEVIATION), mask.to(values)], -1))
        y, seen = values.repeat(1, 1, self.copies) + moved, mask.repeat(1, 1, self.copies)
        return self.layer.filter_or_smooth(y, y_var, times, seen, state=state, smooth=self.smooth)
