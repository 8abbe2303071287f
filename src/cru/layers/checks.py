"""What users may hand to a layer, and the sentences they get when they hand over something else."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def require(condition: bool, message: str) -> None:
    """Raise a ``ValueError`` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ValueError(message)


def check_sizes(input_size: int, hidden_size: int, num_basis: int, bandwidth: int | None) -> None:
    """The sizes of a layer: positive, an even state, a band that fits into its blocks."""
    for name, size in (("input_size", input_size), ("hidden_size", hidden_size), ("num_basis", num_basis)):
        require(
            isinstance(size, int) and size >= 1,
            f"`{name}` must be a whole number of at least 1, got {size!r}.",
        )
    require(
        hidden_size % 2 == 0,
        f"`hidden_size` must be even (an observed and a memory half), got {hidden_size}. "
        f"Use {hidden_size + 1} or {max(hidden_size - 1, 2)}.",
    )
    if bandwidth is not None:
        most = max(hidden_size // 2, 3)
        require(
            isinstance(bandwidth, int) and 0 <= bandwidth <= most,
            f"`bandwidth` must lie between 0 and {most} (half of hidden_size = {hidden_size}), got {bandwidth!r}.",
        )


def check_dtype(dtype: torch.dtype | None) -> None:
    """Layers compute in float32 or float64."""
    dtype = dtype or torch.get_default_dtype()
    require(
        dtype in (torch.float32, torch.float64),
        f"`dtype` must be torch.float32 or torch.float64, got {dtype}: a Kalman filter needs the precision.",
    )


def as_times(times: Tensor, batch: int, steps: int, start: Tensor | None) -> Tensor:
    """``times`` as (batch, time), in the widest type of itself and of the time of the state it continues."""
    require(isinstance(times, Tensor), f"`times` must be a tensor, got {type(times).__name__}.")
    require(
        times.dtype not in (torch.bool, torch.complex64, torch.complex128),
        f"`times` must be of a float or integer type, got {times.dtype}.",
    )
    require(
        tuple(times.shape) in ((steps,), (batch, steps)),
        f"`times` must have the shape (time,) = ({steps},) or (batch, time) = ({batch}, {steps}), "
        f"got {tuple(times.shape)}.",
    )
    if start is not None:
        times = times.to(torch.promote_types(times.dtype, start.dtype))
    return times.expand(batch, steps)


def check_series(name: str, value: Tensor, size: int) -> None:
    """(batch, time, size), with at least one time."""
    require(isinstance(value, Tensor), f"`{name}` must be a tensor, got {type(value).__name__}.")
    require(
        value.ndim == 3 and value.shape[-1] == size,
        f"`{name}` must have the shape (batch, time, {size}), got {tuple(value.shape)}.",
    )
    require(
        value.shape[1] > 0,
        f"`{name}` must have at least one time point, got an empty time axis: {tuple(value.shape)}.",
    )


def as_mask(mask: Tensor | None, value: Tensor) -> Bool[Tensor, "batch time size"]:
    """``mask`` as (batch, time, size), True = observed; without one, NaN means missing."""
    if mask is None:
        return ~torch.isnan(value)
    require(
        isinstance(mask, Tensor) and mask.dtype == torch.bool,
        "`mask` must be a tensor of dtype torch.bool (True = observed), "
        f"got {getattr(mask, 'dtype', type(mask).__name__)}. Use mask.bool().",
    )
    require(
        tuple(mask.shape) in (tuple(value.shape[:2]), tuple(value.shape)),
        f"`mask` must have the shape {tuple(value.shape[:2])} or {tuple(value.shape)}, got {tuple(mask.shape)}.",
    )
    return (mask if mask.ndim == 3 else mask[..., None]).expand_as(value)


def observed_values(
    name: str, value: Float[Tensor, "batch time size"], mask: Bool[Tensor, "batch time size"]
) -> Float[Tensor, "batch time size"]:
    """``value`` with zeros where nothing is observed; what is observed must be finite."""
    value = torch.where(mask, value, 0.0)
    if not torch.compiler.is_compiling() and not bool(torch.isfinite(value).all()):
        series, step, feature = (int(i) for i in (~torch.isfinite(value)).nonzero()[0])
        raise ValueError(
            f"`{name}` must be finite where it is observed: series {series}, step {step}, feature {feature} is "
            f"{value[series, step, feature].item()}. Mask it (or, without a `mask`, set it to NaN)."
        )
    return value
