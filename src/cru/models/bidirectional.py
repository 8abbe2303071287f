"""CRU and f-CRU that look both ways: a second filter from the right, combined with the first by precision.

Their covariance is approximate, so there is no exact smoother; the paired CRU has one. Both filters start from a prior
of their own, learnt and wide, which is counted twice; the decoder learns what that makes of the variance.
"""

from typing import ClassVar

import torch
from torch import Tensor

from cru.functional import Belief, FilterResult, clip_gaps
from cru.functional.combine import combine
from cru.layers.ragged import last_step, reversed_series
from cru.models.base import BatchLike, Model, Spec
from cru.models.kalman import CRUModel, FastCRUModel, KalmanConfig, KalmanModel
from cru.shapes import Float


class Bidirectional(KalmanModel):
    """At each time: what the left says with the reading there, and what the right says of that time without it."""

    causal: ClassVar[bool] = False
    _advance = Model._advance  # which says that this is not possible

    def __init__(self, spec: Spec, config: KalmanConfig) -> None:
        super().__init__(spec, config)
        self.right = self.new_layer(self.layer.hidden_size)

    def filter(
        self, features: Float[Tensor, "batch time features"], batch: BatchLike, state: Belief | None = None
    ) -> FilterResult:
        """As from the left alone, but with posteriors given the whole series."""
        if state is not None:
            raise ValueError("a model that looks both ways needs the whole series: it cannot go on from a `state`.")
        left, observed = super().filter(features, batch), batch.observed
        steps = torch.arange(observed.shape[1], device=observed.device)
        last = last_step(observed)  # the right begins with the last reading
        before = steps < last[:, None]
        seen = reversed_series(observed, last) & (steps <= last[:, None])
        back = batch.times.gather(1, last[:, None]) - reversed_series(batch.times, last)
        times = clip_gaps(back, seen, self.spec.longest_gap)
        prior = self.right.filter(*self.right.observe(reversed_series(features, last)), times, seen).prior
        right = Belief(*(reversed_series(field, last) for field in prior[:4]))
        both = combine(left.posterior, right)
        chosen = (torch.where(before[..., None], b, a) for b, a in zip(both[:4], left.posterior[:4], strict=True))
        return left._replace(posterior=Belief(*chosen)._replace(time=left.posterior.time))


class BidirectionalCRUModel(Bidirectional, CRUModel):
    """Two CRUs."""


class BidirectionalFastCRUModel(Bidirectional, FastCRUModel):
    """Two f-CRUs."""
