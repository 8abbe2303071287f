"""A prior variance is never below what the process noise alone gives over the gap, up to rounding and the bounds."""

import copy

import numpy as np
import pytest
import torch
from scipy.integrate import quad_vec
from scipy.linalg import expm
from torch import Tensor

import cru
from cru import native
from cru.functional import Belief, bounds, filter_sequence_reference, gaps
from cru.functional.belief import clamp_noise
from cru.functional.paired import filter_paired
from cru.layers import KalmanLayer
from tests.helpers import least_noise_variance

LAYERS = {"cru": cru.CRU, "f-cru": cru.FastCRU, "rkn": cru.RKN, "paired": cru.PairedCRU}
GAPS = (1e-3, 0.3, 5.0, 40.0, 100.0, 1e3, 1e4, 1e6)
COMPILED = pytest.param("compiled", marks=pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler"))


def perturbed(kind: str, seed: int, dtype: torch.dtype, size: float = 0.1) -> KalmanLayer:
    """A layer away from its initial values."""
    torch.manual_seed(seed)
    layer = LAYERS[kind](1, 6)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(size * torch.randn_like(parameter))
    return layer.to(dtype)


def dynamics(layer: KalmanLayer, before: Belief, delta: Tensor) -> tuple[Tensor, Tensor]:
    """A (batch, state, state) and q at a belief, in float64."""
    exact = copy.deepcopy(layer).double()
    before = Belief(*(field.double() for field in before[:4]))
    if isinstance(exact, cru.PairedCRU):
        rotation, damping = torch.diag(exact.frequency), torch.diag(-exact.decay)
        A = torch.cat([torch.cat([damping, rotation], 1), torch.cat([-rotation, damping], 1)])
        return A.expand(len(delta), -1, -1), exact.noise
    transition = exact.transition()
    if isinstance(exact, cru.FastCRU):
        E = transition.eigenvectors
        return E @ torch.diag_embed(transition.spectrum(before, delta.double())) @ E.mT, exact.noise
    return transition.matrix(before, delta.double()), exact.noise


def least_prior(layer: KalmanLayer, before: Belief, delta: Tensor) -> Tensor:
    """What the noise alone gives over the gap, (batch, state). The RKN adds its noise once a step."""
    if isinstance(layer, cru.RKN):
        return layer.noise.double().expand(len(delta), -1)
    A, noise = dynamics(layer, before, delta)
    return least_noise_variance(A, noise, delta, bounds(layer.dtype).variance)


def check(layer: KalmanLayer, prior: Belief, before: Belief, delta: Tensor, slack: float = 1e-3) -> None:
    found = torch.cat([prior.upper, prior.lower], -1).double()
    least = least_prior(layer, before, delta)
    rounding = 1e3 * torch.finfo(layer.dtype).eps * found.amax(-1, keepdim=True)
    assert torch.all(found > 0)
    assert torch.all(found >= (1 - slack) * least - rounding), (found / least).min()


@torch.no_grad()
@pytest.mark.parametrize("path", ["torch", COMPILED])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", LAYERS)
def test_prior_variances_are_at_least_the_noise(
    kind: str, dtype: torch.dtype, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRU_NATIVE", "1" if path == "compiled" else "0")
    for seed in range(20):
        layer = perturbed(kind, seed, dtype)
        times = torch.tensor([[0.0, gap, 2 * gap] for gap in GAPS], dtype=torch.float64)
        y = torch.randn(len(GAPS), 3, 3, dtype=dtype)
        result = layer.filter(y, torch.full_like(y, 0.1), times)
        delta = gaps(times, None, 1.0, dtype)
        for step in (1, 2):
            prior = result.prior.at(step)
            assert torch.all(prior.upper > 0) and torch.all(prior.lower > 0)
            before = result.posterior.at(step - 1)
            known = before.mean.abs().amax(-1) < 1e3  # the weights of the bases do not hang on rounding
            parts = (Belief(*(field[known] for field in part[:4])) for part in (prior, before))
            if known.any():
                check(layer, *parts, delta[known, step])


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", LAYERS)
def test_the_reference_gives_the_noise_at_least(kind: str, dtype: torch.dtype) -> None:
    """exp(-AᵀΔ) of the paper's block has no digits left where ‖A Δ‖ is large: bases that fit the gap.

    The block also holds q Δ, so that in float32 its exponential has two digits where q Δ is 1e5.
    """
    for gap in GAPS:
        layer = perturbed(kind, 0, dtype)
        y, delta = torch.randn(2, 2, 3, dtype=dtype), torch.tensor([[0.0, gap]] * 2, dtype=dtype)
        start, mask = layer.initial(2), torch.ones(2, 2, 3, dtype=torch.bool)
        if isinstance(layer, cru.PairedCRU):
            prior, posterior = filter_paired(start, y, torch.full_like(y, 0.1), mask, layer._transitions(delta))
        else:
            if not isinstance(layer, cru.RKN):
                bases = layer.eigenvalues if isinstance(layer, cru.FastCRU) else layer.basis.values
                bases.mul_(1 / gap)
            prior, posterior = filter_sequence_reference(
                layer.transition(), start, y, torch.full_like(y, 0.1), mask, delta
            )
        check(layer, prior.at(1), posterior.at(0), delta[:, 1], slack=1e-2 if dtype == torch.float32 else 1e-3)


@torch.no_grad()
@pytest.mark.parametrize("path", ["torch", COMPILED])
def test_an_observation_after_a_long_gap_is_not_ignored(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRU_NATIVE", "1" if path == "compiled" else "0")
    for seed in range(30):
        layer = perturbed("cru", seed, torch.float32)
        y, times = torch.randn(1, 3, 3), torch.tensor([0.0, 1e3, 2e3])
        result = layer.filter(y, torch.full_like(y, 0.1), times)
        assert torch.all(result.gain.upper > 0)


def test_the_oracle_is_below_an_adaptive_integral_and_close_to_it() -> None:
    rng = np.random.default_rng(0)
    A, q = rng.normal(size=(4, 4)), rng.uniform(0.1, 1, 4)
    exact = quad_vec(lambda s: expm(A * s) @ np.diag(q) @ expm(A * s).T, 0, 3.0, epsrel=1e-12)[0].diagonal()
    found = least_noise_variance(torch.as_tensor(A)[None], torch.as_tensor(q), torch.tensor([3.0]), 1e300)[0].numpy()
    assert np.all(found <= exact * (1 + 1e-9)) and np.all(found >= 0.5 * exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clamped_noise_stays_positive_semidefinite(dtype: torch.dtype) -> None:
    """To clamp each entry at the bound makes this matrix indefinite."""
    limit = bounds(dtype).variance
    root = torch.tensor([[3.0, 0.0, 0.0], [2.9, 0.3, 0.0], [-0.2, 0.5, 0.4]], dtype=dtype) * limit**0.5
    noise = root @ root.mT
    held = clamp_noise(noise, noise.diagonal() / 2)
    assert torch.linalg.eigvalsh(noise.clamp(-limit, limit) / limit).min() < -1e-3
    assert torch.linalg.eigvalsh(held / limit).min() > 0
    assert torch.all(held.diagonal() <= limit) and held[0, 0] == limit
    low = clamp_noise(torch.eye(3, dtype=dtype), torch.full((3,), 4.0, dtype=dtype))
    assert torch.all(low.diagonal() >= 4)
