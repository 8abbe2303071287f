"""The compiled paired filter and smoother as PyTorch operators with gradients."""

import ctypes
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from cru.functional.belief import Belief, transformed
from cru.functional.paired import PairedTransition
from cru.functional.tracing import constant_in_traces
from cru.native.call import (
    Eight,
    Eleven,
    Four,
    Ten,
    check_tensors,
    empty_beliefs,
    no_second_derivative,
    pointers,
    saved_pointers,
    switched_off,
    threaded,
)
from cru.native.layout import (
    Beliefs,
    FilterOutputs,
    PairedGradients,
    PairedInputs,
    PairedSizes,
    SmoothGradients,
    SmoothInputs,
)
from cru.native.libraries import paired_library
from cru.shapes import Bool, Float


def paired_available(y: Float[Tensor, "batch time obs"]) -> bool:
    """Return whether the compiled functions support this call: on the CPU, with a compiler, not in an export."""
    if torch.compiler.is_exporting() or transformed():
        return False
    return y.device.type == "cpu" and _compiled(y.dtype)


@constant_in_traces
def _compiled(dtype: torch.dtype) -> bool:
    return not switched_off() and paired_library(dtype) is not None


def filter_paired(
    start: Belief,
    y: Float[Tensor, "batch time obs"],
    y_var: Float[Tensor, "batch time obs"],
    mask: Bool[Tensor, "batch time obs"],
    transitions: PairedTransition,
) -> tuple[Belief, Belief]:
    """Compute `cru.functional.paired.filter_paired` many times faster. Call `paired_available` first.

    Args:
        start: belief before the first time.
        y: latent observations.
        y_var: their variances.
        mask: True where observed.
        transitions: the transition before each time.

    Returns:
        The priors and the posteriors over (batch, time).

    Raises:
        ValueError: if a tensor has another shape, dtype or device than expected.
    """
    batch, _, obs = y.shape
    check_tensors(y, {"mask": (mask, y.shape)}, torch.bool)
    check_tensors(y, {name: (value, y.shape) for name, value in {"y_var": y_var, **transitions._asdict()}.items()})
    check_tensors(y, {name: (getattr(start, name), (batch, obs)) for name in ("upper", "lower", "side")})
    check_tensors(y, {"mean": (start.mean, (batch, 2 * obs))})
    outputs = _filter(*(tensor.contiguous() for tensor in (y, y_var, mask, *transitions, *start[:4])))
    return Belief(*outputs[:4]), Belief(*outputs[4:])


def smooth_paired(prior: Belief, posterior: Belief, transitions: PairedTransition) -> Belief:
    """Compute `cru.functional.paired_scan.smooth_paired` many times faster. Call `paired_available` first.

    Args:
        prior: the priors of the filter.
        posterior: the posteriors of the filter.
        transitions: the transition before each time.

    Returns:
        The smoothed beliefs over (batch, time).

    Raises:
        ValueError: if a tensor has another shape, dtype or device than expected.
    """
    like = transitions.cos
    means = (*like.shape[:2], 2 * like.shape[2])
    for belief in (prior, posterior):
        check_tensors(like, {"mean": (belief.mean, means)})
        check_tensors(like, {name: (getattr(belief, name), like.shape) for name in ("upper", "lower", "side")})
    check_tensors(like, {name: (value, like.shape) for name, value in transitions._asdict().items()})
    inputs = (*prior[:4], *posterior[:4], *transitions[:4])
    outputs = _smooth(*(tensor.contiguous() for tensor in inputs))
    return Belief(*outputs)._replace(time=posterior.time)


class _FilterInputs(NamedTuple):
    """The arguments of the filter's operator, in its order."""

    y: Tensor
    y_var: Tensor
    mask: Tensor
    cos: Tensor
    sin: Tensor
    noise_upper: Tensor
    noise_lower: Tensor
    noise_side: Tensor
    mean: Tensor
    upper: Tensor
    lower: Tensor
    side: Tensor

    def pointers(self) -> PairedInputs:
        """Fill the structure that the compiled code reads."""
        transition = {"upper": self.noise_upper, "lower": self.noise_lower, "side": self.noise_side}
        named = {name: getattr(self, name) for name in ("y", "y_var", "mask", "cos", "sin")}
        return pointers(PairedInputs, start=self[8:], **named, **transition)

    def empty_gradients(self) -> list[Tensor]:
        """Allocate the gradients by all inputs except the mask."""
        return [torch.empty_like(tensor) for name, tensor in zip(self._fields, self, strict=True) if name != "mask"]


