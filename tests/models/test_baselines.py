"""GRU-D, ODE-RNN, Latent ODE, GRU-ODE-Bayes and mTAND: what each has beyond the contract."""

import math

import pytest
import torch
from torch import nn

from cru.functional import gaps
from cru.functional.likelihood import gaussian_nll, mean_over_times
from cru.models import Prediction, Spec, create
from tests.models.helpers import SPECS, changed, made, random_batch

ODE_MODELS = ("ode-rnn", "latent-ode", "gru-ode-b")
FEATURES = SPECS["features"]


@pytest.mark.parametrize("name", ODE_MODELS)
def test_evaluations_are_reported(name: str) -> None:
    batch = random_batch(FEATURES)
    odes = 2 if name == "latent-ode" else 1
    gaps_moved = int((gaps(batch.times, None, 1.0, torch.float64) > 0).any(0).sum())
    for options, per_gap in (({"solver": "euler"}, 1), ({"solver": "rk4", "steps": 3}, 12)):
        whole = {"longest": 100.0} if name == "gru-ode-b" else {}  # every gap in one part
        model = create(name, FEATURES, **({"steps": 1} | options | whole))
        found = model(batch, intermediates=True).intermediates["evaluations"]
        assert found <= odes * gaps_moved * per_gap and found % per_gap == 0
        assert found >= gaps_moved * per_gap
    adaptive = create(name, FEATURES, solver="dopri5", rtol=1e-5, atol=1e-6)
    assert adaptive(batch, intermediates=True).intermediates["evaluations"] > gaps_moved * 6


@pytest.mark.parametrize("name", ODE_MODELS)
def test_the_default_steps_are_close_to_an_exact_solution(name: str) -> None:
    batch = random_batch(FEATURES, steps=20)
    quick = made(name, FEATURES, dtype=torch.float64).eval()
    exact = create(name, FEATURES, solver="dopri5", rtol=1e-9, atol=1e-10).double().eval()
    exact.load_state_dict(quick.state_dict())
    exact.prepare([batch])
    torch.testing.assert_close(quick(batch).mean, exact(batch).mean, atol=1e-2, rtol=0)


@pytest.mark.parametrize("gap", [1.0, 2.0, 3.0, 5.0, 10.0, 100.0])
def test_gru_ode_b_solves_long_gaps(gap: float) -> None:
    batch = random_batch(FEATURES, 8, 6)
    batch = changed(batch, times=gap * torch.arange(6.0).double().expand(8, 6), lengths=torch.full((8,), 6))
    quick = made("gru-ode-b", FEATURES, dtype=torch.float64).eval()
    exact = create("gru-ode-b", FEATURES, solver="dopri5", rtol=1e-9, atol=1e-10).double().eval()
    exact.load_state_dict(quick.state_dict())
    error = (
        quick(batch, intermediates=True).intermediates["prior"]
        - exact(batch, intermediates=True).intermediates["prior"]
    )
    assert error.square().mean().sqrt() < 1e-2


def test_gru_d_takes_the_means_of_what_is_observed() -> None:
    model, batches = create("gru-d", FEATURES), [random_batch(FEATURES, seed=s) for s in (1, 2)]
    model.prepare(batches)
    values = torch.cat([batch.values.flatten(0, 1) for batch in batches])
    mask = torch.cat([batch.mask.flatten(0, 1) for batch in batches])
    expected = torch.stack([values[mask[:, d], d].mean() for d in range(3)])
    torch.testing.assert_close(model.layer.mean, expected)
    assert "layer.mean" in model.state_dict()


@pytest.mark.parametrize("name", ["gru-d", "ode-rnn", "latent-ode", "mtand"])
def test_the_unit_of_time_does_not_matter_where_time_is_scaled(name: str) -> None:
    """Hours or minutes, since midnight or since 1970."""
    batch = random_batch(FEATURES)
    other = Spec(input_shape=(3,), target_shape=(3,), time_start=1e9, time_end=1e9 + 600.0)
    expected = made(name, FEATURES).eval()(batch).mean
    found = made(name, other).eval()(changed(batch, times=1e9 + 60 * batch.times)).mean
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_gru_ode_b_reads_unscaled_time() -> None:
    batch = random_batch(FEATURES)
    other = Spec(input_shape=(3,), target_shape=(3,), time_end=1e3)
    assert torch.equal(made("gru-ode-b", FEATURES).eval()(batch).mean, made("gru-ode-b", other).eval()(batch).mean)


