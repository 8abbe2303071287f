"""The Gaussian belief over the latent state, and the bounds that keep it finite."""

from typing import NamedTuple

import torch
from torch import Tensor

from cru.shapes import Float


class Belief(NamedTuple):
    """A Gaussian over the latent state z = (upper part, lower part) of size M = 2 D, at one time.

    The covariance is factorised as in appendix B. Only the diagonals of its four D × D blocks are stored:

        Σ = [[diag(upper), diag(side)], [diag(side), diag(lower)]].
    """

    mean: Float[Tensor, "*batch state"]
    upper: Float[Tensor, "*batch obs"]
    lower: Float[Tensor, "*batch obs"]
    side: Float[Tensor, "*batch obs"]
    time: Tensor | None = None

    def at(self, step: int) -> "Belief":
        """Copy one step of a belief over (batch, time). The copy does not hold the complete series in memory."""
        return Belief(*(None if field is None else field[:, step].clone() for field in self))  # type: ignore[arg-type]

    def detach(self) -> "Belief":
        """Detach from the graph, for truncated back-propagation and for streaming."""
        return Belief(*(None if field is None else field.detach() for field in self))  # type: ignore[arg-type]

    def to(self, device: torch.device | str) -> "Belief":
        """Copy the belief to another device."""
        return Belief(*(None if field is None else field.to(device) for field in self))  # type: ignore[arg-type]


torch.serialization.add_safe_globals([Belief])  # so that `torch.load` can read a saved belief


class Gain(NamedTuple):
    """The Kalman gain as the two diagonals of appendix B: the weight of the observation in the update."""

    upper: Float[Tensor, "*batch obs"]
    lower: Float[Tensor, "*batch obs"]


class Bounds(NamedTuple):
    """The largest magnitudes of a belief. Larger values are clamped, so that nothing overflows.

    `docs/reference/layers.md` lists them.
    """

    mean: float
    variance: float
    transition: float
    gradient: float


_BOUNDS = {
    torch.float32: Bounds(mean=1e18, variance=1e15, transition=1e8, gradient=1e15),
    torch.float64: Bounds(mean=1e150, variance=1e130, transition=1e70, gradient=1e100),
}


def bounds(dtype: torch.dtype) -> Bounds:
    """Return the bounds of a floating type.

    They are the largest values for which Φ Σ Φᵀ, the largest product of a step, stays finite for M up to 1 000.
    """
    return _BOUNDS[dtype]


def side_slack(dtype: torch.dtype) -> float:
    """Return the factor, a few units in the last place below 1, that keeps |side| below sqrt(upper · lower)."""
    return 1 - 8 * torch.finfo(dtype).eps


def _finite_inside(grad: Tensor, inside: Tensor) -> Tensor:
    """Make a gradient finite, and zero where the value is outside its bounds."""
    limit = bounds(grad.dtype).gradient
    return torch.where(inside, grad, 0.0).nan_to_num(0.0, limit, -limit).clamp(-limit, limit)


class _Clamp(torch.autograd.Function):
    """Clamp the value in the forward pass and the gradient in the backward pass."""

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
        return _finite_inside(grad, *ctx.saved_tensors), None, None

    @staticmethod
    def jvp(ctx, tangent, low, high):  # type: ignore[no-untyped-def]
        return _finite_inside(tangent, *ctx.saved_tensors)


class _FiniteGradient(torch.autograd.Function):
    """The identity in the forward pass. See `finite_gradient`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value):  # type: ignore[no-untyped-def]
        return value.clone()  # forward-mode differentiation of a view needs a view of the tangent

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        pass

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        limit = bounds(grad.dtype).gradient
        return grad.nan_to_num(0.0, limit, -limit).clamp(-limit, limit)

    jvp = backward


class _ClampBelief(torch.autograd.Function):
    """`clamp_belief` as one autograd function, because it runs in every step."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mean, upper, lower, side):  # type: ignore[no-untyped-def]
        bound = bounds(mean.dtype)
        upper, lower = upper.clamp(0.0, bound.variance), lower.clamp(0.0, bound.variance)
        limit = upper.sqrt() * lower.sqrt() * side_slack(upper.dtype)
        return mean.clamp(-bound.mean, bound.mean), upper, lower, torch.minimum(torch.maximum(side, -limit), limit)

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        free = [before == after for before, after in zip(inputs, output, strict=True)]
        ctx.save_for_backward(*free)
        ctx.save_for_forward(*free)

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[no-untyped-def]
        return tuple(_finite_inside(grad, free) for grad, free in zip(grads, ctx.saved_tensors, strict=True))

    jvp = backward  # a clamp is its own transpose


