import numpy as np
import torch

from cru.functional import Belief, covariance, predict_discrete, predict_discrete_reference
from tests.helpers import difference, random_belief


def test_agrees_with_numpy_on_the_whole_covariance() -> None:
    generator = torch.Generator().manual_seed(0)
    belief = random_belief(3, 4, generator)
    A, q = torch.randn(3, 8, 8, generator=generator, dtype=torch.float64), torch.rand(8, dtype=torch.float64)
    for later in (predict_discrete(belief, A, q), predict_discrete_reference(belief, A, q)):
        for b in range(3):
            cov = A[b].numpy() @ covariance(belief)[b].numpy() @ A[b].numpy().T + np.diag(q)
            np.testing.assert_allclose(later.mean[b], A[b].numpy() @ belief.mean[b].numpy(), rtol=1e-12)
            np.testing.assert_allclose(torch.cat([later.upper[b], later.lower[b]]), np.diag(cov), rtol=1e-12)
            np.testing.assert_allclose(later.side[b], np.diag(cov[:4, 4:]), rtol=1e-11, atol=1e-14)


def test_gradients_against_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    belief = random_belief(2, 2, generator)
    A, q = torch.randn(2, 4, 4, generator=generator, dtype=torch.float64), torch.rand(4, dtype=torch.float64)
    inputs = tuple(t.clone().requires_grad_() for t in (*belief[:4], A, q))
    assert torch.autograd.gradcheck(lambda *t: tuple(predict_discrete(Belief(*t[:4]), *t[4:])[:4]), inputs)


def test_a_huge_transition_is_clamped() -> None:
    belief = Belief(*(field.float() for field in random_belief(2, 2, torch.Generator().manual_seed(0))[:4]))
    later = predict_discrete(belief, torch.full((2, 4, 4), 1e30), torch.ones(4))
    assert all(torch.isfinite(field).all() for field in later[:4])
    assert difference(later.upper, later.lower) == 0
