"""Checks and conversions of the arguments of layers."""

import math
from numbers import Real
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from cru.errors import InputError
from cru.functional import Belief
from cru.shapes import Bool, Float


def require(condition: bool, message: str) -> None:
    """Raise ValueError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ValueError(message)


def check_count(name: str, size: int) -> None:
    """Raise InputError unless ``size`` is an integer of at least 1."""
    if not (isinstance(size, SupportsIndex) and size.__index__() >= 1):
        raise InputError(name, "be an integer of at least 1", repr(size))


def check_sizes(input_size: int, hidden_size: int) -> None:
    """Raise InputError unless the sizes of a layer are positive and the state size is even."""
    check_count("input_size", input_size)
    check_count("hidden_size", hidden_size)
    if hidden_size % 2 != 0:
        near = f"{hidden_size - 1} or {hidden_size + 1}" if hidden_size > 1 else "2"
        raise InputError("hidden_size", "be even (an observed and a memory half)", hidden_size, f"Use {near}.")


def check_bases(hidden_size: int, num_basis: int, bandwidth: int) -> None:
    """Raise InputError unless there is at least one basis matrix and the band fits into its blocks."""
    check_count("num_basis", num_basis)
    most = max(hidden_size // 2, 3)  # the default of 3 is valid for any size: a wider band is a full block
    if not (isinstance(bandwidth, SupportsIndex) and 0 <= bandwidth.__index__() <= most):
        raise InputError("bandwidth", f"be between 0 and {most} for hidden_size = {hidden_size}", repr(bandwidth))


def check_dtype(dtype: torch.dtype) -> None:
    """Raise InputError unless the type is float32 or float64."""
    if dtype not in (torch.float32, torch.float64):
        hint = "A Kalman filter needs this precision."
        raise InputError("dtype", "be torch.float32 or torch.float64", dtype, hint)


def check_device(name: str, value: Tensor, device: torch.device) -> None:
    """Raise InputError unless ``value`` is on ``device``."""
    if value.device != device:
        raise InputError(name, f"be on {device} like the other tensors", value.device)


def check_time_scale(time_scale: Any) -> None:
    """Raise InputError unless ``time_scale`` is a positive number."""
    if not (isinstance(time_scale, Real) and 0 < float(time_scale) < math.inf):
        raise InputError("time_scale", "be a positive number", repr(time_scale))


def as_times(times: Tensor, observed: Bool[Tensor, "batch time obs"], start: Tensor | None) -> Tensor:
    """Expand ``times`` to (batch, time), in a common type with ``start``.

    Args:
        times: (batch, time) or (time,).
        observed: True where observed.
        start: the time of the state before the first time.

    Raises:
        InputError: ``times`` have a wrong shape, type or device.
    """
    batch, steps, _ = observed.shape
    _check_tensor("times", times)
    check_device("times", times, observed.device)
    if times.dtype == torch.bool or times.is_complex():
        raise InputError("times", "be of a float or integer type", times.dtype)
    if tuple(times.shape) not in ((steps,), (batch, steps)):
        rule = f"have the shape (time,) = ({steps},) or (batch, time) = ({batch}, {steps})"
        raise InputError("times", rule, tuple(times.shape))
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
    """Expand ``at`` to (batch, query). Raise InputError if a query is before the first time of its series."""
    _check_tensor("at", at)
    batch, shape = len(times), tuple(at.shape)
    if not (len(shape) == 1 or (len(shape) == 2 and shape[0] == batch)):
        raise InputError("at", f"have the shape (query,) or (batch, query) = ({batch}, query)", shape)
    at = _to_common_dtype(at, times).expand(batch, -1)
    times = _to_common_dtype(times, at)
    wrong = ~torch.isfinite(at) | (at < times[:, :1])
    if not torch.compiler.is_compiling() and bool(wrong.any()):
        raise InputError("at", "be finite and not before the first time of its series", at[wrong][0].item())
    return at


def as_state(state: Belief, batch: int | None, hidden_size: int, like: Tensor) -> Belief:
    """Check shape, device and values of a belief, and convert it to the type of ``like``.

    Args:
        state: the belief.
        batch: the number of series. None: any number.
        hidden_size: the size of the state.
        like: a tensor of the layer, with its type and device.

    Raises:
        InputError: the belief is not valid.
    """
    if not isinstance(state, Belief):
        raise InputError("state", "be a `Belief`, as a layer returns it", type(state).__name__)
    batch = state.mean.shape[0] if batch is None else batch
    for name, field, size in zip(Belief._fields, state[:4], (hidden_size, *[hidden_size // 2] * 3), strict=False):
        if tuple(field.shape) != (batch, size):
            hint = "Take one of its times, as in `state.at(-1)`." if field.ndim == 3 else ""
            raise InputError(f"state.{name}", f"have the shape ({batch}, {size})", tuple(field.shape), hint)
        check_device(f"state.{name}", field, like.device)
        if not torch.compiler.is_compiling() and not bool(torch.isfinite(field).all()):
            hint = "Start without a state, or continue from an earlier one."
            raise InputError(f"state.{name}", "be finite", hint=hint)
    # NaN where a variance is negative. The factor allows for rounding errors of a conversion.
    possible = state.side.abs() <= 1.01 * state.upper.sqrt() * state.lower.sqrt()
    if not torch.compiler.is_compiling() and not bool(possible.all()):
        rule = "have a valid covariance: `upper` and `lower` not negative, side² ≤ upper · lower"
        raise InputError("state", rule)
    if state.time is not None and tuple(state.time.shape) != (batch,):
        raise InputError("state.time", f"have the shape ({batch},)", tuple(state.time.shape))
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
    if tuple(moments.shape) not in ((), (batch,)):
        raise InputError(name, f"be a number or have the shape ({batch},)", tuple(moments.shape))
    return moments.expand(batch)


def check_series(name: str, value: Tensor, size: int) -> None:
    """Raise InputError unless ``value`` has the shape (batch, time, size), with at least one time."""
    _check_tensor(name, value)
    if value.ndim != 3 or value.shape[-1] != size:
        hint = f"For one series, pass {name}[None]." if tuple(value.shape[1:]) == (size,) else ""
        raise InputError(name, f"have the shape (batch, time, {size})", tuple(value.shape), hint)
    if value.shape[1] == 0:
        raise InputError(name, "have at least one time point", f"an empty time axis: {tuple(value.shape)}")


def as_mask(mask: Tensor | None, value: Tensor) -> Bool[Tensor, "batch time size"]:
    """Expand ``mask`` to (batch, time, size), True = observed. Without a mask, NaN means missing."""
    if mask is None:
        return ~torch.isnan(value)
    if isinstance(mask, Belief):
        raise InputError("mask", "be a tensor", "a belief", "Pass it by name: state=...")
    if not (isinstance(mask, Tensor) and mask.dtype == torch.bool):
        found = getattr(mask, "dtype", type(mask).__name__)
        raise InputError("mask", "be a tensor of dtype torch.bool (True = observed)", found, "Use mask.bool().")
    if tuple(mask.shape) not in (tuple(value.shape[:2]), tuple(value.shape)):
        rule = f"have the shape {tuple(value.shape[:2])} or {tuple(value.shape)}"
        raise InputError("mask", rule, tuple(mask.shape))
    check_device("mask", mask, value.device)
    return (mask if mask.ndim == 3 else mask[..., None]).expand_as(value)


def observed_values(
    name: str, value: Float[Tensor, "batch time size"], mask: Bool[Tensor, "batch time size"]
) -> Float[Tensor, "batch time size"]:
    """Set ``value`` to zero where ``mask`` is False. Raise InputError if an observed value is not finite."""
    value = torch.where(mask, value, 0.0)
    if not torch.compiler.is_compiling() and not bool(torch.isfinite(value).all()):
        series, step, feature = (int(i) for i in (~torch.isfinite(value)).nonzero()[0])
        found = f"series {series}, step {step}, feature {feature} is {value[series, step, feature].item()}"
        hint = "Mask it, or set it to NaN if there is no `mask`."
        raise InputError(name, f"be finite where it is observed: {found}", hint=hint)
    return value


def _check_tensor(name: str, value: object) -> None:
    """Raise InputError unless ``value`` is a tensor."""
    if not isinstance(value, Tensor):
        raise InputError(name, "be a tensor", type(value).__name__)
