"""Every model on every kind of dataset and task of `cru.data`: it takes a training step, or says why it cannot."""

import dataclasses
from functools import cache

import numpy as np
import pytest
import torch

from cru.data import SeriesSet, extrapolation, interpolation, one_step_ahead, partial_observability, regression
from cru.data.datasets import pendulum
from cru.data.series import make_series
from cru.functional import bernoulli_nll
from cru.models import MODELS, Spec, create, spec_of
from cru.models.base import OutputHead
from cru.models.registry import entry


@cache
def weather() -> SeriesSet:
    """Three stations, two features, with a label at each time."""
    rng = np.random.default_rng(0)
    times = np.concatenate([np.sort(rng.uniform(0, 20, n)) for n in (9, 1, 6)])
    values = rng.random((16, 2))
    values[rng.random(values.shape) < 0.3] = np.nan
    series = make_series(times, values, np.array([0, 9, 10, 16]), ids="abc", names=["rain", "snow"])
    object.__setattr__(series, "per_time", {"label": rng.random((16, 3))})
    return series


@cache
def frames(noisy: bool) -> SeriesSet:
    return pendulum.generate(pendulum.REGRESSION if noisy else pendulum.INTERPOLATION, 2)


TASKS = {
    "interpolation": lambda: interpolation(weather(), hidden=0.3),
    "interpolation of all": lambda: interpolation(weather(), hidden=0.0),
    "extrapolation": lambda: extrapolation(weather(), fraction=0.5),
    "one step ahead": lambda: one_step_ahead(weather()),
    "partly observed": lambda: interpolation(partial_observability(weather()), hidden=0.0),
    "regression": lambda: regression(weather(), target="label"),
    "pendulum interpolation": lambda: interpolation(frames(False), hidden=0.5, keep_before=5.0),
    "pendulum extrapolation": lambda: extrapolation(frames(False), time=50.0),
    "pendulum regression": lambda: regression(frames(True), target="sin_cos"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_training_step(name: str) -> None:
    for task, make in TASKS.items():
        take_step(name, task, make())


def take_step(name: str, task: str, series: SeriesSet) -> None:
    """Compute the loss of a new model and its gradients, or check that the model states why it cannot."""
    torch.manual_seed(0)
    batch = series.batch(range(len(series)))
    spec = spec_of(series)
    if spec.causal and not entry(name).model.causal:
        with pytest.raises(ValueError, match="uses later inputs"):
            create(name, spec)
        return
    try:
        model = create(name, spec)
    except ValueError as error:
        assert "regression" in task or (name == "corrected" and "pendulum" in task), (task, error)
        assert "predicts the inputs themselves" in str(error), task
        return
    model.prepare([batch])
    loss = model.loss(batch)
    assert torch.isfinite(loss), task
    if loss.requires_grad:
        loss.backward()
        assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters()), task


def test_labels_that_look_like_inputs_are_still_labels() -> None:
    """One feature x, one label 2 - x: nothing but the task tells them apart."""
    x = np.linspace(0.0, 2.0, 8)
    series = make_series(np.arange(8.0), x[:, None], np.array([0, 8]), ids="a", names=["x"])
    object.__setattr__(series, "per_time", {"label": 2 - x})
    spec = spec_of(regression(series, target="label"))
    assert spec.input_shape == spec.target_shape and not spec.targets_are_inputs
    assert spec_of(interpolation(series)).targets_are_inputs
    for name in ("series-mean", "last-value", "linear", "blend", "climatology"):
        with pytest.raises(ValueError, match="predicts the inputs themselves"):
            create(name, spec)
    assert not create("mtand", spec).full
    model, batch = create("gru-ode-b", spec, dropout=0.0), regression(series, target="label").batch([0])
    assert model.output is not None
    far = dataclasses.replace(batch, targets=batch.targets + 100.0)
    assert model.loss(far) > 10 * model.loss(batch)  # the labels are fitted by the decoder, not by f_obs
    model.loss(batch).backward()
    assert model.output.mean[0].weight.grad.any()


@pytest.mark.parametrize("name", [name for name in MODELS if not entry(name).model.causal])
def test_a_model_that_is_not_causal_cannot_do_a_causal_task(name: str) -> None:
    spec = spec_of(one_step_ahead(weather()))
    assert spec.causal and not spec_of(interpolation(weather())).causal
    assert Spec.from_dict(spec.as_dict()) == spec
    with pytest.raises(ValueError, match=f"'{name}' uses later inputs, which a causal task"):
        create(name, spec)


@pytest.mark.parametrize("logit", [-40.0, -5.0, 5.0, 40.0])
def test_a_pixel_that_is_certain_and_wrong_has_the_gradient_of_its_logit(logit: float) -> None:
    spec = Spec(input_shape=(1, 24, 24), target_shape=(1,), likelihood="bernoulli")
    output = OutputHead(spec, torch.nn.Identity(), torch.nn.Identity())
    raw, target = torch.full((1, 1, 1), logit, requires_grad=True), torch.full((1, 1, 1), float(logit < 0))
    bernoulli_nll(target, output(raw)[0], torch.ones(1, 1, 1, dtype=torch.bool)).sum().backward()
    expected = torch.sigmoid(torch.tensor(logit)) - target
    torch.testing.assert_close(raw.grad, expected, rtol=0.05, atol=1e-6)
