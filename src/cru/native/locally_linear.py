"""The compiled filter of CRU, f-CRU and RKN as a PyTorch operator with a gradient.

`torch.compile` treats the operators as opaque.
"""

import ctypes
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from cru.functional.belief import Belief, transformed
from cru.functional.expm import lobatto
from cru.functional.tracing import constant_in_traces
from cru.functional.transition import EigenTransition, Transition
from cru.native.call import (
    Eight,
    Eleven,
    check_tensors,
    empty_beliefs,
    no_second_derivative,
    pointers,
    saved_pointers,
    switched_off,
    threaded,
)
from cru.native.layout import (
    KINDS,
    MAX_POINTS,
    FilterOutputs,
    LocallyLinearGradients,
    LocallyLinearInputs,
    LocallyLinearSizes,
)
from cru.native.libraries import library
from cru.shapes import Bool, Float


def available(transition: Transition, y: Float[Tensor, "batch time obs"], delta: Float[Tensor, "batch time"]) -> bool:
    """Return whether the compiled filter supports this call: on the CPU, with a compiler, without a gradient by gaps.

    An exported graph has plain operators, because it must run where this package is not installed.

    Args:
        transition: the predict step.
        y: latent observations.
        delta: the gap before each time.
    """
    if torch.compiler.is_exporting() or type(transition) not in KINDS or y.device.type != "cpu" or transformed():
        return False
    return not (delta.requires_grad and torch.is_grad_enabled()) and _compiled(y.dtype, y.shape[-1])


@constant_in_traces
def _compiled(dtype: torch.dtype, obs: int) -> bool:
    return not switched_off() and library(dtype, obs) is not None


def filter_sequence(
    transition: Transition,
    start: Belief,
    y: Float[Tensor, "batch time obs"],
    y_var: Float[Tensor, "batch time obs"],
    mask: Bool[Tensor, "batch time obs"],
    delta: Float[Tensor, "batch time"],
    stepped: Bool[Tensor, "batch time"],
) -> tuple[Belief, Belief]:
    """Compute `cru.functional.filter_sequence` many times faster. Call `available` first.

    The arguments are those of `cru.functional.filter_sequence`.

    Returns:
        The priors and the posteriors over (batch, time).

    Raises:
        ValueError: if a tensor has another shape, dtype or device than expected.
    """
    batch, time, obs = y.shape
    weight, bias = transition.coefficients
    count, state = len(weight), 2 * obs
    eigen, gap = isinstance(transition, EigenTransition), weight.shape[-1] > state  # the gap is an input of RKN-Δt
    basis = transition.eigenvalues if isinstance(transition, EigenTransition) else cast(Any, transition).basis
    vectors = transition.eigenvectors if isinstance(transition, EigenTransition) else y.new_empty(0)
    check_tensors(y, {"mask": (mask, y.shape), "stepped": (stepped, (batch, time))}, torch.bool)
    floats = {
        "y_var": (y_var, y.shape),
        "delta": (delta, (batch, time)),
        "mean": (start.mean, (batch, state)),
        "upper": (start.upper, (batch, obs)),
        "lower": (start.lower, (batch, obs)),
        "side": (start.side, (batch, obs)),
        "weight": (weight, (count, state + gap)),
        "bias": (bias, (count,)),
        "basis": (basis, (count, state) if eigen else (count, state, state)),
        "eigenvectors": (vectors, (state, state) if eigen else (0,)),
        "noise": (transition.noise, (state,)),
    }
    check_tensors(y, floats)
    inputs = (y, y_var, mask, delta, stepped, *start[:4], weight, bias, basis, vectors, transition.noise)
    direct = not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()
    run = _filter_direct if direct else _filter  # for one observation, the dispatch costs more than the filter
    outputs = run(KINDS[type(transition)], *(tensor.contiguous() for tensor in inputs))
    return Belief(*outputs[:4]), Belief(*outputs[4:])


class _LocallyLinearInputs(NamedTuple):
    """The tensor arguments of the operator, in its order."""

    y: Tensor
    y_var: Tensor
    mask: Tensor
    delta: Tensor
    stepped: Tensor
    mean: Tensor
    upper: Tensor
    lower: Tensor
    side: Tensor
    weight: Tensor
    bias: Tensor
    basis: Tensor
    eigenvectors: Tensor
    noise: Tensor


