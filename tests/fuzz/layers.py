"""Random layers and series against float64, inside and at the edges of the promised range, forward and backward.

Gaps 0 to 1e15, repeated times, observation variances 1e-12 to 1e12, fresh, perturbed and trained parameters, in PyTorch
and compiled. Beliefs and gradients must be finite, variances positive, covariances positive semi-definite. Where
float32 can hold the beliefs at all, they must also be close to those of float64.
"""

import copy
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import cru
from cru import native
from cru.functional import Belief, FilterResult, bounds, clamp_belief
from cru.layers import KalmanLayer

LAYERS = (cru.CRU, cru.FastCRU, cru.RKN, cru.PairedCRU)
BATCH = 8
CLOSE = 1e-3
"""What float32 promises. See `deviations`."""
ROUNDING = 2.0**-22
"""A few units in the last place of float32."""


class Problem(NamedTuple):
    """A layer in float32 and what its filter takes."""

    layer: KalmanLayer
    y: Tensor
    y_var: Tensor
    times: Tensor
    mask: Tensor


@contextmanager
def path(compiled: bool) -> Iterator[None]:
    """Compute with or without compiled code."""
    before = os.environ.get("CRU_NATIVE")
    os.environ["CRU_NATIVE"] = "1" if compiled else "0"
    try:
        yield
    finally:
        os.environ.pop("CRU_NATIVE")
        if before is not None:
            os.environ["CRU_NATIVE"] = before


