"""The losses against torch.distributions."""

import pytest
import torch
from torch.distributions import Bernoulli, Normal

from cru.functional import VARIANCE_FLOOR, bernoulli_nll, gaussian_nll, mean_over_times
from cru.functional.likelihood import clamp_value


def random(*shape: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    targets, mean = (torch.randn(*shape, generator=generator, dtype=torch.float64) for _ in range(2))
    var = torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.01
    return targets, mean, var, torch.rand(*shape, generator=generator) < 0.6


def test_gaussian_is_that_of_torch() -> None:
    targets, mean, var, mask = random(3, 5, 4)
    expected = -(Normal(mean, var.sqrt()).log_prob(targets) * mask).sum(-1)
    torch.testing.assert_close(gaussian_nll(targets, mean, var, mask), expected)


@pytest.mark.parametrize("grey", [False, True])
def test_bernoulli_is_that_of_torch(grey: bool) -> None:
    targets, logits, _, _ = random(2, 3, 1, 4, 4)
    pixels = targets.sigmoid() if grey else (targets > 0).double()
    mask = torch.tensor([[True, False, True], [True, True, False]])[..., None, None, None]
    expected = -(Bernoulli(logits=logits, validate_args=False).log_prob(pixels) * mask).sum((2, 3, 4))
    torch.testing.assert_close(bernoulli_nll(pixels, logits.sigmoid(), mask), expected)


def test_a_variance_of_zero_is_floored_and_a_certain_pixel_is_finite() -> None:
    one = torch.ones(1, 1, 1, requires_grad=True)
    mask = torch.ones(1, 1, 1, dtype=torch.bool)
    expected = -Normal(one, VARIANCE_FLOOR**0.5).log_prob(one + 0.5).squeeze(-1)
    torch.testing.assert_close(gaussian_nll(one + 0.5, one, 0 * one, mask), expected)
    wrong = bernoulli_nll(torch.zeros(1, 1, 1), one, mask)
    wrong.sum().backward()
    assert torch.isfinite(wrong).all()
    assert torch.isfinite(one.grad).all()


def test_a_variance_below_the_floor_can_rise_again() -> None:
    """As with `torch.nn.GaussianNLLLoss`, whose floor is not differentiated either."""
    mask, error = torch.ones(1, 1, 1, dtype=torch.bool), torch.full((1, 1, 1), 0.1)
    gradients = []
    for loss in (
        lambda var: gaussian_nll(error, torch.zeros(1, 1, 1), var, mask).sum(),
        lambda var: torch.nn.functional.gaussian_nll_loss(torch.zeros(1, 1, 1), error, var, eps=VARIANCE_FLOOR),
    ):
        var = torch.full((1, 1, 1), 1e-8, requires_grad=True)
        loss(var).backward()
        gradients.append(var.grad)
    assert gradients[0] < 0
    torch.testing.assert_close(*gradients)


def test_what_is_masked_has_neither_value_nor_gradient() -> None:
    targets, mean, var, mask = random(2, 4, 3)
    mean.requires_grad_()
    targets = torch.where(mask, targets, float("nan"))
    gaussian_nll(targets, mean, var, mask).sum().backward()
    assert torch.equal(mean.grad != 0, mask)


def test_the_mean_is_over_times_that_have_a_target() -> None:
    mask = torch.tensor([[[True, False], [False, False], [True, True]]])
    assert mean_over_times(torch.tensor([[2.0, 0.0, 4.0]]), mask) == 3
    assert mean_over_times(torch.zeros(1, 3), torch.zeros_like(mask)) == 0


def test_a_probability_that_is_no_number_gives_none_and_does_not_raise() -> None:
    """Training skips such a step, and stops with a message of its own where there are too many."""
    probability = torch.tensor([[[0.5, torch.nan]]])
    mask = torch.ones(1, 1, 2, dtype=torch.bool)
    assert bernoulli_nll(torch.zeros(1, 1, 2), probability, mask).isnan().all()
    assert torch.isfinite(bernoulli_nll(torch.zeros(1, 1, 2), probability, ~probability.isnan())).all()


@pytest.mark.parametrize("far", [20.0, 1e9, 1e30])
def test_a_bound_is_exact_however_far_beyond_it_a_value_is(far: float) -> None:
    x = torch.tensor([-far, far], requires_grad=True)
    clamp_value(x, -15.0, 15.0).sum().backward()
    assert clamp_value(x, -15.0, 15.0).tolist() == [-15.0, 15.0]
    assert x.grad.tolist() == [1.0, 1.0]
