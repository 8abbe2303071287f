import numpy as np
import pytest
import torch

from cru.functional import (
    Belief,
    phi1,
    predict_eigen,
    predict_eigen_reference,
    predict_expm,
)
from tests.helpers import difference, random_belief


def setting(size: float, seed: int = 0) -> tuple[Belief, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    d = size * torch.randn(3, 6, generator=generator, dtype=torch.float64)
    E = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64))[0]
    q = 0.1 + torch.rand(6, generator=generator, dtype=torch.float64)
    return random_belief(3, 3, generator), torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64), d, E, q


@pytest.mark.parametrize("size", [0.1, 1.0, 5.0])
def test_agrees_with_the_literal_predict(size: float) -> None:
    for fast, literal in zip(
        predict_eigen(*setting(size))[:4], predict_eigen_reference(*setting(size))[:4], strict=True
    ):
        assert difference(fast, literal) < 1e-11


@pytest.mark.parametrize("size", [0.0, 0.1, 1.0, 4.0])
def test_agrees_with_the_cru_when_the_bases_are_symmetric_and_commute(size: float) -> None:
    belief, delta, d, E, q = setting(size)
    A = E @ torch.diag_embed(d) @ E.mT
    for eigen, exponential in zip(
        predict_eigen(belief, delta, d, E, q)[:4], predict_expm(belief, delta, A, q, 6)[:4], strict=True
    ):
        assert difference(eigen, exponential) < 1e-11


def test_stable_where_two_eigenvalues_cancel() -> None:
    belief, delta, d, E, q = setting(1.0)
    d[:, 1], d[:, 2] = -d[:, 0], 0.0
    d[:, 4] = -d[:, 3] + 1e-13
    d.requires_grad_()
    later = predict_eigen(belief, delta, d, E, q)
    A = E @ torch.diag_embed(d.detach()) @ E.mT
    for eigen, exponential in zip(later[:4], predict_expm(belief, delta, A, q, 6)[:4], strict=True):
        assert difference(eigen, exponential) < 1e-11
    assert torch.isfinite(torch.autograd.grad(sum(f.sum() for f in later[:4]), d)[0]).all()


def test_phi1_and_its_derivative_near_zero() -> None:
    x = torch.tensor(
        [-30.0, -0.5, -0.4999, -1e-3, -1e-9, 0.0, 1e-12, 1e-4, 0.3, 0.5, 2.0], dtype=torch.float64
    ).requires_grad_()
    exact = np.array(
        [
            sum(np.longdouble(v) ** k / np.prod(np.arange(1, k + 2, dtype=np.longdouble)) for k in range(120))
            for v in x.tolist()
        ]
    )
    slope = torch.autograd.grad(phi1(x).sum(), x)[0]
    np.testing.assert_allclose(phi1(x).detach()[1:], exact[1:].astype(float), rtol=1e-14)
    near = (phi1(x.detach() + 1e-5) - phi1(x.detach() - 1e-5)) / 2e-5
    np.testing.assert_allclose(slope, near, rtol=1e-8)


def test_gradients_against_finite_differences() -> None:
    belief, delta, d, E, q = setting(0.5)
    inputs = tuple(t.clone().requires_grad_() for t in (*belief[:4], delta, d, E, q))
    assert torch.autograd.gradcheck(lambda *t: tuple(predict_eigen(Belief(*t[:4]), *t[4:])[:4]), inputs, atol=1e-7)


def test_a_growing_mode_over_a_huge_gap_is_clamped() -> None:
    belief, _, d, E, q = (t if isinstance(t, Belief) else t.float() for t in setting(1.0))
    belief = Belief(*(field.float() for field in belief[:4]))
    d = d.abs().requires_grad_()
    later = predict_eigen(belief, torch.full((3,), 1e6), d, E, q)
    assert all(torch.isfinite(field).all() for field in later[:4])
    assert torch.isfinite(torch.autograd.grad(sum(f.sum() for f in later[:4]), d)[0]).all()
