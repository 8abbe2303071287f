"""Bidirectional CRU and f-CRU: a second filter runs backward in time, and both beliefs are combined by precision.

The covariance of these layers is approximate, so they have no exact smoother, unlike the paired CRU. Both filters
start from a trained prior. The combination counts the prior twice, and the decoder adapts to the resulting variance.
"""

from typing import ClassVar

import torch
from torch import Tensor

from cru.errors import InputError
from cru.functional import Belief, FilterResult, clip_gaps
from cru.functional.combine import combine
from cru.layers.ragged import last_step, reversed_series
from cru.models.base import BatchLike, Model, Spec
from cru.models.kalman import CRUModel, FastCRUModel, KalmanConfig, KalmanModel
from cru.shapes import Float


class Bidirectional(KalmanModel):
    """A model that combines the forward posterior with the backward prior, which excludes the current observation."""

    causal: ClassVar[bool] = False
    _advance = Model._advance  # no streaming

    def __init__(self, spec: Spec, config: KalmanConfig) -> None:
        super().__init__(spec, config)
        self.right = self.new_layer(self.layer.hidden_size)

    def filter(
        self, features: Float[Tensor, "batch time features"], batch: BatchLike, state: Belief | None = None
    ) -> FilterResult:
        """Filter forward and backward. The posteriors are given all observations of a series.

        Args:
            features: features of the encoder.
            batch: the batch.
            state: must be None.

        Raises:
            InputError: ``state`` is not None.
        """
        if state is not None:
            raise InputError("state", "be None for a bidirectional model, which needs the complete series")
        left, observed = super().filter(features, batch), batch.observed
        steps = torch.arange(observed.shape[1], device=observed.device)
        last = last_step(observed)  # the backward filter starts at the last observation
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
    """Bidirectional model with two CRUs."""


class BidirectionalFastCRUModel(Bidirectional, FastCRUModel):
    """Bidirectional model with two f-CRUs."""