def make_problem(seed: int) -> Problem:
    """The same problem for the same number."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    obs, steps = int(rng.integers(1, 7)), int(rng.integers(2, 10))
    layer = LAYERS[seed % len(LAYERS)](2, 2 * obs)
    state = rng.choice(["fresh", "perturbed", "trained"])
    if state != "fresh":
        perturb(layer, 10 ** rng.uniform(-2.5, -0.5))
    if state == "trained":
        train(layer)
    longest = rng.uniform(0, 15) if rng.random() < 0.5 else rng.uniform(-1, 1)
    gap = torch.as_tensor(10 ** rng.uniform(longest - 3, longest, (BATCH, steps)))
    times = torch.where(torch.as_tensor(rng.random((BATCH, steps)) < 0.2), 0.0, gap).cumsum(1)
    low, high = np.sort(rng.uniform(-12, 12, 2))
    y_var = torch.as_tensor(10 ** rng.uniform(low, high, (BATCH, steps, obs))).float()
    y = torch.randn(BATCH, steps, obs) * float(10 ** rng.uniform(-2, 2))
    return Problem(layer, y, y_var, times, torch.as_tensor(rng.random((BATCH, steps, obs)) < 0.8))


@torch.no_grad()
def perturb(layer: KalmanLayer, size: float) -> None:
    for parameter in layer.parameters():
        parameter.add_(size * torch.randn_like(parameter))


def train(layer: KalmanLayer) -> None:
    """Ten steps on noise: far enough from the start."""
    x, times = torch.randn(4, 12, 2), (3 * torch.rand(4, 12)).cumsum(1)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(10):
        optimizer.zero_grad()
        output, state = layer(x, times)
        (output[..., :2] - x).square().mean().add(state.upper.log().mean()).backward()
        optimizer.step()


def filtered(problem: Problem, dtype: torch.dtype, compiled: bool) -> tuple[FilterResult, list[Tensor]]:
    """The result, and the gradients of every input and parameter."""
    layer = copy.deepcopy(problem.layer).to(dtype)
    y, y_var = (part.detach().to(dtype).requires_grad_() for part in (problem.y, problem.y_var))
    with path(compiled):
        result = layer.filter(y, y_var, problem.times, problem.mask)
        loss = result.posterior.mean.mean() + result.posterior.upper.mean() + result.prior.lower.mean()
        loss.backward()
    return result, [part.grad for part in (y, y_var, *layer.parameters()) if part.grad is not None]


@torch.no_grad()
def with_rounded_states(problem: Problem) -> FilterResult:
    """Float64, but beliefs carry the rounding of float32 after predict and update: what a filter in float32 can do."""
    layer, steps, state = copy.deepcopy(problem.layer).double(), [], None
    parts = (problem.y.double(), problem.y_var.double(), problem.times, problem.mask)
    for t in range(problem.y.shape[1]):
        if state is not None:
            gap = problem.times[:, t] - problem.times[:, t - 1]
            later = rounded(layer.propagate(state, gap), turned=isinstance(layer, cru.FastCRU))
            same = (gap == 0)[:, None]
            fields = zip(state[:4], later[:4], strict=True)
            state = Belief(*(torch.where(same, a, b) for a, b in fields), problem.times[:, t])
        steps.append(layer.filter(*(part[:, t : t + 1] for part in parts), state=state))
        state = rounded(steps[-1].posterior.at(-1), turned=False)
    beliefs = [
        Belief(*(torch.cat(field, 1) for field in zip(*(getattr(step, name)[:4] for step in steps), strict=True)))
        for name in ("prior", "posterior")
    ]
    return FilterResult(*beliefs, problem.y_var.double())


def rounded(belief: Belief, turned: bool) -> Belief:
    """The rounding of float32: of each number, or, after the turns of an f-CRU into its eigenbasis, of the largest."""
    largest = torch.cat([belief.upper, belief.lower], -1).amax(-1, keepdim=True)
    largest = (belief.mean.abs().amax(-1, keepdim=True), largest, largest, largest)
    sizes = (most.expand_as(field) if turned else field for field, most in zip(belief[:4], largest, strict=True))
    moved = (f + ROUNDING * size * torch.randn_like(f) for f, size in zip(belief[:4], sizes, strict=True))
    return clamp_belief(Belief(*moved, belief.time))


def deviations(found: FilterResult, exact: FilterResult) -> Tensor:
    """The largest deviation of each series: (batch,).

    A mean counts relative to the largest mean of its series, or to its own standard deviation where that is larger. A
    variance counts relative to the largest of its field, and the side as a correlation.
    """
    worst = []
    for a, b in zip(found[:2], exact[:2], strict=True):
        a, b = (Belief(*(field.detach().double() for field in belief[:4])) for belief in (a, b))
        largest = (x.abs().flatten(1).amax(1)[:, None, None] for x in b[:3])
        mean, upper, lower = largest
        scales = (
            torch.maximum(mean, torch.cat([b.upper, b.lower], -1).sqrt()),
            upper,
            lower,
            (b.upper * b.lower).sqrt(),
        )
        worst += [((x - y).abs() / scale).flatten(1).amax(1) for x, y, scale in zip(a[:4], b[:4], scales, strict=True)]
    return torch.stack(worst).amax(0)


def free(exact: FilterResult) -> Tensor:
    """The series whose float64 beliefs are far from the bounds of float32."""
    bound = bounds(torch.float32)
    means, variances = (
        torch.cat([torch.cat([getattr(b, n).flatten(1) for n in names], 1) for b in (exact.prior, exact.posterior)], 1)
        for names in (("mean",), ("upper", "lower"))
    )
    return (means.abs().amax(1) < 1e-3 * bound.mean) & (variances.amax(1) < 1e-3 * bound.variance)


def check(problem: Problem) -> tuple[list[str], int]:
    """What is wrong, in words, and how many series could be compared with float64."""
    wrong = []
    compiler = native.compiler() is not None
    exact, _ = filtered(problem, torch.float64, compiler)
    rounding = torch.stack([deviations(with_rounded_states(problem), exact) for _ in range(3)]).amax(0)
    comparable = free(exact) & (rounding < CLOSE / 10)
    for dtype in (torch.float32, torch.float64):
        for compiled in (False, True)[: 1 + compiler]:
            name = f"{'compiled' if compiled else 'PyTorch'} {str(dtype).removeprefix('torch.')}"
            result, gradients = filtered(problem, dtype, compiled)
            for part in (result.prior, result.posterior):
                if not all(torch.isfinite(field).all() for field in part[:4]):
                    wrong.append(f"{name}: a belief is not finite")
                if not torch.all(part.upper * part.lower >= part.side.square()):
                    wrong.append(f"{name}: a covariance is not positive semi-definite")
            if not (torch.all(result.prior.upper > 0) and torch.all(result.prior.lower > 0)):
                wrong.append(f"{name}: a prior variance is not positive")
            if not all(torch.isfinite(gradient).all() for gradient in gradients):
                wrong.append(f"{name}: a gradient is not finite")
            worst = deviations(result, exact)[comparable]
            if len(worst) and not worst.max() < CLOSE:
                wrong.append(f"{name}: differs from float64 by {worst.max():.2g}")
    return wrong, int(comparable.sum())


def run(minutes: float, seed: int) -> int:
    """Check random problems for ``minutes``; print and count the failures."""
    end, number, compared, failures = time.monotonic() + 60 * minutes, 0, 0, 0
    while number == 0 or time.monotonic() < end:
        problem = make_problem(seed + number)
        wrong, count = check(problem)
        for message in wrong:
            print(f"layers, seed {seed + number}, {type(problem.layer).__name__}: {message}", flush=True)
        number, compared, failures = number + 1, compared + count, failures + len(wrong)
    share = f"{compared} of {number * BATCH} series compared with float64"
    print(f"layers: {number} problems, {share}, {failures} failures", flush=True)
    return failures
