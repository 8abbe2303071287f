"""The Kalman family as models: sizes, intermediates, swapped networks."""

import pytest
import torch
from torch import nn

from cru.models import Spec, create
from tests.models.helpers import SPECS, made, random_batch

FAMILY = ("cru", "f-cru", "rkn", "rkn-dt")


@pytest.mark.parametrize("name", FAMILY)
def test_intermediates_are_those_of_the_bare_filter(name: str) -> None:
    model, batch = made(name, SPECS["features"]), random_batch(SPECS["features"])
    prediction = model(batch, intermediates=True)
    features = torch.zeros(3, 6, 50)
    features[batch.observed] = model.encoder(batch.values[batch.observed])
    expected = model.layer.filter(*model.layer.observe(features), batch.times, batch.observed)
    for part in ("prior", "posterior", "gain"):
        for found, wanted in zip(prediction.intermediates[part], getattr(expected, part), strict=True):
            torch.testing.assert_close(found, wanted)
    spread = torch.cat([expected.posterior.upper, expected.posterior.lower, expected.posterior.side], -1)
    valid = batch.valid
    torch.testing.assert_close(prediction.mean[valid], model.output.mean(expected.posterior.mean[valid]))
    torch.testing.assert_close(prediction.var[valid], model.output.variance(spread[valid]).square())


def test_any_module_can_be_encoder_or_decoder() -> None:
    spec = SPECS["pictures"]
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(24 * 24, 7), nn.Tanh())
    decoder = nn.Sequential(nn.Linear(8, 24 * 24), nn.Unflatten(1, (1, 24, 24)))
    model = create("cru", spec, hidden_size=8, encoder=encoder, decoder=decoder)
    assert model.encoder is encoder
    assert model.output.mean is decoder
    assert model(random_batch(spec)).mean.shape == (3, 6, 1, 24, 24)


def test_an_image_shape_without_a_decoder_is_refused() -> None:
    spec = Spec(input_shape=(1, 32, 32), target_shape=(1, 32, 32), likelihood="bernoulli")
    with pytest.raises(ValueError, match="Pass your own decoder"):
        create("cru", spec)


def test_the_time_scale_reaches_the_layer() -> None:
    from dataclasses import replace

    slow, fast = (made("cru", replace(SPECS["features"], time_scale=scale)) for scale in (1.0, 5.0))
    batch = random_batch(SPECS["features"])
    stretched = random_batch(SPECS["features"])
    stretched.times.mul_(5)
    torch.testing.assert_close(fast(batch).mean, slow(stretched).mean)


@pytest.mark.parametrize("name", ["cru", "f-cru", "rkn-dt"])
def test_gaps_matter(name: str) -> None:
    model, batch = made(name, SPECS["features"]), random_batch(SPECS["features"])
    later = random_batch(SPECS["features"])
    later.times.mul_(3)
    assert (model(batch).mean - model(later).mean).abs().max() > 1e-4


def test_gaps_do_not_matter_to_the_rkn() -> None:
    model, batch = made("rkn", SPECS["features"]), random_batch(SPECS["features"])
    later = random_batch(SPECS["features"])
    later.times.mul_(3)
    torch.testing.assert_close(model(batch).mean, model(later).mean)
