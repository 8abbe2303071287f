"""Checks and conversions of the arguments of layers."""

import math
from numbers import Real
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from cru.functional import Belief
from cru.shapes import Bool, Float


def require(condition: bool, message: str) -> None:
    """Raise ValueError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ValueError(message)


def check_count(name: str, size: int) -> None:
    """Raise ValueError unless ``size`` is an integer of at least 1."""
    require(
        isinstance(size, SupportsIndex) and size.__index__() >= 1,
        f"`{name}` must be an integer of at least 1, got {size!r}.",
    )


def check_sizes(input_size: int, hidden_size: int) -> None:
    """Raise ValueError unless the sizes of a layer are positive and the state size is even."""
    check_count("input_size", input_size)
    check_count("hidden_size", hidden_size)
    near = f"{hidden_size - 1} or {hidden_size + 1}" if hidden_size > 1 else "2"
    require(
        hidden_size % 2 == 0,
        f"`hidden_size` must be even (an observed and a memory half), got {hidden_size}. Use {near}.",
    )


def check_bases(hidden_size: int, num_basis: int, bandwidth: int) -> None:
    """Raise ValueError unless there is at least one basis matrix and the band fits into its blocks."""
    check_count("num_basis", num_basis)
    most = max(hidden_size // 2, 3)  # the default of 3 is valid for any size: a wider band is a full block
    require(
        isinstance(bandwidth, SupportsIndex) and 0 <= bandwidth.__index__() <= most,
        f"`bandwidth` must be between 0 and {most} for hidden_size = {hidden_size}, got {bandwidth!r}.",
    )


def check_dtype(dtype: torch.dtype) -> None:
    """Raise ValueError unless the type is float32 or float64."""
    require(
        dtype in (torch.float32, torch.float64),
        f"`dtype` must be torch.float32 or torch.float64, got {dtype}. A Kalman filter needs this precision.",
    )


def check_device(name: str, value: Tensor, device: torch.device) -> None:
    """Raise ValueError unless ``value`` is on ``device``."""
    require(value.device == device, f"`{name}` must be on {device} like the other tensors, got {value.device}.")


def check_time_scale(time_scale: Any) -> None:
    """Raise ValueError unless ``time_scale`` is a positive number."""
    require(
        isinstance(time_scale, Real) and 0 < float(time_scale) < math.inf,
        f"`time_scale` must be a positive number, got {time_scale!r}.",
    )


def as_times(times: Tensor, observed: Bool[Tensor, "batch time obs"], start: Tensor | None) -> Tensor:
    """Expand ``times`` to (batch, time), in a common type with ``start``.

    Args:
        times: (batch, time) or (time,).
        observed: True where observed.
        start: the time of the state before the first time.

    Raises:
        ValueError: ``times`` have a wrong shape, type or device.
    """
    batch, steps, _ = observed.shape
    require(isinstance(times, Tensor), f"`times` must be a tensor, got {type(times).__name__}.")
    check_device("times", times, observed.device)
    require(
        times.dtype != torch.bool and not times.is_complex(),
        f"`times` must be of a float or integer type, got {times.dtype}.",
    )
    require(
        tuple(times.shape) in ((steps,), (batch, steps)),
        f"`times` must have the shape (time,) = ({steps},) or (batch, time) = ({batch}, {steps}), "
        f"got {tuple(times.shape)}.",
    )
    if not times.is_floating_point():
        times = times.to(torch.int64)  # unsigned differences would wrap
    return _to_common_dtype(times, start).expand(batch, steps)


def _to_common_dtype(times: Tensor, others: Tensor | None) -> Tensor:
    """Convert ``times`` to a common type. Of two float types, use the less precise one, so that equal times agree."""
    if others is None or others.dtype == times.dtype:
        return times
    floats = times.is_floating_point() and others.is_floating_point()
    coarser = max(times.dtype, others.dtype, key=lambda dtype: torch.finfo(dtype).eps) if floats else torch.float64
    return times.to(coarser)


def as_queries(at: Tensor, times: Tensor) -> Tensor:
    """Expand ``at`` to (batch, query). Raise ValueError if a query is before the first time of its series."""
    require(isinstance(at, Tensor), f"`at` must be a tensor, got {type(at).__name__}.")
    batch, shape = len(times), tuple(at.shape)
    require(
        len(shape) == 1 or (len(shape) == 2 and shape[0] == batch),
        f"`at` must have the shape (query,) or (batch, query) = ({batch}, query), got {shape}.",
    )
    at = _to_common_dtype(at, times).expand(batch, -1)
    times = _to_common_dtype(times, at)
    wrong = ~torch.isfinite(at) | (at < times[:, :1])
    if not torch.compiler.is_compiling() and bool(wrong.any()):
        found = at[wrong][0].item()
        raise ValueError(f"`at` must be finite and not before the first time of its series, got {found}.")
    return at


def as_state(state: Belief, batch: int | None, hidden_size: int, like: Tensor) -> Belief:
    """Check shape, device and values of a belief, and convert it to the type of ``like``.

    Args:
        state: the belief.
        batch: the number of series. None: any number.
        hidden_size: the size of the state.
        like: a tensor of the layer, with its type and device.

    Raises:
        ValueError: the belief is not valid.
    """
    require(
        isinstance(state, Belief),
        f"`state` must be a `Belief`, as a layer returns it, got {type(state).__name__}.",
    )
    batch = state.mean.shape[0] if batch is None else batch
    for name, field, size in zip(Belief._fields, state[:4], (hidden_size, *[hidden_size // 2] * 3), strict=False):
        hint = " Take one of its times, as in `state.at(-1)`." if field.ndim == 3 else ""
        require(
            tuple(field.shape) == (batch, size),
            f"`state.{name}` must have the shape ({batch}, {size}), got {tuple(field.shape)}.{hint}",
        )
        check_device(f"state.{name}", field, like.device)
        require(
            torch.compiler.is_compiling() or bool(torch.isfinite(field).all()),
            f"`state.{name}` must be finite. Start without a state, or continue from an earlier one.",
        )
    # NaN where a variance is negative. The factor allows for rounding errors of a conversion.
    possible = state.side.abs() <= 1.01 * state.upper.sqrt() * state.lower.sqrt()
    require(
        torch.compiler.is_compiling() or bool(possible.all()),
        "`state` must have a valid covariance: `upper` and `lower` not negative, side² ≤ upper · lower.",
    )
    require(
        state.time is None or tuple(state.time.shape) == (batch,),
        f"`state.time` must have the shape ({batch},), got {tuple(getattr(state.time, 'shape', ()))}.",
    )
    return Belief(*(field.to(like.dtype) for field in state[:4]))._replace(time=state.time)


def as_moments(name: str, value: Tensor | float | int, batch: int, device: torch.device) -> Tensor:
    """Expand a number, or one number per series, to (batch,). A Python float becomes float64.

    Args:
        name: the name of the argument, for errors.
        value: the number or numbers.
        batch: the number of series.
        device: the device of the result.
    """
    moments = torch.as_tensor(value, dtype=torch.float64 if isinstance(value, float) else None, device=device)
    require(
        tuple(moments.shape) in ((), (batch,)),
        f"`{name}` must be a number or have the shape ({batch},), got {tuple(moments.shape)}.",
    )
    return moments.expand(batch)


def check_series(name: str, value: Tensor, size: int) -> None:
    """Raise ValueError unless ``value`` has the shape (batch, time, size), with at least one time."""
    require(isinstance(value, Tensor), f"`{name}` must be a tensor, got {type(value).__name__}.")
    require(
        value.ndim == 3 and value.shape[-1] == size,
        f"`{name}` must have the shape (batch, time, {size}), got {tuple(value.shape)}."
        + (f" For one series, pass {name}[None]." if tuple(value.shape[1:]) == (size,) else ""),
    )
    require(
        value.shape[1] > 0,
        f"`{name}` must have at least one time point, got an empty time axis: {tuple(value.shape)}.",
    )


def as_mask(mask: Tensor | None, value: Tensor) -> Bool[Tensor, "batch time size"]:
    """Expand ``mask`` to (batch, time, size), True = observed. Without a mask, NaN means missing."""
    if mask is None:
        return ~torch.isnan(value)
    require(not isinstance(mask, Belief), "`mask` must be a tensor, got a belief. Pass it by name: state=...")
    require(
        isinstance(mask, Tensor) and mask.dtype == torch.bool,
        "`mask` must be a tensor of dtype torch.bool (True = observed), "
        f"got {getattr(mask, 'dtype', type(mask).__name__)}. Use mask.bool().",
    )
    require(
        tuple(mask.shape) in (tuple(value.shape[:2]), tuple(value.shape)),
        f"`mask` must have the shape {tuple(value.shape[:2])} or {tuple(value.shape)}, got {tuple(mask.shape)}.",
    )
    check_device("mask", mask, value.device)
    return (mask if mask.ndim == 3 else mask[..., None]).expand_as(value)


def observed_values(
    name: str, value: Float[Tensor, "batch time size"], mask: Bool[Tensor, "batch time size"]
) -> Float[Tensor, "batch time size"]:
    """Set ``value`` to zero where ``mask`` is False. Raise ValueError if an observed value is not finite."""
    value = torch.where(mask, value, 0.0)
    if not torch.compiler.is_compiling() and not bool(torch.isfinite(value).all()):
        series, step, feature = (int(i) for i in (~torch.isfinite(value)).nonzero()[0])
        raise ValueError(
            f"`{name}` must be finite where it is observed: series {series}, step {step}, feature {feature} is "
            f"{value[series, step, feature].item()}. Mask it, or set it to NaN if there is no `mask`."
        )
    return value
