"""The features of the corrected model: the inputs of its network from the observations and the structural model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cru.functional.carry_forward import last_observation
from cru.functional.structural import Filtered, StructuralState
from cru.layers.structural import cos_sin
from cru.models.base import State
from cru.shapes import Bool, Float, Float64, Int64


@dataclass(frozen=True)
class CorrectionConstants:
    """Fixed constants of the corrected model. Errors are in standard deviations of the structural model."""

    max_correction: float = 4.0  # bound on the correction of a center
    max_offset: float = 12.0  # bound on the correction of a mean, which is far from the center of a skewed variable
    max_log_growth: float = 1.5  # bound on the log factor of a scale that grows
    max_log_shrinkage: float = 2.5  # and that shrinks, as below the center of a variable that is mostly zero
    quantiles: tuple[float, ...] = (0.05, 0.25, 0.5, 0.75, 0.95)  # probabilities of the pinball loss
    mean_weight: float = 0.1  # weight of the squared error of the mean, relative to the pinball loss
    withheld_share: float = 0.2  # mean share of the observed entries that a training step withholds from the network
    max_error: float = 8.0  # bound on standardised errors in the features
    typical_error: float = 0.7  # expected absolute standardised error of a series without observations
    expected_errors: float = 3.0  # number of observations that the expected error counts as
    max_mean: float = 5.0  # bound on means in the features
    max_age: float = 1e4  # bound on times in the features, in typical gaps
    time_weight: float = 0.3  # factor on most features that are logarithms of times
    variance_floor: float = 1e-8
    scale_batches: int = 4  # batches that determine the scales of the features
    scale_shown_share: float = 0.8  # share of their observations that are shown
    min_scale: float = 0.05  # of a feature
    min_count: int = 50  # observations that a rare variable counts as in the weights of the loss
    max_binned: int = 16  # most variables of a table whose observations are also inputs by quantile bins
    rows_at_once: int = 4096  # time points of one matrix product, which fits into the cache of a CPU
    lead_time_bounds: tuple[float, ...] = (1e-9, 4.0, 32.0)  # limits of the ranges of lead times, in typical gaps


CORRECTION = CorrectionConstants()


class Features(NamedTuple):
    """Inputs of the network, and the predictions of the structural model that it corrects."""

    x: Float[Tensor, "batch time feature"]
    mean: Float[Tensor, "batch time variable"]  # without the observation of the same entry
    std: Float[Tensor, "batch time variable"]  # likewise, including the observation noise
    own_mean: Float[Tensor, "batch time variable"]  # with the observation of the same entry
    own_var: Float[Tensor, "batch time variable"]  # likewise, including the observation noise
    prior: Filtered  # one-step-ahead predictions of the structural model, and its state after the last row


class CorrectedState(NamedTuple):
    """State of a series between two calls, for streaming."""

    base: StructuralState
    seen: Bool[Tensor, "batch variable"]  # variables observed so far
    last: Float64[Tensor, "batch variable"]  # time of the last observation of each variable
    value: Float[Tensor, "batch variable"]  # last observation of each variable
    errors: Float[Tensor, "batch variable"]  # sum of absolute standardised errors of the observations so far
    number: Float[Tensor, "batch variable"]  # of observations so far
    first: Float64[Tensor, " batch"]  # first time of the series
    network: State  # state of a network with a memory; otherwise the last time


class FeatureBatch(NamedTuple):
    """A batch whose inputs are the features, all of them observed, for a network with a memory."""

    times: Float64[Tensor, "batch time"]
    values: Float[Tensor, "batch time feature"]
    mask: Bool[Tensor, "batch time feature"]
    targets: Float[Tensor, "batch time target"]
    target_mask: Bool[Tensor, "batch time target"]
    lengths: Int64[Tensor, " batch"]
    valid: Bool[Tensor, "batch time"]

    @property
    def observed(self) -> Bool[Tensor, "batch time"]:
        """The time points that are not padding."""
        return self.valid

    @staticmethod
    def around(x: Float[Tensor, "batch time feature"], batch: Any) -> "FeatureBatch":
        """Make a batch of the features ``x`` at the times of ``batch``."""
        mask = batch.valid[..., None].expand_as(x)
        none = x[..., :0]
        return FeatureBatch(batch.times, torch.where(mask, x, 0.0), mask, none, none.bool(), batch.lengths, batch.valid)


def count_features(variables: int, calendar: int, inputs: int) -> int:
    """Return the number of features.

    Args:
        variables: number of variables.
        calendar: number of periods whose phase is a feature.
        inputs: number of inputs besides the observations.
    """
    return 11 * variables + 3 + 2 * calendar + inputs


def binned_features(variables: int) -> list[int]:
    """Return the indices of the features that are errors, last observations or next observations."""
    last = 8 * variables + 3
    return [*range(variables, 2 * variables), *range(last, last + 2 * variables)]


def lead_range(x: Float[Tensor, "*row feature"], variables: int) -> Int64[Tensor, "*row"]:
    """Return the range of lead times of each row: of the time to the nearest observation at another row.

    Rows with a later observation come first, then rows without one, which are forecasts.

    Args:
        x: features, not standardised.
        variables: number of variables.
    """
    nearest, no_later = x[..., 8 * variables].double().expm1(), x[..., 7 * variables : 8 * variables] > 0.5
    bounds = nearest.new_tensor(CORRECTION.lead_time_bounds)
    return torch.bucketize(nearest, bounds) + (len(bounds) + 1) * no_later.all(-1).long()


def without_observations(
    x: Float[Tensor, "*row feature"], dropped: Bool[Tensor, "*row variable"]
) -> Float[Tensor, "*row feature"]:
    """Set the mask and error features of dropped entries to 0, as if these were not observed.

    The other features of an entry do not depend on its own observation.
    """
    size = dropped.shape[-1]
    shown = torch.where(dropped.repeat(*(1,) * (dropped.ndim - 1), 2), 0.0, x[..., : 2 * size])
    return torch.cat([shown, x[..., 2 * size :]], -1)


def describe_rows(
    mean: Float[Tensor, "batch time variable"],
    std: Float[Tensor, "batch time variable"],
    values: Float[Tensor, "batch time variable"],
    mask: Bool[Tensor, "batch time variable"],
    shown: Bool[Tensor, "batch time variable"],
    times: Float64[Tensor, "batch time"],
    earlier_errors: Float[Tensor, "batch time variable"],
    state: CorrectedState | None,
    *,
    causal: bool,
    gap: float,
    calendar: Sequence[float],
) -> Float[Tensor, "batch time feature"]:
    """Compute the features of every time point, without the inputs besides the observations.

    Args:
        mean: the mean of the structural model, without the observation of the same entry.
        std: its standard deviation, including the observation noise.
        values: the observations.
        mask: True where observed.
        shown: mask of the observations that are features of their own time point.
        times: the times of the time points.
        earlier_errors: the result of `typical_error`.
        state: the state of the series so far, for streaming.
        causal: whether to leave out later observations.
        gap: typical time between observations.
        calendar: periods whose phase is a feature.
    """

    def standardised(nearest: Tensor, known: Tensor) -> Tensor:
        return torch.where(known, (nearest - mean) / std, 0.0).clamp(-CORRECTION.max_error, CORRECTION.max_error)

    return torch.cat(
        [
            shown.to(mean.dtype),
            standardised(values, shown),
            mean.clamp(-CORRECTION.max_mean, CORRECTION.max_mean),
            std.log(),
            _ages(mask, times, state, gap, causal=causal).to(mean.dtype),
            standardised(*_last_value(values, mask, state)),
            standardised(*_next_value(values, mask & (not causal))),
            earlier_errors,
            cos_sin(times, calendar).to(mean.dtype),
        ],
        -1,
    )


def describe_inputs(
    inputs: Float[Tensor, "batch time input"], mask: Bool[Tensor, "batch time variable"], later: int
) -> Float[Tensor, "batch time input"]:
    """Set the inputs about the future to 0 where no observation follows.

    Without a later observation, a row is a forecast, and its future is unknown or ends at the horizon.

    Args:
        inputs: the inputs besides the observations.
        mask: True where observed.
        later: the number of the last inputs, which describe the future.
    """
    observed = mask.any(-1, keepdim=True).to(inputs.dtype)
    follows = observed.flip(1).cumsum(1).flip(1) - observed > 0
    size = inputs.shape[-1]
    return torch.cat([inputs[..., : size - later], inputs[..., size - later :] * follows], -1)


def absolute_errors(
    values: Float[Tensor, "batch time variable"],
    mask: Bool[Tensor, "batch time variable"],
    prior: Filtered,
    noise: Float[Tensor, " variable"],
) -> Float[Tensor, "batch time variable"]:
    """Return the absolute standardised error of each observation given strictly earlier ones, otherwise 0.

    Args:
        values: the observations.
        mask: True where observed.
        prior: one-step-ahead predictions of the structural model.
        noise: the variance of the observation noise.
    """
    std = (prior.var + noise).clamp(min=CORRECTION.variance_floor).sqrt()
    return torch.where(mask, (values - prior.mean).abs() / std, 0.0).clamp(max=CORRECTION.max_error)


def typical_error(
    errors: Float[Tensor, "batch time variable"],
    mask: Bool[Tensor, "batch time variable"],
    state: CorrectedState | None,
) -> Float[Tensor, "batch time variable"]:
    """Return the logarithm of the mean of `absolute_errors` over the earlier rows of a series.

    Some series vary more than others, which the structural model does not represent.

    Args:
        errors: the result of `absolute_errors`.
        mask: True where observed.
        state: the state of the series so far, for streaming.
    """
    count = mask.to(errors.dtype)
    total, number = errors.cumsum(1) - errors, count.cumsum(1) - count
    if state is not None:
        total, number = total + state.errors[:, None], number + state.number[:, None]
    expected = CORRECTION.expected_errors
    return ((total + expected * CORRECTION.typical_error) / (number + expected)).log()


def _ages(
    mask: Bool[Tensor, "batch time variable"],
    times: Float64[Tensor, "batch time"],
    state: CorrectedState | None,
    gap: float,
    *,
    causal: bool,
) -> Float[Tensor, "batch time age"]:
    """Compute the features that depend on times.

    These are logarithms of the times since and until the nearest other observation, and of the time since the start
    of the series. Flags mark variables without an earlier or a later observation.
    """
    never = torch.full(mask.shape[::2], -math.inf, dtype=torch.float64, device=mask.device)
    last = never if state is None else torch.where(state.seen, state.last, never)
    first = times[:, :1] if state is None else state.first[:, None]
    moments = times[..., None]
    since = moments - _newest(torch.where(mask, moments, -math.inf), last)
    any_since = nearest = since.amin(-1, keepdim=True)
    until = torch.full_like(since, math.inf)
    if not causal:
        until = -_newest(torch.where(mask, -moments, -math.inf).flip(1), never).flip(1) - moments
        nearest = torch.minimum(any_since, until.amin(-1, keepdim=True))

    def log(age: Tensor) -> Tensor:
        return (age.clamp(max=CORRECTION.max_age * gap) / gap).clamp(min=0).log1p()

    start = log((times - first)[..., None])
    own = [CORRECTION.time_weight * log(since), CORRECTION.time_weight * log(until), since.isinf(), until.isinf()]
    return torch.cat(
        [*(part.double() for part in own), log(nearest), log(any_since), CORRECTION.time_weight * start], -1
    )


def _last_value(
    values: Float[Tensor, "batch time variable"],
    mask: Bool[Tensor, "batch time variable"],
    state: CorrectedState | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the last observation in the rows before each row, and whether there is one."""
    first = (values[:, :1], torch.zeros_like(mask[:, :1]))
    if state is not None:
        first = (state.value[:, None].to(values.dtype), state.seen[:, None])
    before = (torch.cat([start, part[:, :-1]], 1) for start, part in zip(first, (values, mask), strict=True))
    value, _, known = last_observation(*before)
    return value, known


def _next_value(
    values: Float[Tensor, "batch time variable"], mask: Bool[Tensor, "batch time variable"]
) -> tuple[Tensor, Tensor]:
    """Return the next observation in the rows after each row, and whether there is one."""
    value, known = _last_value(values.flip(1), mask.flip(1))
    return value.flip(1), known.flip(1)


def _newest(times: Float64[Tensor, "batch time variable"], last: Float64[Tensor, "batch variable"]) -> Tensor:
    """Return the maximum of ``last`` and of the times in the rows before each row."""
    before = torch.cat([last[:, None], times[:, :-1]], 1)
    return before.cummax(1).values
