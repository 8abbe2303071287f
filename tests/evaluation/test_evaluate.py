import numpy as np
import pytest
import torch

import cru
from cru.evaluation.evaluate import gain_norm, predict_series
from tests.training.tiny import tiny_series, tiny_splits


def made(model: str, series):
    torch.manual_seed(0)
    options = {"num_basis": 2} if model in ("cru", "f-cru") else {}
    return cru.models.create(model, cru.models.spec_of(series), hidden_size=4, **options).eval()


def test_every_series_once_and_without_padding():
    test = tiny_splits().test
    model = made("f-cru", test)
    found = list(predict_series(model, test, batch_size=3))
    assert [output.id for output in found] == list(test.ids)
    for number, output in enumerate(found):
        rows = slice(test.offsets[number], test.offsets[number + 1])
        np.testing.assert_array_equal(output.times, test.times[rows])
        np.testing.assert_array_equal(output.mask, test.mask[rows])
        alone = model(test.batch([number]))
        np.testing.assert_allclose(output.mean, alone.mean[0].detach(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(output.std**2, alone.var[0].detach(), rtol=1e-4)


def test_features_come_in_the_units_of_the_data():
    plain = tiny_series()
    scaled = cru.data.scale(plain).map(lambda part: cru.data.interpolation(part, hidden=0.3, seed=3))
    same = plain.map(lambda part: cru.data.interpolation(part, hidden=0.3, seed=3))
    model = made("gru", scaled.test)
    for output, other in zip(predict_series(model, scaled.test), predict_series(model, same.test), strict=True):
        known = output.target_mask
        np.testing.assert_allclose(output.targets[known], other.targets[known], atol=1e-5)
    first, scaler = next(predict_series(model, scaled.test)), scaled.test.scaler
    batch = scaled.test.batch([0])
    mean, var = (tensor[0].detach().double().numpy() for tensor in model(batch)[:2])
    np.testing.assert_allclose(first.mean, mean * scaler.scale + scaler.shift, rtol=1e-5)
    np.testing.assert_allclose(first.std, np.sqrt(var) * scaler.scale, rtol=1e-5)


def test_gain_is_the_norm_of_the_whole_matrix_and_nan_where_nothing_was_seen():
    test = tiny_splits(hidden=0.5).test
    model = made("cru", test)
    batch = test.batch(range(len(test)))
    prediction = model(batch, intermediates=True)
    gain = prediction.intermediates["gain"]
    dense = torch.cat([torch.diag_embed(gain.upper), torch.diag_embed(gain.lower)], -2)  # K, M x D
    torch.testing.assert_close(gain_norm(prediction), torch.linalg.matrix_norm(dense))
    for output in predict_series(model, test):
        assert output.gain is not None
        np.testing.assert_array_equal(np.isnan(output.gain), ~output.observed)
        assert not output.observed.all()


@pytest.mark.parametrize("model", ["gru", "gru-dt"])
def test_models_without_a_gain_have_none(model):
    assert next(predict_series(made(model, tiny_splits().test), tiny_splits().test)).gain is None
