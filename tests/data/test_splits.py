import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cru.data import Scaler, Splits, extrapolation, make_series, scale, split
from cru.data.datasets.pendulum import INTERPOLATION, generate


def many(count, features=2, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.normal(3, 5, (count * 4, features))
    values[rng.random(values.shape) < 0.3] = np.nan
    times = np.tile(np.arange(4.0), count)
    return make_series(times, values, np.arange(0, count * 4 + 1, 4), ids=range(count), names=["x", "y"][:features])


@given(st.integers(3, 60), st.integers(0, 5))
def test_sets_never_overlap_and_lose_nothing(count, seed):
    parts = split(many(count), seed=seed)
    ids = [i for part in parts for i in part.ids]
    assert len(ids) == count and set(ids) == {str(k) for k in range(count)}
    assert min(len(part) for part in parts) >= 1
    assert parts.test.ids == split(many(count), seed=seed).test.ids


def test_shares_and_known_order():
    parts = split(many(1181))
    assert [len(part) for part in parts] == [709, 236, 236]
    assert split(many(10), seed=0).test.ids == split(many(10), seed=0).test.ids
    assert split(many(100), seed=0).test.ids != split(many(100), seed=1).test.ids
    assert split(many(10), seed=7).test.ids == ("5", "9")  # the same on every machine


def test_one_series_cannot_be_split():
    with pytest.raises(ValueError, match=r"at least 3 series to train, validate and test on, got 1"):
        split(many(1))
    with pytest.raises(ValueError, match=r"add up to 1"):
        split(many(9), (0.5, 0.2, 0.2))


def test_first_of_each():
    parts = split(many(20)).first(train=5, test=1)
    assert [len(part) for part in parts] == [5, 4, 1]


def test_default_scaling_is_fitted_on_the_training_set_alone():
    parts = split(many(50))
    scaled = scale(parts)
    seen = scaled.train.values[scaled.train.mask[:, 0], 0]
    assert seen.mean() == pytest.approx(0, abs=1e-9) and seen.std() == pytest.approx(1)
    assert scaled.train.scaler == scaled.validation.scaler == scaled.test.scaler
    poisoned = Splits(parts.train, parts.validation, extreme(parts.test))
    assert np.array_equal(scale(poisoned).train.values, scaled.train.values)
    assert not scaled.test.values[~scaled.test.mask].any()


def extreme(series):
    return make_series(
        series.times, np.where(series.mask, 1e6, np.nan), series.offsets, ids=series.ids, names=series.names
    )


def test_each_set_by_itself_fills_zero_to_one():
    for part in scale(split(many(50)), fit_on="each", kind="min-max"):
        for k in range(2):
            seen = part.values[part.mask[:, k], k]
            assert seen.min() == 0 and seen.max() == pytest.approx(1)


def test_scaler_inverts_predictions_and_survives_json():
    parts = scale(split(many(30)))
    scaler = Scaler.from_dict(json.loads(json.dumps(parts.train.scaler.to_dict())))
    assert scaler == parts.train.scaler
    original = split(many(30)).train
    assert np.allclose(scaler.inverse(parts.train.values)[parts.train.mask], original.values[original.mask])
    mean = scaler.inverse(torch.zeros(4, 7, 2))
    assert torch.allclose(mean, torch.tensor(scaler.shift).expand(4, 7, 2))
    std = scaler.inverse_std(torch.ones(2, dtype=torch.float64))
    assert std.tolist() == pytest.approx(list(scaler.scale)) and std.dtype == torch.float64


def test_constant_and_unseen_features_are_only_shifted():
    values = np.array([[5.0, np.nan], [5.0, np.nan]])
    for kind in ("standard", "min-max"):
        scaler = Scaler.fit(np.nan_to_num(values), ~np.isnan(values), kind)
        assert scaler == Scaler((5.0, 0.0), (1.0, 1.0))
    for length in range(2, 60):  # the deviation of many a 0.1 is not 0
        assert Scaler.fit(np.full((length, 1), 0.1), np.ones((length, 1), bool)).scale == (1.0,)
    low = Scaler.fit(np.array([[2.0], [4.0]]), np.ones((2, 1), bool), "min-max", through_zero=True)
    assert low == Scaler((0.0,), (4.0,))


def test_wrong_scaling_is_refused(ragged):
    parts = split(many(9))
    with pytest.raises(ValueError, match=r"before its task"):
        scale(parts.map(lambda part: extrapolation(part, fraction=0.5)))
    with pytest.raises(ValueError, match=r"it has 1, the series"):
        ragged.scaled_by(Scaler((0.0,), (1.0,)))
    images = generate(INTERPOLATION, 3)
    with pytest.raises(ValueError, match=r"not images"):
        scale(split(images))
