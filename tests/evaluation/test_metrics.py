import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

import cru
from cru.evaluation import ScoreSums, evaluate, predict
from cru.evaluation.metrics import gaussian_crps, rubanova_mse
from cru.models import Prediction, create, spec_of
from tests.training.tiny import tiny_series, tiny_splits


@pytest.fixture(scope="module")
def series():
    return tiny_splits().train


def predictions(series, *, seed=0):
    """Random predictions for all series in one batch."""
    batch = series.batch(range(len(series)))
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(batch.targets.shape, generator=generator)
    return batch, Prediction(mean, 0.05 + torch.rand(batch.targets.shape, generator=generator))


def test_every_metric_against_scipy_entry_by_entry(series):
    batch, prediction = predictions(series)
    score_sums = ScoreSums(series.target_shape, "gaussian")
    score_sums.add(prediction, batch)
    scores = score_sums.scores()
    for region, mask in (("all", batch.target_mask), ("hidden", batch.target_mask & batch.hidden)):
        x, mean = batch.targets[mask].double().numpy(), prediction.mean[mask].double().numpy()
        std = prediction.var[mask].double().sqrt().numpy()
        found = scores.regions[region]
        assert found["count"] == len(x) > 0
        assert found["mse"] == pytest.approx(((x - mean) ** 2).mean())
        assert found["mae"] == pytest.approx(np.abs(x - mean).mean())
        assert found["nll"] == pytest.approx(-stats.norm.logpdf(x, mean, std).sum() / mask.any(-1).sum().item())
        for level in (50, 90):
            low, high = stats.norm.interval(level / 100, mean, std)
            assert found[f"coverage{level}"] == pytest.approx(((low <= x) & (x <= high)).mean())


@given(st.floats(-6, 6))
def test_crps_is_the_integral_that_defines_it(z):
    below = integrate.quad(lambda x: stats.norm.cdf(x) ** 2, -12, z)[0]
    above = integrate.quad(lambda x: stats.norm.sf(x) ** 2, z, 12)[0]
    assert float(gaussian_crps(torch.tensor([z], dtype=torch.float64))) == pytest.approx(below + above, abs=1e-7)


def test_features_apart_add_up_to_the_whole(series):
    batch, prediction = predictions(series)
    score_sums = ScoreSums(series.target_shape, "gaussian")
    score_sums.add(prediction, batch)
    scores, counts = score_sums.scores(), batch.target_mask.sum((0, 1)).double()
    by_feature = torch.tensor(scores.features["all"]["mse"], dtype=torch.float64)
    assert float((by_feature * counts).sum() / counts.sum()) == pytest.approx(scores["mse"])
    first = batch.target_mask[..., 0]
    error = (batch.targets - prediction.mean)[..., 0][first].double().square().mean()
    assert scores.features["all"]["mse"][0] == pytest.approx(float(error))


def test_scores_do_not_depend_on_the_batches(series):
    model = create("gru-dt", spec_of(series), hidden_size=5)
    whole = evaluate(model, series, batch_size=len(series))
    for size in (1, 3, 7):
        found = evaluate(model, series, batch_size=size)
        for region in ("all", "hidden"):
            assert found.regions[region] == pytest.approx(whole.regions[region], rel=1e-5)


def test_shares_of_several_processes_add_up(series):
    model = create("gru", spec_of(series), hidden_size=5)
    whole, parts = evaluate(model, series, batch_size=4), []
    evaluate(model, series, batch_size=4, share=(1, 2), total=lambda sums: parts.append(sums) or sums)
    both = evaluate(model, series, batch_size=4, share=(0, 2), total=lambda sums: sums + parts[0])
    assert both.regions["all"] == pytest.approx(whole.regions["all"], rel=1e-9)


def test_the_headline_is_the_region_that_the_task_scores():
    series = tiny_series().train
    later = cru.data.extrapolation(series, fraction=0.5)
    assert evaluate(create("mean", spec_of(later)), later).scored == "hidden"
    everything = cru.data.interpolation(series, hidden=0.0)
    scores = evaluate(create("mean", spec_of(everything)), everything)
    assert scores.scored == "all" and scores.regions["hidden"] == {} and math.isnan(scores["nonsense"])


def test_pictures_have_a_bernoulli_likelihood():
    from cru.data.datasets import pendulum

    frames = pendulum.generate(pendulum.INTERPOLATION, 2)
    series = cru.data.interpolation(frames, keep_before=5.0)
    model = create("mean", spec_of(series))
    scores = evaluate(model, series)
    batch = series.batch([0, 1])
    assert set(scores.regions["all"]) == {"mse", "mae", "nll", "count"}
    assert scores.regions["all"]["count"] == batch.targets.numel()
    assert scores["mse"] == pytest.approx(float((batch.targets.double() ** 2).mean()))  # it has seen no training set
    hidden = int(batch.hidden.sum()) * 576
    assert scores.regions["hidden"]["count"] == hidden > 0
    assert scores["nll"] == pytest.approx(100 * float(batch.targets.double().sum((2, 3, 4)).mean()), rel=1e-6)


def test_a_nan_prediction_is_not_hidden(series):
    batch, prediction = predictions(series)
    prediction.mean[0, 0, :] = torch.nan
    score_sums = ScoreSums(series.target_shape, "gaussian")
    score_sums.add(prediction, batch)
    assert math.isnan(score_sums.scores()["mse"])


def test_predict_leaves_the_mode_of_the_model(series):
    model = create("gru", spec_of(series), hidden_size=5).train()
    assert len(list(predict(model, series, batch_size=6))) == -(-len(series) // 6)
    assert model.training
    with pytest.raises(ValueError, match="must have a task"):
        evaluate(model, cru.data.make_series(np.zeros(1), np.zeros((1, 1)), np.array([0, 1]), ids=["a"], names=["x"]))


def test_the_mean_over_series_and_features_of_each_ones_own_error():
    """By a loop over series and features: one that is never measured counts as 0."""
    rng = np.random.default_rng(0)
    shape = (4, 6, 3)
    targets, mean, mask = rng.random(shape), rng.random(shape), rng.random(shape) < 0.4
    mask[0, :, 1] = False
    given = {name: torch.tensor(targets) for name in ("values", "targets")}
    given |= {name: torch.tensor(mask) for name in ("mask", "target_mask", "hidden")}
    times, lengths = torch.arange(6.0, dtype=torch.float64).expand(4, 6), torch.full((4,), 6)
    batch = cru.data.Batch(times=times, lengths=lengths, ids=tuple("abcd"), **given)
    score_sums = ScoreSums(target_shape=(3,), likelihood="gaussian")
    score_sums.add(Prediction(torch.tensor(mean), torch.ones(shape, dtype=torch.float64)), batch)
    found = score_sums.scores().features["all"]["mse_of_series"]
    own = np.zeros((4, 3))
    for i, f in np.ndindex(4, 3):
        errors = (targets - mean)[i, mask[i, :, f], f]
        own[i, f] = np.mean(errors**2) if len(errors) else 0.0
    assert found == pytest.approx(np.mean(own, 0).tolist())
    ranges = [([0.0, 0.0, 0.0], [1.0, 1.0, 1.0]), ([0.0, 0.0, -1.0], [1.0, 1.0, 1.0])]
    assert rubanova_mse(found, [1.0, 1.0, 1.0], ranges) == pytest.approx((found[0] + found[1] + found[2] / 4) / 3)
