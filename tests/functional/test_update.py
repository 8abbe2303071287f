import torch
from hypothesis import given
from hypothesis import strategies as st

from cru.functional import Belief, covariance, gain, keep_block_diagonals, update, update_reference
from tests.helpers import difference, random_belief


def test_agrees_with_the_unfactorised_update() -> None:
    generator = torch.Generator().manual_seed(0)
    belief = random_belief(5, 4, generator)
    y, y_var = torch.randn(5, 4, generator=generator, dtype=torch.float64), torch.rand(5, 4, dtype=torch.float64)
    found = update(belief, y, y_var, torch.ones(5, 4, dtype=torch.bool))
    expected = keep_block_diagonals(*update_reference(belief.mean, covariance(belief), y, y_var))
    for fast, dense in zip(found[:4], expected[:4], strict=True):
        assert difference(fast, dense) < 1e-13


def test_a_missing_dimension_keeps_its_prior_and_gives_no_gradient() -> None:
    belief = random_belief(2, 3, torch.Generator().manual_seed(0))
    mask = torch.tensor([[True, False, True], [False, False, False]])
    y = torch.randn(2, 3, dtype=torch.float64).requires_grad_()
    posterior = update(belief, y, torch.full((2, 3), 0.1, dtype=torch.float64), mask)
    for before, after in (
        (belief.upper, posterior.upper),
        (belief.lower, posterior.lower),
        (belief.side, posterior.side),
    ):
        assert torch.equal(before[~mask], after[~mask])
        assert not torch.equal(before[mask], after[mask])
    assert torch.equal(belief.mean.unflatten(1, (2, 3)).mT[~mask], posterior.mean.unflatten(1, (2, 3)).mT[~mask])
    (grad,) = torch.autograd.grad(posterior.mean.sum(), y)
    assert torch.all(grad[~mask] == 0) and torch.all(grad[mask] != 0)


def test_the_gain_decreases_with_the_observation_variance() -> None:
    belief = random_belief(1, 2, torch.Generator().manual_seed(0))
    trusted = gain(belief, torch.full((1, 2), 1e-9, dtype=torch.float64))
    noise = gain(belief, torch.full((1, 2), 1e9, dtype=torch.float64))
    assert torch.all(trusted.upper > 0.999) and torch.all(noise.upper < 1e-6)


@given(
    st.floats(-12, 12),
    st.floats(-12, 12),
    st.floats(-12, 12),
    st.floats(-1, 1),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_any_variance_leaves_a_valid_belief(r: float, u: float, low: float, corr: float, dtype: torch.dtype) -> None:
    upper, lower = torch.tensor([[10.0**u]], dtype=dtype), torch.tensor([[10.0**low]], dtype=dtype)
    prior = Belief(torch.zeros(1, 2, dtype=dtype), upper, lower, corr * upper.sqrt() * lower.sqrt())
    fields = [field.requires_grad_() for field in prior[:4]]
    y_var = torch.tensor([[10.0**r]], dtype=dtype, requires_grad=True)
    posterior = update(Belief(*fields), torch.ones(1, 1, dtype=dtype), y_var, torch.ones(1, 1, dtype=torch.bool))
    assert all(torch.isfinite(field).all() for field in posterior[:4])
    assert posterior.upper >= 0 and posterior.lower >= 0
    assert posterior.upper * posterior.lower >= posterior.side**2
    grads = torch.autograd.grad(sum(field.sum() for field in posterior[:4]), [*fields, y_var])
    assert all(torch.isfinite(grad).all() for grad in grads)