@torch.library.custom_op("cru::paired_filter", mutates_args=())
def _filter(
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
    inputs = _FilterInputs(
        y, y_var, mask, cos, sin, noise_upper, noise_lower, noise_side, mean, upper, lower, side
    )  # fmt: skip
    outputs = empty_beliefs(y, mean)
    call, sizes, given = _library(y).cru_paired_filter, _sizes(y), inputs.pointers()
    results = pointers(FilterOutputs, prior=outputs[:4], posterior=outputs[4:])
    threaded(len(y), lambda first, last: call(sizes, given, results, first, last))
    return cast(Eight, tuple(outputs))


@_filter.register_fake
def _(*tensors: Tensor) -> Eight:
    inputs = _FilterInputs(*tensors)
    return cast(Eight, tuple(empty_beliefs(inputs.y, inputs.mean)))


@torch.library.custom_op("cru::paired_filter_backward", mutates_args=())
def _filter_backward(tensors: list[Tensor], saved: list[Tensor]) -> Eleven:
    inputs = _FilterInputs(*tensors)
    grads = inputs.empty_gradients()
    y, y_var, cos, sin, upper, lower, side, *start = grads
    call, sizes, given = _library(y).cru_paired_filter_backward, _sizes(y), inputs.pointers()
    transition = {"cos": cos, "sin": sin, "upper": upper, "lower": lower, "side": side}
    results = pointers(PairedGradients, y=y, y_var=y_var, start=start, **transition)
    kept = saved_pointers(saved)
    threaded(len(y), lambda first, last: call(sizes, given, kept, results, first, last))
    return cast(Eleven, tuple(grads))


@_filter_backward.register_fake
def _(tensors: list[Tensor], saved: list[Tensor]) -> Eleven:
    return cast(Eleven, tuple(_FilterInputs(*tensors).empty_gradients()))


_filter_backward.register_autograd(no_second_derivative)


def _setup_filter(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _backward_filter(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    kept = list(ctx.saved_tensors)  # read once: a checkpoint returns them only once
    count = len(_FilterInputs._fields)
    saved = [tensor.contiguous() for tensor in (*kept[count:], *grads)]
    y, y_var, *rest = torch.ops.cru.paired_filter_backward(kept[:count], saved)
    return (y, y_var, None, *rest)


_filter.register_autograd(_backward_filter, setup_context=_setup_filter)


class _SmoothInputs(NamedTuple):
    """The arguments of the smoother's operator, in its order."""

    prior_mean: Tensor
    prior_upper: Tensor
    prior_lower: Tensor
    prior_side: Tensor
    mean: Tensor
    upper: Tensor
    lower: Tensor
    side: Tensor
    cos: Tensor
    sin: Tensor
    noise_upper: Tensor
    noise_lower: Tensor

    def pointers(self) -> SmoothInputs:
        """Fill the structure that the compiled code reads."""
        transition = {"cos": self.cos, "sin": self.sin, "upper": self.noise_upper, "lower": self.noise_lower}
        return pointers(SmoothInputs, prior=self[:4], posterior=self[4:8], **transition)


@torch.library.custom_op("cru::paired_smooth", mutates_args=())
def _smooth(
    prior_mean: Tensor,
    prior_upper: Tensor,
    prior_lower: Tensor,
    prior_side: Tensor,
    mean: Tensor,
    upper: Tensor,
    lower: Tensor,
    side: Tensor,
    cos: Tensor,
    sin: Tensor,
    noise_upper: Tensor,
    noise_lower: Tensor,
) -> Four:
    prior, posterior = (prior_mean, prior_upper, prior_lower, prior_side), (mean, upper, lower, side)
    inputs = _SmoothInputs(*prior, *posterior, cos, sin, noise_upper, noise_lower)
    outputs = [torch.empty_like(tensor) for tensor in posterior]
    call, sizes, given = _library(cos).cru_paired_smooth, _sizes(cos), inputs.pointers()
    results = pointers(Beliefs, **dict(zip(("mean", "upper", "lower", "side"), outputs, strict=True)))
    threaded(len(cos), lambda first, last: call(sizes, given, results, first, last))
    return cast(Four, tuple(outputs))


@_smooth.register_fake
def _(*tensors: Tensor) -> Four:
    return cast(Four, tuple(torch.empty_like(tensor) for tensor in tensors[:4]))


@torch.library.custom_op("cru::paired_smooth_backward", mutates_args=())
def _smooth_backward(tensors: list[Tensor], grad_outputs: list[Tensor]) -> Ten:
    inputs = _SmoothInputs(*tensors)
    grads = [torch.empty_like(tensor) for tensor in inputs[:10]]  # by all but the noise
    call, sizes, given = _library(inputs.cos).cru_paired_smooth_backward, _sizes(inputs.cos), inputs.pointers()
    kept = pointers(Beliefs, **dict(zip(("mean", "upper", "lower", "side"), grad_outputs, strict=True)))
    results = pointers(SmoothGradients, prior=grads[:4], posterior=grads[4:8], cos=grads[8], sin=grads[9])
    threaded(len(inputs.cos), lambda first, last: call(sizes, given, kept, results, first, last))
    return cast(Ten, tuple(grads))


@_smooth_backward.register_fake
def _(tensors: list[Tensor], grad_outputs: list[Tensor]) -> Ten:
    return cast(Ten, tuple(torch.empty_like(tensor) for tensor in tensors[:10]))


_smooth_backward.register_autograd(no_second_derivative)


def _setup_smooth(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs)


def _backward_smooth(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    given = [grad.contiguous() for grad in grads]
    return (*torch.ops.cru.paired_smooth_backward(list(ctx.saved_tensors), given), None, None)


_smooth.register_autograd(_backward_smooth, setup_context=_setup_smooth)


def _library(y: Tensor) -> ctypes.CDLL:
    return cast(ctypes.CDLL, paired_library(y.dtype))


def _sizes(y: Tensor) -> PairedSizes:
    batch, time, obs = y.shape
    return PairedSizes(batch=batch, time=time, obs=obs)
