import numpy as np
import pytest
from scipy import optimize, special, stats

from cru.forecaster.calibration import Calibration
from cru.forecaster.recalibration import PRIOR, RANGES, Recalibration, fit_logistic


def rain(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Predicted means, and errors that are skewed where the mean is small and symmetric where it is large."""
    rng = np.random.default_rng(seed)
    mean = rng.uniform(0, 4, (n, 1))
    skewed = rng.exponential(1, (n, 1)) - 1
    return mean, np.where(rng.random((n, 1)) < mean / 4, rng.normal(0, 2, (n, 1)), 0.5 * skewed)


def test_scores_are_normal_at_every_mean():
    mean, errors = rain(40_000, 0)
    every = np.ones(errors.shape, bool)
    fitted = Recalibration.fit(errors, mean, every, np.array([True]))
    assert fitted.used.all() and fitted.means.shape == (1, RANGES) and (np.diff(fitted.means) > 0).all()
    mean, errors = rain(40_000, 1)
    scores = fitted.scores(errors, mean, np.ones(errors.shape, bool))
    for low in range(4):
        some = (mean >= low) & (mean < low + 1)
        for p in (0.05, 0.25, 0.75, 0.95):
            assert (scores[some] <= stats.norm.ppf(p)).mean() == pytest.approx(p, abs=0.02)
    inside = np.abs(scores) < 3  # beyond the outermost quantiles there is nothing to invert
    np.testing.assert_allclose(fitted.errors(scores, mean)[inside], errors[inside], atol=1e-6)


def test_it_survives_json_and_keeps_other_variables():
    mean, errors = (np.tile(part, (1, 3)) for part in rain(2000, 2))
    fitted = Recalibration.fit(errors, mean, np.ones(errors.shape, bool), np.array([False, True, False]))
    again = Recalibration.from_dict(fitted.to_dict())
    for one in (fitted, again):
        scores = one.scores(errors, mean, np.ones(errors.shape, bool))
        np.testing.assert_array_equal(scores[:, ::2], errors[:, ::2])
        np.testing.assert_allclose(one.errors(scores, mean)[:, ::2], errors[:, ::2])
    few = Recalibration.fit(errors[:100], mean[:100], np.ones((100, 3), bool), np.ones(3, bool))
    assert not few.used.any()


def test_equal_errors_get_scores_that_are_normal():
    """As on dry days, where prediction and value are always the same."""
    rng = np.random.default_rng(4)
    errors = np.where(rng.random((20_000, 1)) < 0.7, -0.5, rng.exponential(1, (20_000, 1)))
    mean = np.zeros(errors.shape)
    fitted = Recalibration.fit(errors, mean, np.ones(errors.shape, bool), np.array([True]))
    scores = fitted.scores(errors, mean, np.ones(errors.shape, bool))
    assert stats.kstest(scores[:, 0], "norm").statistic < 0.05
    assert Calibration.fit(
        scores, np.ones(errors.shape, bool), np.ones(errors.shape), series=100, constant=np.zeros(1, bool)
    ).quantile(0.95, np.ones((1, 1)))[0, 0] == pytest.approx(1.645, abs=0.06)


@pytest.mark.parametrize(("shift", "slope", "count"), [(0.0, 1.0, 4000), (1.0, 0.5, 4000), (-0.7, 1.6, 60)])
def test_the_logistic_regression_minimises_its_loss(shift, slope, count):
    rng = np.random.default_rng(5)
    mean = rng.uniform(0.02, 0.98, count)
    event = (rng.random(count) < special.expit(shift + slope * special.logit(mean))).astype(float)

    def loss(found):
        x = found[0] + found[1] * special.logit(mean)
        return np.logaddexp(0, x).sum() - (event * x).sum() + PRIOR / 2 * ((found - [0, 1]) ** 2).sum()

    fitted = fit_logistic(mean, event)
    np.testing.assert_allclose(fitted, optimize.minimize(loss, [0.0, 1.0]).x, atol=1e-3)
    if count > 1000:
        np.testing.assert_allclose(fitted, [shift, slope], atol=0.15)


def test_a_probability_never_falls_with_the_mean_and_needs_no_events():
    rng = np.random.default_rng(6)
    mean = rng.uniform(0, 1, 500)
    assert fit_logistic(mean, (rng.random(500) > mean).astype(float))[1] == 0
    np.testing.assert_allclose(fit_logistic(np.empty(0), np.empty(0)), [0, 1])
    never = fit_logistic(mean, np.zeros(500))
    assert np.isfinite(never).all()
