"""The compiled structural filter, smoother and likelihood."""

import ctypes
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from cru.functional.gaps import gaps
from cru.functional.structural import Components, Filtered, Smoothed, StructuralState
from cru.native.build import structural_library, switched_off
from cru.native.call import check_alike, pointers, threaded, transformed

MAX_COEFFICIENTS = 64


def structural_available(regressors: Float[Tensor, "batch time coefficient"], *constants: Tensor | None) -> bool:
    """Whether the compiled functions can take this call: on the CPU, with a compiler, outside compiled graphs.

    ``constants`` are the tensors for which the called function has no gradient: everything for the filter and the
    smoothers, ``times``, ``regressors`` and the state for `nll_structural`.
    """
    if torch.compiler.is_compiling() or torch.compiler.is_exporting() or transformed():
        return False
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in constants):
        return False
    fits = regressors.device.type == "cpu" and regressors.shape[-1] <= MAX_COEFFICIENTS
    return fits and not switched_off() and structural_library() is not None


def filter_structural(
    times: Float64[Tensor, "batch time"],
    values: Float[Tensor, "batch time variable"],
    mask: Bool[Tensor, "batch time variable"],
    regressors: Float[Tensor, "batch time coefficient"],
    components: Components,
    state: StructuralState | None = None,
) -> Filtered:
    """As `cru.functional.structural.filter_structural`, without gradients. Call `structural_available` first."""
    inputs = _inputs(times, values, mask, regressors, components, state)
    batch, _, variables = values.shape
    coefficients = regressors.shape[-1]
    mean, var = (torch.empty_like(inputs[1]) for _ in range(2))
    nll, state_mean = mean.new_empty(batch, variables), mean.new_empty(batch, variables, coefficients)
    explained = mean.new_empty(batch, variables, coefficients, coefficients)
    _run("filter", inputs, [mean, var, nll, state_mean, explained])
    last = StructuralState(state_mean, explained, times[:, -1])
    return Filtered(mean.to(values.dtype), var.to(values.dtype), nll.to(values.dtype), last)


def smooth_structural(
    times: Float64[Tensor, "batch time"],
    values: Float[Tensor, "batch time variable"],
    mask: Bool[Tensor, "batch time variable"],
    regressors: Float[Tensor, "batch time coefficient"],
    components: Components,
    state: StructuralState | None = None,
) -> Smoothed:
    """As `cru.functional.structural.smooth_structural`, without gradients. Call `structural_available` first."""
    inputs = _inputs(times, values, mask, regressors, components, state)
    outputs = [torch.empty_like(inputs[1]) for _ in range(4)]
    _run("smooth", inputs, outputs)
    return Smoothed(*(result.to(values.dtype) for result in outputs))


def smooth_components(
    times: Float64[Tensor, "batch time"],
    values: Float[Tensor, "batch time variable"],
    mask: Bool[Tensor, "batch time variable"],
    regressors: Float[Tensor, "batch time coefficient"],
    components: Components,
    groups: Int64[Tensor, " coefficient"],
    state: StructuralState | None = None,
) -> tuple[Float[Tensor, "batch time variable group"], Float[Tensor, "batch time variable group"]]:
    """As `cru.functional.structural.smooth_components`, without gradients. Call `structural_available` first."""
    inputs = _inputs(times, values, mask, regressors, components, state)
    check_alike(regressors, {"groups": (groups, regressors.shape[-1:])}, torch.int64)
    count = int(groups.max()) + 1
    mean, var = (inputs[1].new_empty(*values.shape, count) for _ in range(2))
    _run("smooth", inputs, [mean, var, None, None], groups.contiguous(), count)
    return mean.to(values.dtype), var.to(values.dtype)


def nll_structural(
    times: Float64[Tensor, "batch time"],
    values: Float[Tensor, "batch time variable"],
    mask: Bool[Tensor, "batch time variable"],
    regressors: Float[Tensor, "batch time coefficient"],
    components: Components,
    state: StructuralState | None = None,
) -> Float[Tensor, "batch variable"]:
    """The `nll` of `filter_structural`, with gradients for ``values`` and ``components``, in one pass for both.

    Unobserved rows cost nothing.
    """
    inputs = _inputs(times, values, mask, regressors, components, state)
    nll: Tensor = _Likelihood.apply(*inputs)  # type: ignore[no-untyped-call]
    return nll.to(values.dtype)


class _Likelihood(torch.autograd.Function):
    """The gradient in closed form comes with the likelihood itself; going back only weights it."""

    @staticmethod
    def forward(ctx: Any, delta: Tensor, values: Tensor, *rest: Tensor | None) -> Tensor:
        inputs = [delta, values, *rest]
        batch, _, variables = values.shape
        nll = values.new_empty(batch, variables)
        if not any(ctx.needs_input_grad):
            _run("likelihood", inputs, [nll, None, None, None, None])
            return nll
        shape = (batch, *cast(Tensor, rest[2]).shape)
        grads = [values.new_empty(shape), values.new_empty(shape), torch.empty_like(nll), torch.zeros_like(values)]
        _run("likelihood", inputs, [nll, *grads])
        ctx.save_for_backward(*grads)
        return nll

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        rate, var, noise, values = ctx.saved_tensors
        by_rate, by_var = (torch.einsum("bv,bvd->vd", weight, grad) for grad in (rate, var))
        return None, weight[:, None] * values, None, None, by_rate, by_var, (weight * noise).sum(0), None, None


def _inputs(
    times: Tensor,
    values: Tensor,
    mask: Tensor,
    regressors: Tensor,
    components: Components,
    state: StructuralState | None,
) -> list[Any]:
    """What the kernel reads, in its order: contiguous, in double, and of the shapes that it relies on."""
    batch, time, variables = values.shape
    each = (variables, regressors.shape[-1])
    check_alike(values, {"times": (times, (batch, time))}, torch.float64)
    check_alike(values, {"mask": (mask, values.shape)}, torch.bool)
    check_alike(regressors, {"regressors": (regressors, (batch, time, each[1]))})
    for name, tensor, shape in zip(Components._fields, components, (each, each, each[:1]), strict=True):
        check_alike(tensor, {name: (tensor, shape)})
    start: list[Tensor | None] = [None, None]
    if state is not None:
        shapes = {"mean": (batch, *each), "explained": (batch, *each, each[1]), "time": (batch,)}
        check_alike(
            values, {f"state.{name}": (getattr(state, name), shape) for name, shape in shapes.items()}, torch.float64
        )
        start = [state.mean.contiguous(), state.explained.contiguous()]
    delta = gaps(times, None if state is None else state.time, 1.0, torch.float64)
    real = [tensor.double().contiguous() for tensor in (delta, values, regressors, *components)]
    return [*real[:2], mask.contiguous(), *real[2:], *start]


def _run(name: str, inputs: list[Any], outputs: list[Any], groups: Tensor | None = None, count: int = 1) -> None:
    """Call a function of the kernel for all problems: (series, variable)."""
    batch, time, variables = inputs[1].shape
    sizes = (ctypes.c_int64 * 4)(time, variables, inputs[3].shape[-1], count)
    call = getattr(cast(ctypes.CDLL, structural_library()), f"cru_structural_{name}")
    given, results = pointers([*inputs, groups]), pointers(outputs)
    threaded(batch * variables, lambda first, last: call(sizes, given, results, first, last))
