"""The compiled paired smoother as a PyTorch operator."""

from typing import Any, cast

import torch
from torch import Tensor

from cru.functional.belief import Belief
from cru.functional.paired import Hop
from cru.native.call import Four, Ten, check_alike, no_second_derivative, pointers, threaded
from cru.native.paired import native_paired, sizes_of


def smooth_paired(prior: Belief, posterior: Belief, hops: Hop) -> Belief:
    """As `cru.functional.paired_scan.smooth_paired`, many times faster. Call `paired_available` first."""
    like = hops.cos
    means = (*like.shape[:2], 2 * like.shape[2])
    for belief in (prior, posterior):
        check_alike(like, {"mean": (belief.mean, means)})
        check_alike(like, {name: (getattr(belief, name), like.shape) for name in ("upper", "lower", "side")})
    check_alike(like, {name: (value, like.shape) for name, value in hops._asdict().items()})
    inputs = (*prior[:4], *posterior[:4], *hops[:4])
    found = _smooth(*(tensor.contiguous() for tensor in inputs))
    return Belief(*found)._replace(time=posterior.time)


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
    inputs = [prior_mean, prior_upper, prior_lower, prior_side, mean, upper, lower, side]
    inputs += [cos, sin, noise_upper, noise_lower]
    outputs = [torch.empty_like(tensor) for tensor in inputs[:4]]
    call, sizes = native_paired(cos).cru_smooth, sizes_of(cos)
    given, results = pointers(inputs), pointers(outputs)
    threaded(cos.shape[0], lambda first, last: call(0, sizes, given, results, first, last))
    return cast(Four, tuple(outputs))


@_smooth.register_fake
def _(*inputs: Tensor) -> Four:
    return cast(Four, tuple(torch.empty_like(tensor) for tensor in inputs[:4]))


@torch.library.custom_op("cru::paired_smooth_backward", mutates_args=())
def _smooth_backward(inputs: list[Tensor], saved: list[Tensor]) -> Ten:
    grads = [torch.empty_like(tensor) for tensor in inputs[:10]]
    call, sizes = native_paired(inputs[8]).cru_smooth_backward, sizes_of(inputs[8])
    given, kept, results = pointers(inputs), pointers(saved), pointers(grads)
    threaded(inputs[8].shape[0], lambda first, last: call(0, sizes, given, kept, results, first, last))
    return cast(Ten, tuple(grads))


@_smooth_backward.register_fake
def _(inputs: list[Tensor], saved: list[Tensor]) -> Ten:
    return cast(Ten, tuple(torch.empty_like(tensor) for tensor in inputs[:10]))


_smooth_backward.register_autograd(no_second_derivative)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    given = [grad.contiguous() for grad in grads]
    return (*torch.ops.cru.paired_smooth_backward(list(ctx.saved_tensors), given), None, None)


_smooth.register_autograd(_backward, setup_context=_setup)