def test_mtand_has_the_importance_weighted_bound() -> None:
    model, batch = made("mtand", FEATURES, samples=4, annealing=0.0), random_batch(FEATURES)
    torch.manual_seed(1)
    code = model.encode(batch)
    q = torch.distributions.Normal(code.mean, (code.log_var / 2).exp())
    prior = torch.distributions.Normal(torch.zeros_like(code.mean), 1.0)
    weights, variances = [], []
    for draw in [code.sample() for _ in range(4)]:
        mean, var, _ = model.decode(draw, batch)
        likelihood = torch.distributions.Normal(mean, 0.01).log_prob(batch.targets)
        weight = torch.where(batch.target_mask, likelihood, 0.0).sum((1, 2)).double()
        weights.append(weight + (prior.log_prob(draw) - q.log_prob(draw)).sum((1, 2)))
        spread = torch.distributions.Normal(mean, var.clamp(min=1e-6).sqrt()).log_prob(batch.targets)
        variances.append(-torch.where(batch.target_mask, spread, 0.0).sum())
    targets = batch.target_mask.sum((1, 2))
    bound = (torch.stack(weights).logsumexp(0) - math.log(4)) / targets
    expected = -bound.mean() + sum(variances) / 4 / targets.sum()
    torch.manual_seed(1)
    torch.testing.assert_close(model.loss(batch).double(), expected.double(), rtol=1e-4, atol=1e-4)


def test_the_lower_bound_and_its_annealing() -> None:
    model, batch = made("latent-ode", FEATURES, samples=1), random_batch(FEATURES)
    code = model.encode(batch)
    prior = torch.distributions.Normal(torch.zeros_like(code.mean), 1.0)
    q = torch.distributions.Normal(code.mean, (code.log_var / 2).exp())
    divergence = torch.distributions.kl_divergence(q, prior).sum() / batch.target_mask.any(-1).sum()

    def loss(progress: float) -> torch.Tensor:
        torch.manual_seed(1)
        return model.loss(batch, progress=progress)

    torch.manual_seed(1)
    likelihood = model.fixed_noise_nll(model.decode(code.sample(), batch), batch)
    for progress, weight in ((0.0, 0.0), (0.1, 0.0), (0.12, 1 - 0.99**2), (1.0, 1 - 0.99**90)):
        torch.testing.assert_close(loss(progress), likelihood + weight * divergence)


@pytest.mark.parametrize("name", ["latent-ode", "mtand"])
def test_samples_on_request(name: str) -> None:
    batch = random_batch(FEATURES)
    model = create(name, FEATURES, samples=4)
    more = model(batch, intermediates=True).intermediates
    assert more["samples"].shape == (4, *batch.targets.shape)
    assert more["samples"].std(0).max() > 0
    assert torch.isfinite(model.loss(batch))


def test_latent_ode_reads_backward() -> None:
    """The first observation is the last that the recognition network reads: with z = 0 gates it is all that counts."""
    model, batch = made("latent-ode", FEATURES).eval(), random_batch(FEATURES)
    batch = changed(batch, mask=torch.ones_like(batch.mask), values=torch.rand_like(batch.values))
    for network in (model.recognition.cell.update, model.recognition.cell.reset):
        nn.init.zeros_(network[2].weight), nn.init.constant_(network[2].bias, -100.0)
    first, last = batch.values.clone(), batch.values.clone()
    first[:, 0] += 1
    last[:, -1] += 1
    expected = model.encode(batch).mean
    assert torch.equal(model.encode(changed(batch, values=last)).mean, expected)
    assert not torch.equal(model.encode(changed(batch, values=first)).mean, expected)


