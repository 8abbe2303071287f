import numpy as np
import pytest
import torch
from scipy.integrate import quad_vec
from scipy.linalg import expm

from cru.functional import Belief, bounds, discretise, doublings, predict_expm, predict_expm_reference
from cru.functional.expm import lobatto, spectral_bound
from cru.functional.transition import Coefficients, ExpmTransition
from tests.helpers import difference, random_belief


def random_matrices(batch: int, state: int, norm: float, seed: int = 0) -> torch.Tensor:
    A = torch.randn(batch, state, state, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return A / torch.linalg.matrix_norm(A, 2)[:, None, None] * norm


@pytest.mark.parametrize("norm", [0.0, 1e-8, 0.1, 1.0, 3.0, 8.0, 20.0])
def test_discretise_agrees_with_scipy_expm_and_quadrature(norm: float) -> None:
    A, q, delta = random_matrices(3, 6, norm), torch.rand(6, dtype=torch.float64), 0.9
    phi, Q = discretise(A, q, torch.full((3,), delta, dtype=torch.float64), doublings(spectral_bound(A)))
    for a, phi_b, Q_b in zip(A.numpy(), phi, Q, strict=True):
        integral, _ = quad_vec(
            lambda s, a=a: expm(a * s) @ np.diag(q) @ expm(a * s).T, 0, delta, epsrel=1e-13, epsabs=0
        )
        assert difference(phi_b, torch.from_numpy(expm(a * delta))) < 1e-12
        assert difference(Q_b, torch.from_numpy(integral)) < 1e-11


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("norm", [0.0, 0.3, 1.0, 2.0, 5.0, 10.0, 20.0])
def test_fast_predict_agrees_with_the_literal_one(norm: float, dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(1)
    belief = random_belief(4, 5, generator)
    A = random_matrices(4, 10, norm).requires_grad_()
    q = (0.1 + torch.rand(10, generator=generator, dtype=torch.float64)).requires_grad_()
    delta = torch.tensor([1.0, 0.5, 0.25, 0.0], dtype=torch.float64)
    expected = predict_expm_reference(belief, delta, A, q)
    cast = [field.detach().to(dtype) for field in (*belief[:4], delta, A, q)]
    A_low, q_low = cast[5].requires_grad_(), cast[6].requires_grad_()
    found = predict_expm(Belief(*cast[:4]), cast[4], A_low, q_low, doublings(spectral_bound(A)))
    for fast, literal in zip(found[:4], expected[:4], strict=True):
        assert difference(fast.double(), literal) < tolerance
    grads = torch.autograd.grad(sum(f.sum() for f in expected[:4]), [A, q], allow_unused=True)
    fast_grads = torch.autograd.grad(sum(f.sum() for f in found[:4]), [A_low, q_low])
    for fast, literal in zip(fast_grads, grads, strict=True):
        assert difference(fast.double(), literal) < (1e-7 if dtype == torch.float64 else 1e-3)


def test_two_gaps_make_one_when_the_transition_is_constant() -> None:
    A, q = random_matrices(2, 6, 1.5), torch.rand(6, dtype=torch.float64)
    cov = torch.eye(6, dtype=torch.float64).expand(2, 6, 6) * 0.7

    def carried(cov: torch.Tensor, gap: float) -> torch.Tensor:
        phi, Q = discretise(A, q, torch.full((2,), gap, dtype=torch.float64), 3)
        return phi @ cov @ phi.mT + Q

    assert difference(carried(carried(cov, 0.4), 1.1), carried(cov, 1.5)) < 1e-13


def test_no_gap_is_the_identity() -> None:
    belief = random_belief(3, 4, torch.Generator().manual_seed(0))
    A, q = random_matrices(3, 8, 5.0), torch.rand(8, dtype=torch.float64)
    later = predict_expm(belief, torch.zeros(3, dtype=torch.float64), A, q, 4)
    for before, after in zip(belief[:4], later[:4], strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("norm", [0.5, 6.0])
def test_gradients_against_finite_differences(norm: float) -> None:
    belief = random_belief(2, 2, torch.Generator().manual_seed(0))
    inputs = [field.clone().requires_grad_() for field in belief[:4]]
    A, q = random_matrices(2, 4, norm).requires_grad_(), torch.rand(4, dtype=torch.float64).requires_grad_()
    delta = torch.tensor([0.8, 1.0], dtype=torch.float64, requires_grad=True)

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(predict_expm(Belief(*tensors[:4]), tensors[4], tensors[5], tensors[6], 4)[:4])

    assert torch.autograd.gradcheck(run, (*inputs, delta, A, q), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_overflow_is_clamped_to_the_documented_bound(dtype: torch.dtype) -> None:
    belief = Belief(*(field.to(dtype) for field in random_belief(2, 3, torch.Generator().manual_seed(0))[:4]))
    A = torch.eye(6, dtype=dtype).expand(2, 6, 6).clone().requires_grad_()
    delta = torch.tensor([1e6, 1e3], dtype=dtype)
    later = predict_expm(belief, delta, A, torch.ones(6, dtype=dtype), doublings(spectral_bound(A) * delta))
    assert all(torch.isfinite(field).all() for field in later[:4])
    assert float(later.upper.detach().max()) <= bounds(dtype).variance * (1 + 1e-6)
    assert torch.isfinite(torch.autograd.grad(sum(field.sum() for field in later[:4]), A)[0]).all()


def test_every_series_is_doubled_as_its_own_gap_asks() -> None:
    A, q = random_matrices(1, 4, 1.0, seed=3).expand(2, 4, 4).float(), torch.full((4,), 0.1)
    alone, _ = discretise(A[:1], q, torch.tensor([0.01]), 0)
    beside, _ = discretise(A, q, torch.tensor([0.01, 4000.0]), 12)
    assert torch.equal(alone[0], beside[0])


@pytest.mark.parametrize("points", [3, 4, 6, 10, 16])
def test_lobatto_is_exact_to_its_degree(points: int) -> None:
    nodes, weights = (np.array(v) for v in lobatto(points))
    for degree in range(2 * points - 2):
        assert abs((weights * nodes**degree).sum() - 1 / (degree + 1)) < 1e-14


@pytest.mark.parametrize("gap", [0.3, 1.0, 2.8])
def test_the_plan_is_enough_for_every_mean_of_the_bases(gap: float) -> None:
    """Bases whose mean has a larger geometric mean of row and column sums than any of them."""
    first = torch.zeros(20, 20, dtype=torch.float64)
    first[:12, :12], first[12, 12:] = torch.eye(12), 1.0
    basis, q = torch.stack([first, first.T]), torch.ones(20, dtype=torch.float64)
    half = Coefficients(torch.zeros(2, 20, dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    transition = ExpmTransition(half, basis, q)
    belief, delta = random_belief(3, 10, torch.Generator().manual_seed(0)), torch.full((3,), gap, dtype=torch.float64)
    found = transition.predict(belief, delta, transition.plan(delta))
    for fast, literal in zip(found[:4], transition.predict_reference(belief, delta)[:4], strict=True):
        assert difference(fast, literal) < 1e-12
