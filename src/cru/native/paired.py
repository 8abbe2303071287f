"""The compiled paired filter as a PyTorch operator."""

import ctypes
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cru.functional.belief import Belief
from cru.functional.paired import Hop
from cru.native.build import paired_library, switched_off
from cru.native.call import (
    Eight,
    Eleven,
    beliefs_like,
    check_alike,
    no_second_derivative,
    pointers,
    threaded,
    transformed,
)


def paired_available(y: Float[Tensor, "batch time obs"]) -> bool:
    """Whether the compiled filter can take this call: on the CPU, with a compiler, not for an exported graph."""
    if torch.compiler.is_exporting() or transformed():
        return False
    return y.device.type == "cpu" and _compiled(y.dtype)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _compiled(dtype: torch.dtype) -> bool:
    return not switched_off() and paired_library(dtype) is not None


def filter_paired(
    start: Belief,
    y: Float[Tensor, "batch time obs"],
    y_var: Float[Tensor, "batch time obs"],
    mask: Bool[Tensor, "batch time obs"],
    hops: Hop,
) -> tuple[Belief, Belief]:
    """As `cru.functional.filter_paired`, many times faster. Call `paired_available` first."""
    batch, _, obs = y.shape
    check_alike(y, {"mask": (mask, y.shape)}, torch.bool)
    check_alike(y, {"y_var": (y_var, y.shape)} | {name: (value, y.shape) for name, value in hops._asdict().items()})
    check_alike(y, {name: (getattr(start, name), (batch, obs)) for name in ("upper", "lower", "side")})
    check_alike(y, {"mean": (start.mean, (batch, 2 * obs))})
    outputs = _paired(*(tensor.contiguous() for tensor in (y, y_var, mask, *hops, *start[:4])))
    return Belief(*outputs[:4]), Belief(*outputs[4:])


@torch.library.custom_op("cru::paired", mutates_args=())
def _paired(
    y: Tensor,
    y_var: Tensor,
    mask: Tensor,
    cos: Tensor,
    sin: Tensor,
    noise_upper: Tensor,
    noise_lower: Tensor,
    noise_side: Tensor,
    mean: Tensor,
    upper: Tensor,
    lower: Tensor,
    side: Tensor,
) -> Eight:
    inputs = [y, y_var, mask, cos, sin, noise_upper, noise_lower, noise_side, mean, upper, lower, side]
    outputs = beliefs_like(y, mean)
    call, sizes = native_paired(y).cru_filter, sizes_of(y)
    given, results = pointers(inputs), pointers(outputs)
    threaded(y.shape[0], lambda first, last: call(0, sizes, given, results, first, last))
    return cast(Eight, tuple(outputs))


@_paired.register_fake
def _(y: Tensor, y_var: Tensor, mask: Tensor, *rest: Tensor) -> Eight:
    return cast(Eight, tuple(beliefs_like(y, rest[5])))


@torch.library.custom_op("cru::paired_backward", mutates_args=())
def _paired_backward(inputs: list[Tensor], saved: list[Tensor]) -> Eleven:
    y = inputs[0]
    grads = _gradients(inputs)
    call, sizes = native_paired(y).cru_filter_backward, sizes_of(y)
    given, kept, results = pointers(inputs), pointers(saved), pointers(grads)
    threaded(y.shape[0], lambda first, last: call(0, sizes, given, kept, results, first, last))
    return cast(Eleven, tuple(grads))


@_paired_backward.register_fake
def _(inputs: list[Tensor], saved: list[Tensor]) -> Eleven:
    return cast(Eleven, tuple(_gradients(inputs)))


_paired_backward.register_autograd(no_second_derivative)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    kept = list(ctx.saved_tensors)  # once: a checkpoint gives them out once
    inputs, outputs = kept[:12], kept[12:]
    saved = [tensor.contiguous() for tensor in (*outputs, *grads)]
    y, y_var, *rest = torch.ops.cru.paired_backward(inputs, saved)
    return (y, y_var, None, *rest)


_paired.register_autograd(_backward, setup_context=_setup)


def _gradients(inputs: list[Tensor]) -> list[Tensor]:
    """Of everything but the mask."""
    return [torch.empty_like(tensor) for i, tensor in enumerate(inputs) if i != 2]


def native_paired(y: Tensor) -> ctypes.CDLL:
    """The library for the type of ``y``."""
    return cast(ctypes.CDLL, paired_library(y.dtype))


def sizes_of(y: Tensor) -> "ctypes.Array[ctypes.c_int64]":
    """Batch, time and pairs of ``y``, as a C array."""
    return (ctypes.c_int64 * 3)(*y.shape)
