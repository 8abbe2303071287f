from statistics import NormalDist

import numpy as np
import pytest
from scipy import stats

from cru.forecaster import calibration
from cru.forecaster.calibration import (
    CALIBRATION,
    CALIBRATION_PROBABILITIES,
    LEAD_NEVER_OBSERVED,
    NORMAL,
    SPECIAL_LEADS,
    Z90,
    Calibration,
    guarantee,
    widening,
)
from cru.forecaster.kinds import Kinds
from cru.forecaster.normal_scores import NormalScores


def fit(errors, counted, lead, *, series):
    """Of variables that all vary."""
    return Calibration.fit(errors, counted, lead, series=series, constant=np.zeros(errors.shape[1], bool))


def test_the_normal_quantiles():
    np.testing.assert_allclose(NORMAL, stats.norm.ppf(CALIBRATION_PROBABILITIES), atol=1e-4)


def test_skewed_and_wide_errors_get_intervals_that_cover():
    rng = np.random.default_rng(0)

    def draw(n):
        lead = rng.choice([LEAD_NEVER_OBSERVED, 0.0, 1.0, 10.0, 100.0, np.inf], (n, 2))
        wider = np.where(lead <= 0, 1 - 4 * lead, 1 + np.log10(np.clip(lead, 1, 1000)))
        return np.stack([3 * rng.exponential(1, n), rng.normal(0, 0.2, n)], 1) * wider, lead

    errors, lead = draw(120_000)
    fitted = fit(errors, np.ones(errors.shape, bool), lead, series=1000)
    fresh, lead = draw(120_000)
    for p in (0.05, 0.25, 0.6, 0.95, 0.99):
        below = fresh <= fitted.quantile(p, lead)
        for one in np.unique(lead):
            for k in range(2):
                assert below[lead[:, k] == one, k].mean() == pytest.approx(p, abs=0.02)
    drawn = fitted.draw(rng.random(fresh.shape), lead)
    for k in range(2):
        assert stats.ks_2samp(drawn[:, k], fresh[:, k]).statistic < 0.03


def test_few_errors_still_cover_on_average():
    """The promise of conformal intervals for a finite sample: on average over calibrations, a new value is inside."""
    rng = np.random.default_rng(1)
    inside = []
    for _ in range(300):
        errors = rng.standard_t(3, (CALIBRATION.min_errors, 1))
        fitted = fit(errors, np.ones(errors.shape, bool), np.ones(errors.shape), series=1000)
        low, high = (fitted.quantile(p, np.ones((1, 1)))[0, 0] for p in (0.05, 0.95))
        inside.append(stats.t.cdf(high, 3) - stats.t.cdf(low, 3))
    assert np.mean(inside) == pytest.approx(0.9, abs=0.01)


def test_with_too_few_errors_others_answer():
    rng = np.random.default_rng(2)
    errors = np.stack([rng.normal(0, 2, 4000), rng.normal(0, 9, 4000)], 1)
    counted = np.ones(errors.shape, bool)
    counted[:, 1] = np.arange(4000) < 10  # the second variable is hardly ever there
    fitted = fit(errors, counted, np.full(errors.shape, 3.0), series=1000)
    assert fitted.quantile(0.975, np.full((1, 2), 3.0))[0] == pytest.approx([3.92, 3.92], abs=0.3)
    nothing = fit(errors, np.zeros(errors.shape, bool), np.full(errors.shape, 3.0), series=1000)
    at = np.tile(np.array([[0.0], [3.0], [np.inf]]), 2)
    assert nothing.quantile(0.975, at) == pytest.approx(np.full((3, 2), 1.96), abs=1e-3)


def test_between_leads_it_is_interpolated_and_beyond_them_constant():
    widths = np.array([16, 8, 1, 2, 4])[:, None, None]
    plain = np.zeros(1, bool), *np.ones((2, 1)), Kinds.numbers(1), NormalScores.none(1)
    made = Calibration(np.array([*SPECIAL_LEADS, 1.0, 100.0]), widths * NORMAL[None, None], np.eye(1), *plain)
    at = np.array([LEAD_NEVER_OBSERVED, 0.0, 0.01, 1.0, 10.0, 100.0, 1e6, np.inf])[:, None]
    factor = made.quantile(0.95, at)[:, 0] / NormalDist().inv_cdf(0.95)
    assert factor == pytest.approx([16, 1, 2, 2, 3, 4, 4, 8], rel=1e-4)
    again = Calibration.from_dict(made.to_dict(), made.kinds)
    np.testing.assert_array_equal(again.leads, made.leads)
    np.testing.assert_array_equal(again.quantiles, made.quantiles)


def test_few_series_tell_no_direction_and_no_leads():
    rng = np.random.default_rng(3)
    errors, lead = np.abs(rng.normal(0, 1, (4000, 1))), rng.choice([1.0, 50.0], (4000, 1))
    few, many = (fit(errors, np.ones(errors.shape, bool), lead, series=n) for n in (12, 500))
    at = np.array([[1.0], [50.0]])
    np.testing.assert_allclose(few.quantile(0.05, at), -few.quantile(0.95, at), rtol=0.02)
    assert (many.quantile(0.05, at) > 0).all() and len(few.leads) == 4 and len(many.leads) > 4


