import numpy as np
import pytest
import torch

from cru.data.random import generator
from cru.evaluation.diagnostics import (
    calibration,
    error_by_gap,
    gain_by_missing,
    gain_by_noise,
    gain_groups,
    since_seen,
)
from cru.evaluation.metrics import ScoreSums
from cru.models import Prediction
from tests.evaluation.handmade import filled_in, frames, output, weather
from tests.training.tiny import tiny_splits


def drawn(spread: float):
    """Targets from N(mean, std²), with a std that is said to be ``spread`` times as large."""
    rng = generator(1, "test")
    mean, std = rng.standard_normal((4000, 3)), 0.5 + rng.random((4000, 3))
    return output(np.arange(4000), mean + std * rng.standard_normal(mean.shape), mean, spread * std)


def test_an_honest_model_lies_on_the_diagonal():
    curve = calibration([drawn(1.0)])
    np.testing.assert_allclose(curve.y, curve.x, atol=0.015)
    assert curve.counts[0] == 12000


def test_narrow_intervals_are_below_the_diagonal_and_wide_ones_above():
    boastful, timid = calibration([drawn(0.5)]), calibration([drawn(2.0)])
    assert all(y < x for x, y in zip(boastful.x, boastful.y, strict=True))
    assert all(y > x for x, y in zip(timid.x, timid.y, strict=True))


def test_the_levels_agree_with_the_scores_of_the_ledger():
    """50 and 90 % are in `cru.evaluation.metrics`, too, by another way."""
    test = tiny_splits().test
    batch = test.batch([0])
    mean, var = torch.zeros_like(batch.targets), torch.full_like(batch.targets, 0.5)
    score_sums = ScoreSums(test.target_shape, "gaussian")
    score_sums.add(Prediction(mean, var), batch)
    known = batch.target_mask[0].numpy()
    series = output(batch.times[0], batch.targets[0], mean[0], np.sqrt(0.5))._replace(target_mask=known)
    curve = calibration([series])
    at = dict(zip(curve.x, curve.y, strict=True))
    assert at[0.5] == pytest.approx(score_sums.scores()["coverage50"])
    assert at[0.9] == pytest.approx(score_sums.scores()["coverage90"])


def test_only_what_is_scored_counts():
    station = weather()
    assert calibration([station], scored="hidden").counts[0] == station.hidden.sum() < station.hidden.size


def test_images_have_no_intervals():
    assert calibration([filled_in()]) is None


def test_since_seen_by_hand():
    mask = np.array([[False], [True], [False], [True], [True], [False]])
    series = output([0, 1, 3, 3, 7, 8], np.zeros((6, 1)), np.zeros((6, 1)), mask=mask)
    np.testing.assert_array_equal(since_seen(series), [np.nan, np.nan, 2, 2, 4, 1])


def test_since_seen_without_any_observation():
    assert np.isnan(since_seen(output([0, 1], np.zeros((2, 1)), np.zeros((2, 1)), mask=np.zeros((2, 1), bool)))).all()


def test_error_by_gap_grows_as_it_was_made_to():
    """Errors of exactly the gap, in units of the scale."""
    times = np.cumsum(generator(2, "test").integers(1, 5, 400)).astype(float)
    gap = np.diff(times, prepend=times[0])[:, None]
    series = output(times, np.hstack([gap, 10 * gap]), np.zeros((400, 2)))
    curve = error_by_gap([series], scale=(1.0, 10.0))
    np.testing.assert_allclose(curve.x, [1, 2, 3, 4])
    np.testing.assert_allclose(curve.y, [1, 2, 3, 4])
    assert sum(curve.counts) == 2 * 399  # the first time point has no gap


def test_many_gaps_are_grouped():
    curve = error_by_gap([weather()], scored="hidden")
    assert 5 < len(curve.x) <= 12 and curve.x == sorted(curve.x) and sum(curve.counts) == 5 * 365


def gaps_of(counts):
    """A series with so many gaps of 1, 2, ...; the error is the gap."""
    gaps = np.repeat(np.arange(1, len(counts) + 1.0), counts)
    return output(
        np.concatenate([[0], np.cumsum(gaps)]), np.concatenate([[0], gaps])[:, None], np.zeros((len(gaps) + 1, 1))
    )


def test_rare_long_gaps_stand_by_themselves():
    curve = error_by_gap([gaps_of([5000, 30, 9, 4, 2, 1])])
    assert curve.x == curve.y == [1, 2, 3, 4, 5, 6] and curve.counts == [5000, 30, 9, 4, 2, 1]


def test_many_kinds_of_rare_long_gaps_are_not_put_into_one():
    curve = error_by_gap([gaps_of([5000] + [2] * 22)])
    assert len(curve.x) == 12 and curve.counts[0] == 5000 and max(curve.counts[1:]) <= 4 and sum(curve.counts) == 5044


def test_nothing_to_diagnose_is_said():
    for diagnose in (calibration, error_by_gap, gain_by_noise):
        with pytest.raises(ValueError, match="`predictions` must hold at least one series, got none"):
            diagnose([])
    with pytest.raises(ValueError, match="with a Kalman gain, got none"):
        gain_groups([filled_in()])
    assert gain_by_noise([frames(4)]) is None  # shorter than what is left out


def test_gain_by_noise_is_by_noise():
    spread = gain_by_noise([frames(400)], skip=0, bins=8)
    np.testing.assert_allclose(spread.x, (np.arange(8) + 0.5) / 8)
    np.testing.assert_allclose([row[2] for row in spread.quantiles], 3 - 2 * np.array(spread.x), atol=0.01)
    assert gain_by_noise([frames(noisy=False)]) is None and gain_by_noise([filled_in()]) is None


def test_gain_by_the_number_of_missing_features():
    mask = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 1], [1, 1, 0], [0, 0, 0]], bool)
    gain = np.array([4.0, 2.0, 1.0, 3.0, np.nan])
    series = output(np.arange(5), np.zeros((5, 3)), np.zeros((5, 3)), mask=mask, gain=gain)
    groups = gain_groups([series])
    assert {degree: sorted(group) for degree, group in groups.items()} == {0: [4.0], 1: [2.0, 3.0], 2: [1.0]}
    spread = gain_by_missing([series])
    assert (
        spread.x == [0, 1, 2] and [row[2] for row in spread.quantiles] == [4.0, 2.5, 1.0] and spread.counts == [1, 2, 1]
    )
    assert gain_by_missing([frames()]) is None
