"""CRU and f-CRU from both sides."""

import dataclasses

import pytest
import torch

from cru.layers.encoders import apply_where
from tests.models.helpers import SPECS, made, random_batch

NAMES = ("bi-cru", "bi-f-cru")


@pytest.mark.parametrize("name", NAMES)
def test_a_series_read_backwards_says_the_same_with_the_sides_exchanged(name: str) -> None:
    model = made(name, SPECS["features"], dtype=torch.float64)
    model.right.observation, model.right.observation_variance = (
        model.layer.observation,
        model.layer.observation_variance,
    )
    batch = random_batch(SPECS["features"], observed=1.0)
    whole = dataclasses.replace(batch, lengths=torch.full((3,), 6))
    whole = dataclasses.replace(whole, mask=torch.ones_like(whole.mask), times=torch.arange(6.0).double().expand(3, 6))
    turned = dataclasses.replace(whole, values=whole.values.flip(1), times=5 - whole.times.flip(1))
    found = model(whole, intermediates=True).intermediates["posterior"]
    model.layer, model.right = model.right, model.layer
    mirrored = model(turned, intermediates=True).intermediates["posterior"]
    for a, b in zip(found[:4], mirrored[:4], strict=True):
        torch.testing.assert_close(a[:, 1:-1], b.flip(1)[:, 1:-1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_later_observations_reduce_the_variance(name: str) -> None:
    model, batch = made(name, SPECS["features"]), random_batch(SPECS["features"])
    both = model(batch, intermediates=True).intermediates["posterior"]
    features = apply_where(model.encoder, model.inputs(batch), batch.observed)
    y, y_var = model.layer.observe(features)
    alone = model.layer.filter(y, y_var, batch.times, batch.observed).posterior
    later = torch.flip(torch.flip(batch.observed, (1,)).cumsum(1), (1,)) - batch.observed.long() > 0
    assert later.any()
    assert (both.upper[later] < alone.upper[later]).all()
    assert not batch.observed.all()


def test_it_is_not_causal() -> None:
    from cru.models import create

    with pytest.raises(ValueError, match="uses later inputs"):
        create("bi-cru", dataclasses.replace(SPECS["features"], causal=True))