def test_what_the_variables_share_is_found_once_not_for_each_of_them(monkeypatch):
    found = []

    def counted(errors):
        found.append(len(errors))
        return quantiles(errors)

    quantiles = calibration._quantiles
    monkeypatch.setattr(calibration, "_quantiles", counted)
    errors = np.random.default_rng(4).normal(0, 3, (10, 500))  # too few of each variable
    fitted = fit(errors, np.ones(errors.shape, bool), np.ones(errors.shape), series=1000)
    assert found == [5000]
    assert fitted.quantile(0.975, np.ones((1, 500)))[0] == pytest.approx(np.full(500, 5.88), abs=0.3)


def test_a_range_with_few_errors_takes_those_of_the_nearest_not_of_the_average():
    rng = np.random.default_rng(5)
    lead = np.exp(rng.uniform(np.log(1), np.log(1000), (8000, 2)))
    errors = rng.normal(0, 1, lead.shape) * lead**0.5  # far ahead they are larger
    counted = np.ones(errors.shape, bool)
    counted[:, 1] = (lead[:, 1] < 100) | (np.arange(8000) < 20)  # hardly ever asked for far ahead
    fitted = fit(errors, counted, lead, series=1000)
    near, far, farther = fitted.quantile(0.95, np.array([[2.0, 2.0], [60.0, 60.0], [900.0, 900.0]])) / Z90
    assert far == pytest.approx([60**0.5, 60**0.5], rel=0.25) and near == pytest.approx([2**0.5, 2**0.5], rel=0.25)
    assert farther[0] > 2.5 * far[0] and farther[1] >= 0.9 * far[1]
    assert len(fitted.leads) == len(SPECIAL_LEADS) + CALIBRATION.max_ranges


def test_variables_are_drawn_together_as_their_errors_are():
    rng = np.random.default_rng(6)
    first = rng.normal(0, 1, 3000)
    errors = np.stack([first, np.exp(0.9 * first + 0.1 * rng.normal(0, 1, 3000)), rng.normal(0, 1, 3000)], 1)
    lead = np.ones(errors.shape)
    fitted = fit(errors, rng.random(errors.shape) < 0.9, lead, series=1000)
    drawn = fitted.draw(fitted.uniform(rng, 3000), lead)
    assert stats.spearmanr(drawn[:, 0], drawn[:, 1]).statistic > 0.8
    assert abs(stats.spearmanr(drawn[:, 0], drawn[:, 2]).statistic) < 0.1
    for k in range(3):
        assert stats.ks_2samp(drawn[:, k], errors[:, k]).statistic < 0.05
    again = Calibration.from_dict(fitted.to_dict(), fitted.kinds)
    np.testing.assert_array_equal(again.correlation, fitted.correlation)
    counts = rng.poisson(0.1, (5000, 2)).astype(float)  # mostly equal, and independent
    both = fit(np.hstack([counts, -counts]), np.ones((5000, 4), bool), np.ones((5000, 4)), series=1000).correlation
    assert abs(both[0, 1]) < 0.06 and both[0, 2] == pytest.approx(-1, abs=0.01)
    wide = fit(np.ones((5, 300)), np.ones((5, 300), bool), np.ones((5, 300)), series=5)
    assert Calibration.from_dict(wide.to_dict(), wide.kinds).uniform(rng, 4).shape == (
        4,
        300,
    )  # too many to be told together


def test_a_constant_has_no_errors_and_makes_nobody_else_surer():
    rng = np.random.default_rng(8)
    errors = np.concatenate([rng.normal(0, 1, (400, 2)), np.zeros((400, 5))], 1)
    counted = np.ones(errors.shape, bool)
    counted[50:, 1] = False  # read too rarely for quantiles of its own
    never = np.arange(7) >= 2
    fitted = Calibration.fit(errors, counted, np.ones(errors.shape), series=1000, constant=never)
    high = fitted.quantile(0.95, np.ones((1, 7)))[0]
    assert high[:2] == pytest.approx([1.645, 1.645], abs=0.3) and (high[2:] == 0).all() and fitted.measured
    assert (Calibration.from_dict(fitted.to_dict(), fitted.kinds).constant == never).all()


@pytest.mark.parametrize(("series", "factor"), [(1, 1.074), (5, 1.013), (20, 1.0), (1000, 1.0)])
def test_few_series_have_wider_intervals_and_promise_less(series, factor):
    assert widening(series) == pytest.approx(factor, abs=1e-3)
    errors = np.random.default_rng(0).normal(size=(4000, 1))
    fitted = fit(errors, np.ones(errors.shape, bool), np.full(errors.shape, 3.0), series=100)
    np.testing.assert_allclose(fitted.widened(series).quantiles, fitted.quantiles * widening(series), atol=1e-6)
    assert ("guarantee nothing" in guarantee(series)) == (series < 20)
