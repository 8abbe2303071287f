"""What several tests share: random problems, relative differences, gradients."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import cru
from cru.functional import (
    Belief,
    Coefficients,
    DiscreteTransition,
    EigenTransition,
    ExpmTransition,
    Transition,
)

KINDS = ("expm", "eigen", "discrete", "discrete-timed")
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
GRADIENT_TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-3}


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest deviation, relative to the largest entry."""
    found, expected = found.detach(), expected.detach()
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    return float((found - expected).abs().max()) / scale if scale > 0 else float(found.abs().max())


def random_belief(batch: int, obs: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Belief:
    mean = torch.randn(batch, 2 * obs, generator=generator, dtype=dtype)
    upper, lower = (0.1 + torch.rand(batch, obs, generator=generator, dtype=dtype) for _ in range(2))
    correlation = 1.8 * torch.rand(batch, obs, generator=generator, dtype=dtype) - 0.9
    return Belief(mean, upper, lower, correlation * (upper * lower).sqrt())


def random_transition(
    kind: str, obs: int, basis: int, generator: torch.Generator, size: float = 1.0, dtype: torch.dtype = torch.float64
) -> Transition:
    """A transition with ‖A‖ about ``size``; every tensor is a leaf that wants a gradient."""

    def leaf(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()

    state = 2 * obs
    inputs = state + 1 if kind == "discrete-timed" else state
    coefficients = Coefficients(leaf(basis, inputs, scale=0.5), leaf(basis))
    noise = (0.05 + 0.2 * torch.rand(state, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()
    if kind == "eigen":
        vectors = torch.linalg.qr(torch.randn(state, state, generator=generator, dtype=torch.float64))[0]
        return EigenTransition(
            coefficients, leaf(basis, state, scale=size / 2), vectors.to(dtype).requires_grad_(), noise
        )
    matrices = leaf(basis, state, state, scale=size / state**0.5)
    return (ExpmTransition if kind == "expm" else DiscreteTransition)(coefficients, matrices, noise)


def random_problem(
    kind: str, batch: int, time: int, obs: int, *, seed: int = 0, size: float = 0.7, dtype: torch.dtype = torch.float64
) -> tuple[Transition, Belief, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Everything that `filter_sequence` takes, with missing entries, equal times, and gaps of all lengths up to 3."""
    generator = torch.Generator().manual_seed(seed)
    transition = random_transition(kind, obs, 4, generator, size, dtype)
    start = Belief(*(field.to(dtype).requires_grad_() for field in random_belief(batch, obs, generator)[:4]))
    y = torch.randn(batch, time, obs, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    y_var = (0.05 + torch.rand(batch, time, obs, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()
    mask = torch.rand(batch, time, obs, generator=generator) < 0.7
    delta = (3 * torch.rand(batch, time, generator=generator, dtype=torch.float64) ** 2).to(dtype)
    delta[torch.rand(batch, time, generator=generator) < 0.1] = 0
    stepped = delta != 0 if kind == "expm" else torch.ones_like(delta, dtype=torch.bool)
    stepped[:, 0] = False
    return transition, start, y, y_var, mask, delta, stepped


def leaves(problem: tuple) -> list[Tensor]:
    transition, start, y, y_var, *_ = problem
    flat = [*transition.coefficients, *(field for field in transition[1:])]
    return [*flat, *start[:4], y, y_var]


def loss_of(prior: Belief, posterior: Belief) -> Tensor:
    """A number that every output enters with a weight of its own."""
    fields = (*prior[:4], *posterior[:4])
    return sum((i + 1.0) * (field**2).sum() + 0.3 * field.sum() for i, field in enumerate(fields))


def outputs_and_gradients(
    run: Callable[..., tuple[Belief, Belief]], problem: tuple
) -> tuple[list[Tensor], list[Tensor]]:
    prior, posterior = run(*problem)
    wanted = leaves(problem)
    gradients = torch.autograd.grad(loss_of(prior, posterior), wanted, allow_unused=True)
    filled = [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(gradients, wanted, strict=True)]
    return [*prior[:4], *posterior[:4]], filled


def least_noise_variance(A: Tensor, noise: Tensor, delta: Tensor, largest: float) -> Tensor:
    """A lower bound of diag(Q), Q = ∫₀^Δ exp(As) diag(q) exp(As)ᵀ ds, (batch, state), or ``largest``; in float64.

    Gauss-Legendre over panels of ‖A‖ h = 1/2. Every term is a square, so that nothing cancels. At most 160 panels: the
    noise grows with the gap, so that the noise over a part of the gap is a lower bound, too.
    """
    A, noise, delta = A.double(), noise.double(), delta.double()
    nodes, weights = (torch.as_tensor(part) for part in np.polynomial.legendre.leggauss(8))
    step = torch.minimum(delta, 0.5 / torch.linalg.matrix_norm(A))
    count = (delta / step.clamp_min(1e-300)).floor().clamp(0, 160)
    inner = [torch.matrix_exp(A * (step * (node + 1) / 2)[:, None, None]) for node in nodes]
    panel, whole = torch.matrix_exp(A * step[:, None, None]), torch.eye(A.shape[-1], dtype=A.dtype).expand_as(A)
    total = torch.zeros(A.shape[:2], dtype=A.dtype)
    for k in range(int(count.max())):
        added = sum(w / 2 * ((phi @ whole).square() @ noise) for w, phi in zip(weights, inner, strict=True))
        total = torch.where((k < count)[:, None], total + step[:, None] * added, total).clamp_max(largest)
        whole = (panel @ whole).clamp(-1e100, 1e100)
    return total


def calls_of(step) -> dict[str, set[str]]:
    """The functions of this package that a step calls, by file."""
    root, found = f"{Path(cru.__file__).parent}/", {}

    def hook(frame, event, _) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            found.setdefault(code.co_filename.removeprefix(root), set()).add(code.co_name)

    sys.setprofile(hook)
    try:
        step()
    finally:
        sys.setprofile(None)
    return found
