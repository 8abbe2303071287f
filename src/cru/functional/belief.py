"""The latent Gaussian that every filter of the library carries, and the bounds that keep it finite."""

from typing import NamedTuple

import torch
from torch import Tensor

from cru.shapes import Float


class Belief(NamedTuple):
    """A Gaussian over the latent state z = (upper part, lower part), of size M = 2 D, at a time.

    The covariance is factorised as in appendix B: only the diagonals of its four D × D blocks are kept,

        Σ = [[diag(upper), diag(side)], [diag(side), diag(lower)]].
    """

    mean: Float[Tensor, "*batch state"]
    upper: Float[Tensor, "*batch obs"]
    lower: Float[Tensor, "*batch obs"]
    side: Float[Tensor, "*batch obs"]
    time: Tensor | None = None

    def at(self, step: int) -> "Belief":
        """The belief at one step of a belief over (batch, time): a copy, which keeps no whole series alive."""
        return Belief(*(None if field is None else field[:, step].clone() for field in self))  # type: ignore[arg-type]

    def detach(self) -> "Belief":
        """The same numbers, cut from the graph: for truncated back-propagation and for streams."""
        return Belief(*(None if field is None else field.detach() for field in self))  # type: ignore[arg-type]

    def to(self, device: torch.device | str) -> "Belief":
        """On another device."""
        return Belief(*(None if field is None else field.to(device) for field in self))  # type: ignore[arg-type]


torch.serialization.add_safe_globals([Belief])  # so that `torch.load` reads back what `torch.save` wrote


class Gain(NamedTuple):
    """The Kalman gain as the two diagonals of appendix B: how much the update trusts the observation."""

    upper: Float[Tensor, "*batch obs"]
    lower: Float[Tensor, "*batch obs"]


class Bounds(NamedTuple):
    """Where a belief is held instead of overflowing. See `docs/layers.md`, "Never a NaN"."""

    mean: float
    variance: float
    transition: float
    gradient: float


_BOUNDS = {
    torch.float32: Bounds(mean=1e18, variance=1e15, transition=1e8, gradient=1e15),
    torch.float64: Bounds(mean=1e150, variance=1e130, transition=1e70, gradient=1e100),
}


def bounds(dtype: torch.dtype) -> Bounds:
    """The bounds of a floating type.

    They are as large as they can be while Φ Σ Φᵀ, the largest product of a step, stays finite for M up to 1 000.
    """
    return _BOUNDS[dtype]


def _quiet(grad: Tensor, inside: Tensor) -> Tensor:
    """A gradient that is finite, and zero where a bound holds."""
    limit = bounds(grad.dtype).gradient
    return torch.where(inside, grad, 0.0).nan_to_num(0.0, limit, -limit).clamp(-limit, limit)


class _Clamp(torch.autograd.Function):
    """Clamp both ways: the value going forward, the gradient going backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value, low, high):  # type: ignore[no-untyped-def]
        return value.clamp(low, high)

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        inside = inputs[0] == output
        ctx.save_for_backward(inside)
        ctx.save_for_forward(inside)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return _quiet(grad, *ctx.saved_tensors), None, None

    @staticmethod
    def jvp(ctx, tangent, low, high):  # type: ignore[no-untyped-def]
        return _quiet(tangent, *ctx.saved_tensors)


class _FiniteGradient(torch.autograd.Function):
    """`finite_gradient`: the identity going forward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value):  # type: ignore[no-untyped-def]
        return value.clone()  # a view would ask for a view of the tangent

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        pass

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        limit = bounds(grad.dtype).gradient
        return grad.nan_to_num(0.0, limit, -limit).clamp(-limit, limit)

    jvp = backward


