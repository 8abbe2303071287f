import numpy as np
import pytest
from scipy import optimize, special, stats

from cru.forecaster.calibration import Calibration
from cru.forecaster.normal_scores import (
    CALIBRATION_PROBABILITIES,
    NORMAL_SCORE,
    NormalScores,
    _rising_share,
    fit_logistic,
)


def fitted_to(errors: np.ndarray, mean: np.ndarray, every: np.ndarray) -> NormalScores:
    """Fit to values that are never the lowest possible one."""
    return NormalScores.fit(errors, mean, errors, every, np.array([True]), ~every)


def rain(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Predicted means, and errors that are skewed where the mean is small and symmetric where it is large."""
    rng = np.random.default_rng(seed)
    mean = rng.uniform(0, 4, (n, 1))
    skewed = rng.exponential(1, (n, 1)) - 1
    return mean, np.where(rng.random((n, 1)) < mean / 4, rng.normal(0, 2, (n, 1)), 0.5 * skewed)


def test_scores_are_normal_at_every_mean():
    mean, errors = rain(40_000, 0)
    every = np.ones(errors.shape, bool)
    fitted = fitted_to(errors, mean, every)
    assert fitted.used.all() and fitted.means.shape == (1, NORMAL_SCORE.ranges) and (np.diff(fitted.means) > 0).all()
    mean, errors = rain(40_000, 1)
    scores = fitted.scores(errors, mean, every)
    for low in range(4):
        some = (mean >= low) & (mean < low + 1)
        for p in (0.05, 0.25, 0.75, 0.95):
            assert (scores[some] <= stats.norm.ppf(p)).mean() == pytest.approx(p, abs=0.02)
    inside = np.abs(scores) < 3  # beyond the outermost quantiles there is nothing to invert
    np.testing.assert_allclose(fitted.errors(scores, mean)[inside], errors[inside], atol=1e-6)


def test_it_survives_json_and_keeps_other_variables():
    mean, errors = (np.tile(part, (1, 3)) for part in rain(2000, 2))
    every, edge = np.ones(errors.shape, bool), -mean
    fitted = NormalScores.fit(errors, mean, edge, every, np.array([False, True, False]), errors < -0.4)
    again = NormalScores.from_dict(fitted.to_dict())
    for one in (fitted, again):
        scores = one.scores(errors, mean, every)
        np.testing.assert_array_equal(scores[:, ::2], errors[:, ::2])
        np.testing.assert_allclose(one.errors(scores, mean)[:, ::2], errors[:, ::2])
        assert not one.at_lowest(scores, edge)[:, ::2].any() and one.at_lowest(scores, edge)[:, 1].any()
    few = NormalScores.fit(errors[:100], mean[:100], edge[:100], every[:100], np.ones(3, bool), ~every[:100])
    assert not few.used.any()


def test_equal_errors_get_scores_that_are_normal():
    """As where prediction and value are always the same."""
    rng = np.random.default_rng(4)
    errors = np.where(rng.random((20_000, 1)) < 0.7, -0.5, rng.exponential(1, (20_000, 1)))
    mean, every = np.zeros(errors.shape), np.ones(errors.shape, bool)
    fitted = fitted_to(errors, mean, every)
    scores = fitted.scores(errors, mean, every)
    assert stats.kstest(scores[:, 0], "norm").statistic < 0.05
    calibration = Calibration.fit(scores, every, np.ones(errors.shape), series=100, constant=np.zeros(1, bool))
    assert calibration.quantile(0.95, np.ones((1, 1)))[0, 0] == pytest.approx(1.645, abs=0.06)


def test_a_quantile_below_the_probability_of_a_dry_day_is_no_rain():
    rng = np.random.default_rng(0)
    edge = -rng.uniform(0, 4, (40_000, 1))  # the error of a dry day
    dry = rng.random(edge.shape) > -edge / 4
    errors, every = np.where(dry, edge, rng.exponential(1, edge.shape)), np.ones(edge.shape, bool)
    fitted = NormalScores.fit(errors, -edge, edge, every, np.array([True]), dry)
    share = np.interp(edge[:, 0], fitted.edges[0], fitted.lowest[0])
    np.testing.assert_allclose(share, 1 + edge[:, 0] / 4, atol=0.05)
    for p in (0.05, 0.4, 0.9):
        found = fitted.at_lowest(np.full(edge.shape, stats.norm.ppf(p)), edge)
        clear = np.abs(1 + edge / 4 - p) > 0.05
        np.testing.assert_array_equal(found[clear], (p < 1 + edge / 4)[clear])


def test_the_share_of_events_is_an_isotonic_regression():
    rng = np.random.default_rng(1)
    x = rng.normal(size=5000)
    event = rng.random(5000) < 0.5 + 0.4 * np.sin(3 * x) * (x < 0)
    places, share = _rising_share(x, event)
    assert (np.diff(places) >= 0).all() and (np.diff(share) >= 0).all()
    bounds = np.round(5000 * (CALIBRATION_PROBABILITIES[1:] + CALIBRATION_PROBABILITIES[:-1]) / 2).astype(int)
    parts = np.split(event[np.argsort(x)], bounds)
    exact = optimize.isotonic_regression([part.mean() for part in parts], weights=[len(part) for part in parts]).x
    np.testing.assert_allclose(share, exact, atol=1e-12)


@pytest.mark.parametrize(("shift", "slope", "count"), [(0.0, 1.0, 4000), (1.0, 0.5, 4000), (-0.7, 1.6, 60)])
def test_the_logistic_regression_minimises_its_loss(shift, slope, count):
    rng = np.random.default_rng(5)
    mean = rng.uniform(0.02, 0.98, count)
    event = (rng.random(count) < special.expit(shift + slope * special.logit(mean))).astype(float)

    def loss(found):
        x = found[0] + found[1] * special.logit(mean)
        return np.logaddexp(0, x).sum() - (event * x).sum() + NORMAL_SCORE.ridge / 2 * ((found - [0, 1]) ** 2).sum()

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
