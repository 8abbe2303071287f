"""Gaps between absolute times. The difference is computed before any conversion, so no precision is lost."""

import torch
from torch import Tensor

from cru.shapes import Bool, Float

ROUNDING_ULPS = 4  # rounding error of a time, in units in the last place
MAX_GAP = 1e15
"""Longer gaps, after scaling, are clamped to this. The dynamics are stationary or at their bounds before it."""


def gaps(times: Tensor, start: Tensor | None, scale: float, dtype: torch.dtype) -> Float[Tensor, "batch time"]:
    """Compute the gap before each time: (t_i - t_{i-1}) · scale.

    Unix seconds in float64 and nanoseconds in int64 keep their milliseconds in a float32 layer.

    Args:
        times: (batch, time), of any float or integer type.
        start: (batch,), the time before the first one. Without it the first gap is 0.
        scale: factor from the unit of the times to that of the layer.
        dtype: type of the result.

    Raises:
        ValueError: a time is not finite or decreases.

    >>> from cru.functional import gaps
    >>> gaps(torch.tensor([[1_700_000_000_000, 1_700_000_000_001]]), None, 1e-3, torch.float32)
    tensor([[0.0000, 0.0010]])
    """
    before = times[:, :1] if start is None else start[:, None].to(times.dtype)
    difference = torch.diff(times, dim=1, prepend=before)
    if start is not None:
        difference = _without_rounding(times, difference)
    check_times(times, difference)
    return (difference.to(dtype) * scale).clamp_max(MAX_GAP)


def clip_gaps(
    times: Float[Tensor, "batch time"],
    observed: Bool[Tensor, "batch time"],
    longest: float | None,
    start: Float[Tensor, " batch"] | None = None,
) -> Float[Tensor, "batch time"]:
    """Shift the times, so that no time without an observation, also after ``start``, is longer than ``longest``.

    Use it for dynamics that are trained on gaps up to this length, and may diverge over longer ones.

    Args:
        times: the times.
        observed: True where anything is observed.
        longest: the longest time without an observation. None: no limit.
        start: the time before the first one.

    >>> from cru.functional import clip_gaps
    >>> clip_gaps(torch.tensor([[0.0, 1.0, 50.0, 99.0, 100.0]]), torch.tensor([[True, True, False, True, True]]), 10.0)
    tensor([[ 0.,  1., 11., 11., 12.]])
    """
    if longest is None:
        return times
    first = times[:, :1] if start is None else start[:, None].to(times.dtype)
    if not bool((times[:, -1:] - first > longest).any()):  # the usual case, and the only cost in streaming
        return times
    read = torch.where(observed, times, -torch.inf).cummax(1).values
    since = times - torch.cat([first, torch.maximum(read[:, :-1], first)], 1)
    if not bool((since > longest).any()):
        return times
    since = since.clamp_max(longest)
    before = torch.where(observed[:, :-1], 0.0, since[:, :-1])
    steps = since - torch.cat([torch.zeros_like(first), before], 1)
    return first + steps.cumsum(1)


def _without_rounding(times: Tensor, difference: Tensor) -> Tensor:
    """Replace a first gap by 0 if it is negative only by a rounding error, such as that from 0.1 + 0.2 to 0.3."""
    if torch.compiler.is_compiling() or not times.is_floating_point():
        return difference
    first = difference[:, 0]
    if not bool((first < 0).any()):
        return difference
    slack = ROUNDING_ULPS * torch.finfo(times.dtype).eps * times[:, 0].abs()
    close = (first < 0) & (first >= -slack)
    return torch.cat([torch.where(close, 0.0, first)[:, None], difference[:, 1:]], 1)


def check_times(times: Tensor, difference: Tensor) -> None:
    """Raise ValueError if a time is not finite, or if a ``difference`` to the time before is negative."""
    if torch.compiler.is_compiling():
        return
    if times.is_floating_point() and not bool(torch.isfinite(times).all()):
        series, step = (int(i) for i in (~torch.isfinite(times)).nonzero()[0])
        found = times[series, step].item()
        raise ValueError(f"`times` must be finite: series {series} has {found} at step {step}. Drop that time.")
    if bool((difference < 0).any()):
        series, step = (int(i) for i in (difference < 0).nonzero()[0])
        after = times[series, step].item()
        raise ValueError(
            f"`times` must not decrease: series {series} goes from {after - difference[series, step].item()} "
            f"to {after} at step {step}. Sort each series by time, and repeat the last time where you pad."
        )
