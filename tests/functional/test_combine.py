"""Two beliefs made one, against the product of dense Gaussians."""

import torch

from cru.functional import Belief, covariance
from cru.functional.combine import combine
from tests.helpers import difference, random_belief


def test_the_product_of_two_gaussians() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (random_belief(4, 3, generator) for _ in range(2))
    found = combine(a, b)
    A, B = (torch.linalg.inv(covariance(x)) for x in (a, b))
    cov = torch.linalg.inv(A + B)
    mean = (cov @ (A @ a.mean[..., None] + B @ b.mean[..., None]))[..., 0]
    assert difference(found.mean, mean) < 1e-12
    assert difference(covariance(found), cov) < 1e-12


def test_the_order_does_not_matter() -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = (random_belief(2, 3, generator) for _ in range(2))
    assert all(difference(x, y) < 1e-12 for x, y in zip(combine(a, b)[:4], combine(b, a)[:4], strict=True))


def test_certain_beliefs_stay_finite() -> None:
    zero = torch.zeros(1, 2, requires_grad=True)
    certain = Belief(torch.ones(1, 4), zero, zero, zero)
    both = combine(certain, certain)
    assert torch.equal(both.mean, torch.ones(1, 4))
    sum(field.sum() for field in both[:4]).backward()
    assert torch.isfinite(zero.grad).all()


def test_one_half_may_be_far_more_certain_than_the_other() -> None:
    for small in (1e-4, 1e-8, 1e-12):
        upper, lower, none = torch.full((1, 1), small), torch.full((1, 1), 10.0), torch.zeros(1, 1)
        both = combine(Belief(torch.zeros(1, 2), upper, lower, none), Belief(torch.ones(1, 2), upper, lower, none))
        torch.testing.assert_close(both.mean, torch.full((1, 2), 0.5), rtol=1e-5, atol=0)
        torch.testing.assert_close(both.upper, upper / 2, rtol=1e-5, atol=0)
