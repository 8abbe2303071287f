"""GRU-ODE-Bayes: the continuous cell, the preparation, the update, and the two parts of the loss."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli, Normal, kl_divergence

from cru.layers.gru_ode import GRUODEBayes, GRUODEField, Preparation
from cru.layers.observation import BernoulliObservation, GaussianObservation
from cru.layers.ode import ODE, exponential_time_map
from tests.helpers import difference


def build(
    observation: GaussianObservation | BernoulliObservation | None = None, longest: float = math.inf
) -> GRUODEBayes:
    torch.manual_seed(0)
    observation = observation or GaussianObservation(3)
    ode = ODE(GRUODEField(6), solver="midpoint", steps=2, time_map=exponential_time_map)
    f_obs = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3 * observation.parameters_per_input))
    return GRUODEBayes(ode, 6, observation, f_obs, 4, longest).double()


def problem() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand(4, 9, 3, generator=generator) < 0.4
    x = torch.where(mask, torch.rand(4, 9, 3, generator=generator, dtype=torch.float64), 0.0)
    delta = 3 * torch.rand(4, 9, generator=generator, dtype=torch.float64)
    delta[:, 0] = 0
    return x, mask, delta


def test_the_field_is_the_limit_of_a_gru_step() -> None:
    """GRU: h' = z h + (1 - z) g, so h' - h = (1 - z)(g - h)."""
    torch.manual_seed(0)
    field, h = GRUODEField(5).double(), torch.randn(3, 5, dtype=torch.float64)
    (reset, update), (bias_r, bias_z) = field.gates.weight.chunk(2), field.gates.bias.chunk(2)
    r, z = torch.sigmoid(h @ reset.T + bias_r), torch.sigmoid(-(h @ update.T + bias_z))
    g = torch.tanh((r * h) @ field.candidate.weight.T + field.candidate.bias)
    torch.testing.assert_close(h + field(h), z * h + (1 - z) * g)


def test_a_state_within_bounds_stays_there() -> None:
    torch.manual_seed(0)
    ode = ODE(GRUODEField(5), solver="dopri5")
    state = ode(torch.rand(50, 5) * 2 - 1, torch.linspace(0, 30, 50))
    assert state.abs().max() <= 1 + 1e-3


def test_preparation_uses_each_feature_separately() -> None:
    torch.manual_seed(0)
    network = Preparation(3, 4, 5)
    q, mask = torch.randn(2, 3, 4), torch.tensor([[True, False, True], [False, False, True]])
    found = network(q, mask).view(2, 3, 5)
    for b in range(2):
        for j in range(3):
            expected = torch.relu(q[b, j] @ network.weight[j] + network.bias[j, 0]) * mask[b, j]
            torch.testing.assert_close(found[b, j], expected)


@pytest.mark.parametrize("observation", [GaussianObservation(3), BernoulliObservation(3)])
def test_the_layer_series_by_series(observation: GaussianObservation | BernoulliObservation) -> None:
    layer, (x, mask, delta) = build(observation), problem()
    found = layer(x, mask, delta)
    for i in range(4):
        h = layer.start[None]
        for t in range(9):
            h = layer.ode(h, delta[i, t : t + 1])
            torch.testing.assert_close(found.prior[i, t], h[0])
            raw = layer.f_obs(h)
            torch.testing.assert_close(found.predicted[i, t], raw[0])
            if mask[i, t].any():
                h = layer.cell(layer.f_prep(observation.compare(x[i, t][None], raw), mask[i, t][None]), h)
            torch.testing.assert_close(found.posterior[i, t], h[0])
            torch.testing.assert_close(found.updated[i, t], layer.f_obs(h)[0])


LONG = torch.tensor([0.0, 0.7, 1.5, 3.0, 5.0, 8.0, 10.0, 20.0], dtype=torch.float64)


def after_long_gaps(layer: GRUODEBayes, gaps: torch.Tensor) -> torch.Tensor:
    """The states after each of ``gaps``, in a series of its own that starts with an observation."""
    delta = torch.stack([torch.zeros_like(gaps), gaps], 1)
    x, mask = torch.rand(len(gaps), 2, 3, generator=torch.Generator().manual_seed(2)).double(), delta[..., None] == 0
    return layer(x * mask, mask.expand_as(x), delta).prior[:, 1]


def test_long_gaps_are_solved_in_parts() -> None:
    whole, split = build(), build(longest=1.5)
    exact = build()
    exact.ode = ODE(exact.ode.field, solver="rk4", steps=400)
    expected = after_long_gaps(exact, LONG)
    in_parts, at_once = (difference(after_long_gaps(layer, LONG), expected) for layer in (split, whole))
    assert in_parts < 0.02 and in_parts < at_once / 5
    assert split.ode.evaluations == 14 * 4  # a gap of 20 has 14 parts of two steps with two evaluations each


def test_the_parts_of_a_gap_do_not_depend_on_the_others_nor_on_rounding() -> None:
    layer = build(longest=1.5)
    together = after_long_gaps(layer, LONG)
    for i in range(1, 8):
        keep = torch.arange(8) <= i
        torch.testing.assert_close(after_long_gaps(layer, LONG[keep]), together[keep])
    torch.testing.assert_close(after_long_gaps(layer, LONG * (1 + 1e-9)), together)
    layer.ode.evaluations = 0
    assert torch.isfinite(after_long_gaps(layer, 1e6 * LONG)).all()
    assert layer.ode.evaluations == 16 * 4


def test_the_parts_are_steps_at_which_nothing_is_observed() -> None:
    """A batch with gaps of all lengths is the same as one in which every gap was cut by hand."""
    layer, (x, mask, delta) = build(longest=1.5), problem()
    delta = 3 * delta
    found = layer(x, mask, delta)
    for i in range(4):
        rows, ends = [], []
        for t in range(9):
            count = max(1, int((delta[i, t] / 1.5 - 1e-3).ceil()))
            rows += [(torch.zeros(3).double(), torch.zeros(3, dtype=torch.bool), delta[i, t] / count)] * (count - 1)
            rows.append((x[i, t], mask[i, t], delta[i, t] / count))
            ends.append(len(rows) - 1)
        by_hand = build()(*(torch.stack(column)[None] for column in zip(*rows, strict=True)))
        for ours, theirs in zip(found, by_hand, strict=True):
            torch.testing.assert_close(ours[i], theirs[0, ends])


def test_what_is_not_observed_has_no_influence() -> None:
    layer, (x, mask, delta) = build(), problem()
    poisoned = torch.where(mask, x, 1e6)
    assert all(torch.equal(a, b) for a, b in zip(layer(x, mask, delta), layer(poisoned, mask, delta), strict=True))


def test_the_gaussian_loss_has_its_two_parts() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(5, 3, generator=generator, dtype=torch.float64)
    before, after = torch.randn(2, 5, 6, generator=generator, dtype=torch.float64)
    model = GaussianObservation(3, noise=0.3)
    mean, log_var = before.chunk(2, -1)
    torch.testing.assert_close(model.nll(x, before), -Normal(mean, (log_var / 2).exp()).log_prob(x))
    post = Normal(after.chunk(2, -1)[0], (after.chunk(2, -1)[1] / 2).exp())
    torch.testing.assert_close(model.posterior_kl(x, after), kl_divergence(post, Normal(x, 0.3)))
    torch.testing.assert_close(model.compare(x, before)[..., 3], (x - mean) / (log_var / 2).exp())


def test_the_bernoulli_loss_has_its_two_parts() -> None:
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(5, 3, generator=generator, dtype=torch.float64) < 0.5).double()
    grey = torch.rand(5, 3, generator=generator, dtype=torch.float64)
    before, after = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    model = BernoulliObservation(3)
    torch.testing.assert_close(model.nll(x, before), -Bernoulli(logits=before).log_prob(x))
    expected = kl_divergence(Bernoulli(grey), Bernoulli(logits=after))
    torch.testing.assert_close(model.posterior_kl(grey, after), expected)
    assert torch.isfinite(model.posterior_kl(x, after)).all()


@pytest.mark.parametrize("gap", [0.0, 1.0, 1e4])
def test_gradients_are_finite(gap: float) -> None:
    layer, (x, mask, delta) = build(), problem()
    states = layer(x, mask, torch.full_like(delta, gap))
    sum(part.sum() for part in states).backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters() if p.grad is not None)
    assert states.posterior.abs().max() < 10


def test_the_longest_part_must_be_positive() -> None:
    with pytest.raises(ValueError, match="`longest` must be positive"):
        build(longest=0.0)


def test_a_question_at_the_time_of_the_last_observation_comes_after_it() -> None:
    layer = build()
    x, delta = torch.rand(1, 4, 3, dtype=torch.float64), torch.tensor([[0.0, 1.0, 0.0, 1.0]], dtype=torch.float64)
    mask = torch.tensor([True, True, False, False])[None, :, None].expand(1, 4, 3)
    short, longer = (layer(x[:, :n], mask[:, :n], delta[:, :n]) for n in (3, 4))
    for ours, theirs in zip(short, longer, strict=True):
        torch.testing.assert_close(ours, theirs[:, :3])
    torch.testing.assert_close(short.prior[:, 2], short.posterior[:, 1])