class _ClampNoise(torch.autograd.Function):
    """`clamp_noise` as one autograd function, because it runs in every doubling."""

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
        return _finite_inside(grad, free[..., :, None] & free[..., None, :]), None

    @staticmethod
    def jvp(ctx, tangent, _):  # type: ignore[no-untyped-def]
        (free,) = ctx.saved_tensors
        return _finite_inside(tangent, free[..., :, None] & free[..., None, :])


def clamp(value: Float[Tensor, "*any"], low: float, high: float) -> Float[Tensor, "*any"]:
    """Clamp ``value`` to [low, high]. Gradients are finite, and zero for a value outside."""
    if not (value.requires_grad and torch.is_grad_enabled()):
        return value.clamp(low, high)
    return _Clamp.apply(value, low, high)  # type: ignore[no-any-return, no-untyped-call]


def transformed() -> bool:
    """Return whether `torch.func` or a forward-mode derivative is active. Custom gradients support neither."""
    functions = torch._C._are_functorch_transforms_active
    return not torch.compiler.is_compiling() and (functions() or torch.autograd.forward_ad._current_level >= 0)


def finite_gradient(value: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Return ``value`` with a finite gradient: within the bound of its type, and zero where it would be NaN."""
    if torch.compiler.is_compiling() or not (value.requires_grad and torch.is_grad_enabled()):
        return value  # `torch.compile` cannot trace a function that defines a forward-mode derivative
    return _FiniteGradient.apply(value)  # type: ignore[no-any-return, no-untyped-call]


def finite_gradients(belief: Belief) -> Belief:
    """Apply `finite_gradient` to every field except the time."""
    return Belief(*map(finite_gradient, belief[:4]))._replace(time=belief.time)


def clamp_noise(
    noise: Float[Tensor, "*batch state state"], least: Float[Tensor, "*batch state"]
) -> Float[Tensor, "*batch state state"]:
    """Clamp a noise covariance to the bounds, so that it stays positive semi-definite.

    Where a variance exceeds the bound, its row and its column are scaled: Q ← D Q D with D diagonal. A separate clamp
    of each entry could make Q indefinite, and Φ Q Φᵀ negative. A variance below ``least`` is a rounding error. Its
    distance from ``least`` is added to ``least``. A variance at the bound has no gradient.
    """
    return _ClampNoise.apply(noise, least.detach())  # type: ignore[no-any-return, no-untyped-call]


def clamp_belief(belief: Belief) -> Belief:
    """Clamp a belief, so that it is finite, with variances >= 0 and positive semi-definite 2×2 blocks.

    Rounding alone can make side² exceed upper · lower when the two parts are fully correlated. Therefore |side| is at
    most sqrt(upper · lower), minus a few units in the last place. A clamped entry has no gradient.
    """
    return Belief(*_ClampBelief.apply(*belief[:4]))._replace(time=belief.time)  # type: ignore[no-untyped-call]


def covariance(belief: Belief) -> Float[Tensor, "*batch state state"]:
    """Build the M×M covariance from its three diagonals."""
    upper, lower, side = (torch.diag_embed(v) for v in (belief.upper, belief.lower, belief.side))
    return torch.cat([torch.cat([upper, side], -1), torch.cat([side, lower], -1)], -2)


def keep_block_diagonals(
    mean: Float[Tensor, "*batch state"], cov: Float[Tensor, "*batch state state"], time: Tensor | None = None
) -> Belief:
    """Make a belief from the diagonals of the four blocks of an M×M covariance, without its rest (appendix B).

    Args:
        mean: the mean.
        cov: the covariance.
        time: the time of the belief.
    """
    obs = mean.shape[-1] // 2
    diagonal = cov.diagonal(dim1=-2, dim2=-1)
    side = cov[..., :obs, obs:].diagonal(dim1=-2, dim2=-1)
    return Belief(mean, diagonal[..., :obs], diagonal[..., obs:], side, time)