def _filter_direct(
    kind: int,
    y: Tensor,
    y_var: Tensor,
    mask: Tensor,
    delta: Tensor,
    stepped: Tensor,
    mean: Tensor,
    upper: Tensor,
    lower: Tensor,
    side: Tensor,
    weight: Tensor,
    bias: Tensor,
    basis: Tensor,
    eigenvectors: Tensor,
    noise: Tensor,
) -> Eight:
    inputs = _LocallyLinearInputs(
        y, y_var, mask, delta, stepped, mean, upper, lower, side, weight, bias, basis, eigenvectors, noise
    )  # fmt: skip
    outputs = empty_beliefs(y, mean)
    call, sizes, given = _library(y).cru_locally_linear_filter, _sizes(kind, inputs), _input_pointers(inputs)
    results = pointers(FilterOutputs, prior=outputs[:4], posterior=outputs[4:])
    threaded(len(y), lambda first, last: call(sizes, given, results, first, last))
    return cast(Eight, tuple(outputs))


_filter = torch.library.custom_op("cru::locally_linear_filter", mutates_args=())(_filter_direct)


@_filter.register_fake
def _(kind: int, *tensors: Tensor) -> Eight:
    inputs = _LocallyLinearInputs(*tensors)
    return cast(Eight, tuple(empty_beliefs(inputs.y, inputs.mean)))


@torch.library.custom_op("cru::locally_linear_filter_backward", mutates_args=())
def _filter_backward(kind: int, tensors: list[Tensor], saved: list[Tensor]) -> Eleven:
    inputs = _LocallyLinearInputs(*tensors)
    call, sizes, given = (
        _library(inputs.y).cru_locally_linear_filter_backward,
        _sizes(kind, inputs),
        _input_pointers(inputs),
    )
    kept = saved_pointers(saved)
    series, parameters = _empty_gradients(inputs)

    def work(first: int, last: int) -> list[Tensor]:
        own = {name: torch.zeros_like(grad) for name, grad in parameters.items()}  # each thread sums its own series
        y, y_var, *start = series
        grads = pointers(LocallyLinearGradients, y=y, y_var=y_var, start=start, **own)
        call(sizes, given, kept, grads, first, last)
        return list(own.values())

    parts = threaded(len(inputs.y), work)
    return cast(Eleven, (*series, *(sum(part[1:], part[0]) for part in zip(*parts, strict=True))))


@_filter_backward.register_fake
def _(kind: int, tensors: list[Tensor], saved: list[Tensor]) -> Eleven:
    series, parameters = _empty_gradients(_LocallyLinearInputs(*tensors))
    return cast(Eleven, (*series, *parameters.values()))


_filter_backward.register_autograd(no_second_derivative)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.kind = inputs[0]
    ctx.save_for_backward(*inputs[1:], *output)


def _backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    kept = list(ctx.saved_tensors)  # read once: a checkpoint returns them only once
    count = len(_LocallyLinearInputs._fields)
    saved = [tensor.contiguous() for tensor in (*kept[count:], *grads)]
    y, y_var, *rest = torch.ops.cru.locally_linear_filter_backward(ctx.kind, kept[:count], saved)
    return (None, y, y_var, None, None, None, *rest)


_filter.register_autograd(_backward, setup_context=_setup)


def _empty_gradients(inputs: _LocallyLinearInputs) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Allocate the gradients: those of each series (y, y_var and the start), and those by parameters."""
    series = (inputs.y, inputs.y_var, inputs.mean, inputs.upper, inputs.lower, inputs.side)
    names = ("weight", "bias", "basis", "eigenvectors", "noise")
    return [torch.empty_like(x) for x in series], {name: torch.empty_like(getattr(inputs, name)) for name in names}


def _library(y: Tensor) -> ctypes.CDLL:
    return cast(ctypes.CDLL, library(y.dtype, y.shape[-1]))


def _sizes(kind: int, inputs: _LocallyLinearInputs) -> LocallyLinearSizes:
    (batch, time, obs), (basis, columns) = inputs.y.shape, inputs.weight.shape
    return LocallyLinearSizes(kind=kind, batch=batch, time=time, obs=obs, basis=basis, inputs=columns)


def _input_pointers(inputs: _LocallyLinearInputs) -> LocallyLinearInputs:
    fields = inputs._asdict()
    start = [fields.pop(name) for name in ("mean", "upper", "lower", "side")]
    return pointers(LocallyLinearInputs, start=start, quadrature=_quadrature(), **fields)


@cache
def _quadrature() -> Tensor:
    """Tabulate the Gauss-Lobatto rules for 3 to `MAX_POINTS` points: [points][nodes, weights][index]."""
    table = torch.zeros(MAX_POINTS + 1, 2, MAX_POINTS, dtype=torch.float64, device="cpu")
    for points in range(3, MAX_POINTS + 1):
        table[points, :, :points] = torch.tensor(lobatto(points), dtype=torch.float64, device="cpu")
    return table