class _ClampBelief(torch.autograd.Function):
    """`clamp_belief`, in one piece: it stands in every step."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mean, upper, lower, side):  # type: ignore[no-untyped-def]
        bound = bounds(mean.dtype)
        upper, lower = upper.clamp(0.0, bound.variance), lower.clamp(0.0, bound.variance)
        limit = upper.sqrt() * lower.sqrt() * (1 - 8 * torch.finfo(upper.dtype).eps)
        return mean.clamp(-bound.mean, bound.mean), upper, lower, torch.minimum(torch.maximum(side, -limit), limit)

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        free = [before == after for before, after in zip(inputs, output, strict=True)]
        ctx.save_for_backward(*free)
        ctx.save_for_forward(*free)

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[no-untyped-def]
        return tuple(_quiet(grad, free) for grad, free in zip(grads, ctx.saved_tensors, strict=True))

    jvp = backward  # a clamp is its own transpose


class _ClampNoise(torch.autograd.Function):
    """`clamp_noise`, in one piece: it stands in every doubling."""

    generate_vmap_rule = True

    @staticmethod
    def forward(noise, least):  # type: ignore[no-untyped-def]
        limit = bounds(noise.dtype).variance
        variance = noise.diagonal(dim1=-2, dim2=-1)
        scale = (limit / variance.clamp_min(limit)).sqrt()
        kept = (least + (variance - least).abs()).clamp_max(limit)
        root = kept.sqrt()
        most = root[..., :, None] * root[..., None, :]  # no correlation above 1
        scaled = (noise * (scale[..., :, None] * scale[..., None, :])).clamp(-most, most)
        scaled.diagonal(dim1=-2, dim2=-1).copy_(kept)
        return scaled

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        free = output.diagonal(dim1=-2, dim2=-1) < bounds(output.dtype).variance
        ctx.save_for_backward(free)
        ctx.save_for_forward(free)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (free,) = ctx.saved_tensors
        return _quiet(grad, free[..., :, None] & free[..., None, :]), None

    @staticmethod
    def jvp(ctx, tangent, _):  # type: ignore[no-untyped-def]
        (free,) = ctx.saved_tensors
        return _quiet(tangent, free[..., :, None] & free[..., None, :])


def clamp(value: Float[Tensor, "*any"], low: float, high: float) -> Float[Tensor, "*any"]:
    """``value`` within [low, high]; gradients are finite, and zero where the bound holds."""
    if not (value.requires_grad and torch.is_grad_enabled()):
        return value.clamp(low, high)
    return _Clamp.apply(value, low, high)  # type: ignore[no-any-return, no-untyped-call]


def finite_gradient(value: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """``value`` itself; its gradient is finite, within the bound of the type, and zero where it would be NaN."""
    if torch.compiler.is_compiling() or not (value.requires_grad and torch.is_grad_enabled()):
        return value  # `torch.compile` cannot trace a function with a derivative in forward mode
    return _FiniteGradient.apply(value)  # type: ignore[no-any-return, no-untyped-call]


def finite_gradients(belief: Belief) -> Belief:
    """`finite_gradient` of every field but the time."""
    return Belief(*map(finite_gradient, belief[:4]))._replace(time=belief.time)


def clamp_noise(
    noise: Float[Tensor, "*batch state state"], least: Float[Tensor, "*batch state"]
) -> Float[Tensor, "*batch state state"]:
    """A noise covariance within the bounds, and still positive semi-definite.

    Where a variance exceeds the bound, its row and its column shrink together: Q ← D Q D with D diagonal. To clamp each
    entry by itself would make Q indefinite, and a later product Φ Q Φᵀ negative. No variance falls below ``least``: a
    value below it is rounding, and the size of that rounding counts as variance. A held variance passes no gradient.
    """
    return _ClampNoise.apply(noise, least.detach())  # type: ignore[no-any-return, no-untyped-call]


def clamp_belief(belief: Belief) -> Belief:
    """The nearest representable belief: finite, variances not negative, every 2×2 block positive semi-definite.

    Rounding alone can make side² exceed upper · lower when the two parts are fully correlated, so |side| is held at
    sqrt(upper · lower), less a few units in the last place. No gradient passes where a bound holds.
    """
    return Belief(*_ClampBelief.apply(*belief[:4]))._replace(time=belief.time)  # type: ignore[no-untyped-call]


def covariance(belief: Belief) -> Float[Tensor, "*batch state state"]:
    """The M×M covariance that the three vectors stand for."""
    upper, lower, side = (torch.diag_embed(v) for v in (belief.upper, belief.lower, belief.side))
    return torch.cat([torch.cat([upper, side], -1), torch.cat([side, lower], -1)], -2)


def keep_block_diagonals(
    mean: Float[Tensor, "*batch state"], cov: Float[Tensor, "*batch state state"], time: Tensor | None = None
) -> Belief:
    """Keep the diagonals of the four blocks of an M×M covariance, drop the rest (appendix B)."""
    obs = mean.shape[-1] // 2
    diagonal = cov.diagonal(dim1=-2, dim2=-1)
    side = cov[..., :obs, obs:].diagonal(dim1=-2, dim2=-1)
    return Belief(mean, diagonal[..., :obs], diagonal[..., obs:], side, time)
