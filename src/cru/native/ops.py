"""The compiled filter as PyTorch operators: opaque to `torch.compile`, with a gradient, threaded over the batch."""

import ctypes
from functools import cache
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cru.functional.belief import Belief
from cru.functional.expm import lobatto
from cru.functional.transition import DiscreteTransition, EigenTransition, ExpmTransition, Transition
from cru.native.build import library, switched_off
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

_KINDS: dict[type, int] = {ExpmTransition: 0, EigenTransition: 1, DiscreteTransition: 2}
_MAX_POINTS = 16


def available(transition: Transition, y: Float[Tensor, "batch time obs"], delta: Float[Tensor, "batch time"]) -> bool:
    """Whether the compiled filter can take this call: on the CPU, with a compiler, no gradient of the gaps wanted.

    An exported graph must run where this library is not installed, so it gets the plain operators.
    """
    if torch.compiler.is_exporting() or type(transition) not in _KINDS or y.device.type != "cpu" or transformed():
        return False
    return not (delta.requires_grad and torch.is_grad_enabled()) and _compiled(y.dtype, y.shape[-1])


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _compiled(dtype: torch.dtype, obs: int) -> bool:
    return not switched_off() and library(dtype, obs) is not None


def filter_sequence(
    transition: Transition,
    start: Belief,
    y: Float[Tensor, "batch time obs"],
    y_var: Float[Tensor, "batch time obs"],
    mask: Bool[Tensor, "batch time obs"],
    delta: Float[Tensor, "batch time"],
    moves: Bool[Tensor, "batch time"],
) -> tuple[Belief, Belief]:
    """As `cru.functional.filter_sequence`, many times faster. Call `available` first."""
    basis = transition.eigenvalues if isinstance(transition, EigenTransition) else cast(Any, transition).basis
    vectors = transition.eigenvectors if isinstance(transition, EigenTransition) else y.new_empty(0)
    inputs = (
        y,
        y_var,
        mask,
        delta,
        moves,
        *start[:4],
        *transition.coefficients,
        basis,
        vectors,
        transition.noise,
    )
    batch, time, obs = y.shape
    weight, bias = transition.coefficients
    count, state = len(weight), 2 * obs
    eigen, gap = isinstance(transition, EigenTransition), weight.shape[-1] > state  # RKN-Δt also weighs the gap
    check_alike(y, {"mask": (mask, y.shape), "moves": (moves, (batch, time))}, torch.bool)
    check_alike(y, {"y_var": (y_var, y.shape), "delta": (delta, (batch, time))})
    check_alike(y, {"weight": (weight, (count, state + gap)), "bias": (bias, (count,))})
    check_alike(y, {"vectors": (vectors, (state, state) if eigen else (0,))})
    check_alike(y, {"basis": (basis, (count, state) if eigen else (count, state, state))})
    check_alike(y, {"mean": (start.mean, (batch, state)), "noise": (transition.noise, (state,))})
    check_alike(y, {name: (getattr(start, name), (batch, obs)) for name in ("upper", "lower", "side")})
    now = not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()
    run = _filter_now if now else _filter  # dispatching costs more than a reading
    outputs = run(_KINDS[type(transition)], *(tensor.contiguous() for tensor in inputs))
    return Belief(*outputs[:4]), Belief(*outputs[4:])


def _filter_now(
    kind: int,
    y: Tensor,
    y_var: Tensor,
    mask: Tensor,
    delta: Tensor,
    moves: Tensor,
    mean: Tensor,
    upper: Tensor,
    lower: Tensor,
    side: Tensor,
    weight: Tensor,
    bias: Tensor,
    basis: Tensor,
    vectors: Tensor,
    noise: Tensor,
) -> Eight:
    inputs = [y, y_var, mask, delta, moves, mean, upper, lower, side, weight, bias, basis, vectors, noise]
    outputs = beliefs_like(y, mean)
    call = _native(y).cru_filter
    sizes, given, results = _sizes(y, weight), pointers([*inputs, _rules()]), pointers(outputs)
    threaded(y.shape[0], lambda first, last: call(kind, sizes, given, results, first, last))
    return cast(Eight, tuple(outputs))


_filter = torch.library.custom_op("cru::filter", mutates_args=())(_filter_now)


@_filter.register_fake
def _(
    kind: int,
    y: Tensor,
    y_var: Tensor,
    mask: Tensor,
    delta: Tensor,
    moves: Tensor,
    mean: Tensor,
    *rest: Tensor,
) -> Eight:
    return cast(Eight, tuple(beliefs_like(y, mean)))


@torch.library.custom_op("cru::filter_backward", mutates_args=())
def _filter_backward(kind: int, inputs: list[Tensor], saved: list[Tensor]) -> Eleven:
    y, mean, weight = inputs[0], inputs[5], inputs[9]
    grads = _gradients(inputs)
    call = _native(y).cru_filter_backward
    sizes, given = _sizes(y, weight), pointers([*inputs, _rules()])
    kept = pointers(saved)

    def work(first: int, last: int) -> list[Tensor]:
        own = [*grads[:6], *(torch.zeros_like(grad) for grad in grads[6:])]
        call(kind, sizes, given, kept, pointers(own), first, last)
        return own[6:]

    parts = threaded(mean.shape[0], work)
    return cast(Eleven, (*grads[:6], *(sum(part[1:], part[0]) for part in zip(*parts, strict=True))))


@_filter_backward.register_fake
def _(kind: int, inputs: list[Tensor], saved: list[Tensor]) -> Eleven:
    return cast(Eleven, tuple(_gradients(inputs)))


_filter_backward.register_autograd(no_second_derivative)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.kind = inputs[0]
    ctx.save_for_backward(*inputs[1:], *output)


def _backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    kept = list(ctx.saved_tensors)  # once: a checkpoint gives them out once
    inputs, outputs = kept[:14], kept[14:]
    saved = [tensor.contiguous() for tensor in (*outputs, *grads)]
    y, y_var, *rest = torch.ops.cru.filter_backward(ctx.kind, inputs, saved)
    return (None, y, y_var, None, None, None, *rest)


_filter.register_autograd(_backward, setup_context=_setup)


def _gradients(inputs: list[Tensor]) -> list[Tensor]:
    """Of y, y_var, the start (4), weight, bias, basis, vectors, noise."""
    return [torch.empty_like(inputs[i]) for i in (0, 1, 5, 6, 7, 8, 9, 10, 11, 12, 13)]


def _native(y: Tensor) -> ctypes.CDLL:
    return cast(ctypes.CDLL, library(y.dtype, y.shape[-1]))


def _sizes(y: Tensor, weight: Tensor) -> "ctypes.Array[ctypes.c_int64]":
    return (ctypes.c_int64 * 5)(*y.shape, *weight.shape)


@cache
def _rules() -> Tensor:
    """Gauss-Lobatto rules for 3 to 16 points, as the kernel reads them: [points][nodes, weights][index]."""
    table = torch.zeros(_MAX_POINTS + 1, 2, _MAX_POINTS, dtype=torch.float64, device="cpu")
    for points in range(3, _MAX_POINTS + 1):
        table[points, :, :points] = torch.tensor(lobatto(points), dtype=torch.float64, device="cpu")
    return table