@pytest.mark.parametrize("name", ["gru-d", "ode-rnn", "latent-ode", "mtand"])
def test_the_mean_is_trained_on_the_squared_error_and_the_variance_on_what_it_leaves(name: str) -> None:
    model, batch = made(name, SPECS["features"], target_noise=0.5), random_batch(SPECS["features"])
    mean, var = (field.detach().requires_grad_() for field in model(batch)[:2])
    model.fixed_noise_nll(Prediction(mean, var), batch).backward()
    counted = batch.target_mask
    points = counted.flatten(2).any(-1).sum()
    square = torch.autograd.grad((torch.where(counted, mean - batch.targets, 0.0) ** 2).sum() / points, mean)[0]
    torch.testing.assert_close(mean.grad, square / (2 * 0.5**2))
    likelihood = mean_over_times(gaussian_nll(batch.targets, mean.detach(), var, counted), counted)
    torch.testing.assert_close(var.grad, torch.autograd.grad(likelihood, var)[0])


def test_gru_ode_b_has_a_loss_in_two_parts() -> None:
    model, batch = made("gru-ode-b", FEATURES).eval(), random_batch(FEATURES)
    _, mask, states = model.run(batch)
    mean, var = model.observation.moments(states.predicted)
    first = gaussian_nll(batch.targets, mean, var, batch.target_mask).sum() / len(batch)  # summed over each series
    second = torch.where(mask, model.observation.posterior_kl(batch.values, states.updated), 0.0).sum() / len(batch)
    torch.testing.assert_close(model.loss(batch), first + 1e-4 * second)
    assert second > 0


def test_gru_ode_b_may_train_on_every_target() -> None:
    """The training of its authors for forecasts: what a task withholds is read in training, never in a prediction."""
    batch = random_batch(FEATURES)
    shown = changed(batch, values=batch.targets, mask=batch.target_mask)
    own, plain = (made("gru-ode-b", FEATURES, train_on_targets=on).eval() for on in (True, False))
    torch.testing.assert_close(own.loss(batch), plain.loss(shown))
    assert not torch.equal(own.loss(batch), plain.loss(batch))
    assert torch.equal(own(batch).mean, plain(batch).mean)


def test_gru_ode_b_takes_euler_steps_of_a_tenth() -> None:
    batch = random_batch(FEATURES)
    model = made("gru-ode-b", FEATURES, solver="euler", longest=0.1, most_parts=1000).eval()
    model(batch)
    gaps = batch.times.diff(dim=1).clamp(min=0)
    fewest = float((gaps.sum(1) / 0.1).max())
    assert fewest <= model.layer.ode.evaluations <= fewest + gaps.shape[1] + 1


def test_gru_ode_b_predicts_from_the_state_after_the_update() -> None:
    model, batch = made("gru-ode-b", FEATURES).eval(), random_batch(FEATURES)
    _, _, states = model.run(batch)
    torch.testing.assert_close(model(batch).mean, model.layer.f_obs(states.posterior)[..., :3])


def test_mtand_is_full_for_interpolation_and_enc_for_regression() -> None:
    assert create("mtand", FEATURES).full and not create("mtand", SPECS["labels"]).full
    assert create("mtand", SPECS["pictures"]).full and not create("mtand", FEATURES, full=False).full
    assert create("mtand", FEATURES).reference.shape == (64,)


def test_mtand_on_physionet_is_about_three_times_the_cru() -> None:
    spec = Spec(input_shape=(37,), target_shape=(37,))
    cru = create("cru", spec, num_basis=20, bandwidth=10).num_parameters
    assert 2.5 < create("mtand", spec).num_parameters / cru < 3.5


@pytest.mark.parametrize("name", ["gru-d", "ode-rnn", "latent-ode", "gru-ode-b"])
def test_any_encoder_and_decoder_will_do(name: str) -> None:
    batch = random_batch(FEATURES)
    parts = {"encoder": nn.Linear(3, 5), "decoder": nn.Linear(8, 3), "variance_decoder": nn.Linear(8, 3)}
    model = create(name, FEATURES, hidden_size=8, **parts)
    model.prepare([batch])
    assert model(batch).mean.shape == batch.targets.shape
    model.loss(batch).backward()
    assert parts["encoder"].weight.grad.any() and parts["decoder"].weight.grad.any()


def test_a_decoder_that_would_not_be_used_is_refused() -> None:
    with pytest.raises(ValueError, match="`decoder` must be None without an encoder"):
        create("gru-ode-b", FEATURES, decoder=nn.Linear(20, 3))
