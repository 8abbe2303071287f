"""Diagnostics of predictions: calibration, error by gap length, and Kalman gain by noise and missing features."""

from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from cru.errors import InputError
from cru.evaluation.evaluate import SeriesPrediction
from cru.shapes import Float

LEVELS = (0.05, *(k / 10 for k in range(1, 10)), 0.95, 0.99)  # nominal levels of the calibration curve
_MAX_GROUPS = 12  # of gap lengths
_MIN_STD = 1e-12  # divisor of standardised errors
_QUANTILES = [0.05, 0.25, 0.5, 0.75, 0.95]


class Curve(NamedTuple):
    """A curve y(x). Each y is a mean over ``counts`` entries."""

    x: list[float]
    y: list[float]
    counts: list[int]


class Spread(NamedTuple):
    """The distribution of a quantity in each group: quantiles at 5, 25, 50, 75 and 95 %."""

    x: list[float]
    quantiles: list[list[float]]
    counts: list[int]


def calibration(predictions: Sequence[SeriesPrediction], *, scored: str = "all") -> Curve | None:
    """Compute the coverage of the central interval at each nominal level.

    For a calibrated model, the coverage equals the level.

    Args:
        predictions: the predictions of each series.
        scored: the targets to use: ``"all"`` or ``"hidden"``.

    Returns:
        The curve. None without intervals or targets.
    """
    _check(predictions)
    scores = []
    for prediction in predictions:
        if prediction.std is None:
            return None
        chosen = counted(prediction, scored)
        scores.append(
            np.abs(prediction.targets - prediction.mean)[chosen] / np.maximum(prediction.std[chosen], _MIN_STD)
        )
    distances = np.concatenate(scores)
    if len(distances) == 0:
        return None
    normal = NormalDist()
    inside = [float(np.mean(distances <= normal.inv_cdf(0.5 + level / 2))) for level in LEVELS]
    return Curve(list(LEVELS), inside, [len(distances)] * len(LEVELS))


def error_by_gap(predictions: Sequence[SeriesPrediction], *, scored: str = "all", scale: Sequence[float] = ()) -> Curve:
    """Compute the root mean squared error by the time since the last observation.

    Targets before the first observation are not counted.

    Args:
        predictions: the predictions of each series.
        scored: the targets to use: ``"all"`` or ``"hidden"``.
        scale: a divisor for the errors of each feature, so that features with different units can be averaged.
    """
    _check(predictions)
    gaps, errors = [], []
    for prediction in predictions:
        chosen = counted(prediction, scored)
        square = ((prediction.targets - prediction.mean) / (np.asarray(scale) if len(scale) else 1.0)) ** 2
        gap = np.broadcast_to(since_seen(prediction).reshape(-1, *(1,) * (square.ndim - 1)), square.shape)
        gaps.append(gap[chosen])
        errors.append(square[chosen])
    gap, square = np.concatenate(gaps), np.concatenate(errors)
    gap, square = gap[np.isfinite(gap)], square[np.isfinite(gap)]
    groups = _groups(gap)
    means = [float(np.sqrt(square[group].mean())) for group in groups]
    return Curve([float(gap[group].mean()) for group in groups], means, [int(group.sum()) for group in groups])


def gain_by_noise(predictions: Sequence[SeriesPrediction], *, skip: int = 5, bins: int = 8) -> Spread | None:
    """Compute the distribution of the gain by the fraction of noise in the image.

    Args:
        predictions: the predictions of each series.
        skip: the number of first images to leave out, because the wide initial variance determines their gain.
        bins: the number of groups of noise fractions.

    Returns:
        The distribution. None without gain or noise.
    """
    _check(predictions)
    if any(prediction.gain is None or prediction.noise is None for prediction in predictions):
        return None
    gain, noise = (np.concatenate([getattr(o, name)[skip:] for o in predictions]) for name in ("gain", "noise"))
    middle = (np.minimum(np.floor(noise * bins), bins - 1) + 0.5) / bins
    return _spread(middle, gain) if len(noise) and np.ptp(noise) > 0 else None


def gain_by_missing(predictions: Sequence[SeriesPrediction]) -> Spread | None:
    """Compute the distribution of the gain by the number of missing features. Return None without gain or features."""
    if any(prediction.gain is None or prediction.is_image for prediction in predictions):
        return None
    groups = gain_groups(predictions)
    missing = np.repeat([float(degree) for degree in groups], [len(gains) for gains in groups.values()])
    return _spread(missing, np.concatenate([np.zeros(0), *groups.values()]))


def gain_groups(predictions: Sequence[SeriesPrediction]) -> dict[int, Float[np.ndarray, " n"]]:
    """Collect the gains at observed time points, by the number of missing features."""
    if all(prediction.gain is None for prediction in predictions):
        raise InputError("predictions", "hold a series of a model with a Kalman gain", "none")
    gain = np.concatenate([o.gain for o in predictions if o.gain is not None])
    missing = np.concatenate([(~o.mask).sum(1) for o in predictions if o.gain is not None])
    seen = np.isfinite(gain)
    return {int(degree): gain[seen & (missing == degree)] for degree in np.unique(missing[seen])}


def counted(prediction: SeriesPrediction, scored: str) -> np.ndarray:
    """Return the mask of the target entries that are scored."""
    mask = prediction.target_mask & prediction.hidden if scored == "hidden" else prediction.target_mask
    return np.broadcast_to(mask, prediction.targets.shape)


def since_seen(prediction: SeriesPrediction) -> Float[np.ndarray, " time"]:
    """Compute the time since the last earlier observation, or NaN before the first.

    >>> since_seen(prediction)  # observations at 0 and 1, and a query at 3  # doctest: +SKIP
    array([nan, 1., 2.])
    """
    seen = prediction.times[prediction.observed]
    if len(seen) == 0:
        return np.full(len(prediction.times), np.nan)
    before = np.searchsorted(seen, prediction.times, side="left") - 1  # strictly earlier
    gap: np.ndarray = np.where(before >= 0, prediction.times - seen[np.maximum(before, 0)], np.nan)
    return gap


def _groups(x: np.ndarray) -> list[np.ndarray]:
    """Group values: one group per value if there are few values, otherwise groups of about equal size.

    If one value fills more than a group, the other groups share the rest. Many equal short gaps then do not merge the
    groups of long gaps.
    """
    values, counts = np.unique(x, return_counts=True)
    if len(values) <= _MAX_GROUPS:
        return [x == value for value in values]
    last: list[float] = []  # the largest value of each group
    size, left = 0, len(x)
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        size += count
        if size * (_MAX_GROUPS - len(last)) >= left:
            last.append(value)
            size, left = 0, left - size
    place = np.searchsorted(last, x, side="left")
    return [place == k for k in range(len(last))]


def _check(predictions: Sequence[SeriesPrediction]) -> None:
    if not predictions:
        raise InputError("predictions", "hold at least one series", "none")


def _spread(x: np.ndarray, y: np.ndarray) -> Spread | None:
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    kinds = np.unique(x)
    if len(kinds) == 0:
        return None
    quantiles = [np.quantile(y[x == kind], _QUANTILES).tolist() for kind in kinds]
    return Spread(kinds.tolist(), quantiles, [int((x == kind).sum()) for kind in kinds])
