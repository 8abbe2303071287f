"""The compiled structural filter, smoother and likelihood."""

import ctypes
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from cru.functional.belief import transformed
from cru.functional.gaps import gaps
from cru.functional.structural import Components, Filtered, Smoothed, StructuralState
from cru.native.call import check_tensors, pointers, switched_off, threaded
from cru.native.layout import (
    MAX_COEFFICIENTS,
    StructuralFilterOutputs,
    StructuralInputs,
    StructuralLikelihoodOutputs,
    StructuralSizes,
    StructuralSmoothOutputs,
)
from cru.native.libraries import structural_library
from cru.shapes import Bool, Float, Float64, Int64

_OUTPUTS: dict[str, type[ctypes.Structure]] = {
    "filter": StructuralFilterOutputs,
    "smooth": StructuralSmoothOutputs,
    "likelihood": StructuralLikelihoodOutputs,
}


def structural_available(regressors: Float[Tensor, "batch time coefficient"], *constants: Tensor | None) -> bool:
    """Return whether the compiled functions support this call: on the CPU, with a compiler, outside compiled graphs.

    Args:
        regressors: the regressors of the call.
        constants: the tensors for which the function has no gradient. For the filter and the smoothers these are all
            tensors. For `nll_structural` they are ``times``, ``regressors`` and the state.
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
    """Compute `cru.functional.structural.filter_structural` faster, without gradients. See `structural_available`.

    The arguments are those of that function.

    Raises:
        ValueError: if a tensor has another shape, dtype or device than expected.
    """
    inputs = _inputs(times, values, mask, regressors, components, state)
    batch, _, variables = values.shape
    coefficients = regressors.shape[-1]
    mean, var = (torch.empty_like(inputs.values) for _ in range(2))
    nll, state_mean = mean.new_empty(batch, variables), mean.new_empty(batch, variables, coefficients)
    explained = mean.new_empty(batch, variables, coefficients, coefficients)
    outputs = {"mean": mean, "var": var, "nll": nll, "state_mean": state_mean, "state_explained": explained}
    _run("filter", inputs, outputs)
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
    """Compute `cru.functional.structural.smooth_structural` faster, without gradients. See `structural_available`.

    The arguments are those of that function.

    Raises:
        ValueError: if a tensor has another shape, dtype or device than expected.
    """
    inputs = _inputs(times, values, mask, regressors, components, state)
    found = Smoothed(*(torch.empty_like(inputs.values) for _ in range(4)))
    _run("smooth", inputs, found._asdict())
    return Smoothed(*(result.to(values.dtype) for result in found))


def smooth_components(
    times: Float64[Tensor, "batch time"],
    values: Float[Tensor, "batch time variable"],
    mask: Bool[Tensor, "batch time variable"],
    regressors: Float[Tensor, "batch time coefficient"],
    components: Components,
    groups: Int64[Tensor, " coefficient"],
    state: StructuralState | None = None,
) -> tuple[Float[Tensor, "batch time variable group"], Float[Tensor, "batch time variable group"]]:
    """Compute `cru.functional.structural.smooth_components` faster, without gradients. See `structural_available`.

    The arguments are those of that function.

    Raises:
        ValueError: if a tensor has another shape, dtype or device than expected.
    """
    inputs = _inputs(times, values, mask, regressors, components, state)
    check_tensors(regressors, {"groups": (groups, regressors.shape[-1:])}, torch.int64)
    count = int(groups.max()) + 1
    mean, var = (inputs.values.new_empty(*values.shape, count) for _ in range(2))
    outputs = {"mean": mean, "var": var, "loo_mean": None, "loo_var": None}
    _run("smooth", inputs._replace(group=groups.contiguous()), outputs, count)
    return mean.to(values.dtype), var.to(values.dtype)


def nll_structural(
    times: Float64[Tensor, "batch time"],
    values: Float[Tensor, "batch time variable"],
    mask: Bool[Tensor, "batch time variable"],
    regressors: Float[Tensor, "batch time coefficient"],
    components: Components,
    state: StructuralState | None = None,
) -> Float[Tensor, "batch variable"]:
    """Compute the ``nll`` of `filter_structural`, with gradients by ``values`` and ``components``.

    One pass computes both. Unobserved rows have no cost. The arguments are those of `filter_structural`.

    Raises:
        ValueError: if a tensor has another shape, dtype or device than expected.
    """
    inputs = _inputs(times, values, mask, regressors, components, state)
    nll: Tensor = _Likelihood.apply(*inputs)  # type: ignore[no-untyped-call]
    return nll.to(values.dtype)


class _StructuralInputs(NamedTuple):
    """The tensors of a call, with the names of `StructuralInputs`. They are contiguous and in double."""

    delta: Tensor
    values: Tensor
    mask: Tensor
    regressors: Tensor
    rate: Tensor
    var: Tensor
    noise: Tensor
    mean: Tensor | None = None
    explained: Tensor | None = None
    group: Tensor | None = None


class _Likelihood(torch.autograd.Function):
    """The likelihood. Its forward pass also computes the gradient in closed form. The backward pass only scales it."""

    @staticmethod
    def forward(ctx: Any, *tensors: Any) -> Tensor:
        inputs = _StructuralInputs(*tensors)
        batch, _, variables = inputs.values.shape
        nll = inputs.values.new_empty(batch, variables)
        if not any(ctx.needs_input_grad):
            _run("likelihood", inputs, {"nll": nll, "rate": None, "var": None, "noise": None, "values": None})
            return nll
        rate, var = (nll.new_empty(batch, *inputs.rate.shape) for _ in range(2))
        noise, values = torch.empty_like(nll), torch.zeros_like(inputs.values)
        _run("likelihood", inputs, {"nll": nll, "rate": rate, "var": var, "noise": noise, "values": values})
        ctx.save_for_backward(rate, var, noise, values)
        return nll

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        rate, var, noise, values = ctx.saved_tensors
        grad_rate, grad_var = (torch.einsum("bv,bvd->vd", weight, grad) for grad in (rate, var))
        grads = {"values": weight[:, None] * values, "rate": grad_rate, "var": grad_var}
        grads["noise"] = (weight * noise).sum(0)
        return tuple(grads.get(name) for name in _StructuralInputs._fields)


def _inputs(
    times: Tensor,
    values: Tensor,
    mask: Tensor,
    regressors: Tensor,
    components: Components,
    state: StructuralState | None,
) -> _StructuralInputs:
    """Check the tensors of a call and convert them to the inputs of the compiled code."""
    batch, time, variables = values.shape
    each = (variables, regressors.shape[-1])
    check_tensors(values, {"times": (times, (batch, time))}, torch.float64)
    check_tensors(values, {"mask": (mask, values.shape)}, torch.bool)
    check_tensors(regressors, {"regressors": (regressors, (batch, time, each[1]))})
    for name, tensor, shape in zip(Components._fields, components, (each, each, each[:1]), strict=True):
        check_tensors(tensor, {name: (tensor, shape)})
    start: dict[str, Tensor] = {}
    if state is not None:
        shapes = {"mean": (batch, *each), "explained": (batch, *each, each[1]), "time": (batch,)}
        check_tensors(
            values, {f"state.{name}": (getattr(state, name), shape) for name, shape in shapes.items()}, torch.float64
        )
        start = {"mean": state.mean.contiguous(), "explained": state.explained.contiguous()}
    delta = gaps(times, None if state is None else state.time, 1.0, torch.float64)
    delta, values, regressors, rate, var, noise = (
        tensor.double().contiguous() for tensor in (delta, values, regressors, *components)
    )
    return _StructuralInputs(delta, values, mask.contiguous(), regressors, rate, var, noise, **start)


def _run(name: str, inputs: _StructuralInputs, outputs: Mapping[str, Tensor | None], groups: int = 1) -> None:
    """Call a compiled function for all problems. A problem is one variable of one series."""
    batch, time, variables = inputs.values.shape
    sizes = StructuralSizes(time=time, variables=variables, coefficients=inputs.regressors.shape[-1], groups=groups)
    call = getattr(cast(ctypes.CDLL, structural_library()), f"cru_structural_{name}")
    given, results = pointers(StructuralInputs, **inputs._asdict()), pointers(_OUTPUTS[name], **outputs)
    threaded(batch * variables, lambda first, last: call(sizes, given, results, first, last))
