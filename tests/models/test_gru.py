"""The GRUs against torch.nn.GRU, and against its equations."""

import pytest
import torch
from torch import nn

from tests.models.helpers import SPECS, made, random_batch


def by_hand(layer: nn.GRU, x: torch.Tensor) -> torch.Tensor:
    """Cho et al. 2014, gate by gate."""
    h, states = x.new_zeros(x.shape[0], layer.hidden_size), []
    for t in range(x.shape[1]):
        i_r, i_z, i_n = (x[:, t] @ layer.weight_ih_l0.T + layer.bias_ih_l0).chunk(3, -1)
        h_r, h_z, h_n = (h @ layer.weight_hh_l0.T + layer.bias_hh_l0).chunk(3, -1)
        r, z = (i_r + h_r).sigmoid(), (i_z + h_z).sigmoid()
        h = (1 - z) * (i_n + r * h_n).tanh() + z * h
        states.append(h)
    return torch.stack(states, 1)


@pytest.mark.parametrize("name", ["gru", "gru-dt"])
def test_equals_torch(name: str) -> None:
    model, batch = made(name, SPECS["features"], dtype=torch.float64), random_batch(SPECS["features"])
    x = batch.values.double()
    if name == "gru-dt":
        delta = torch.cat([torch.zeros(3, 1).double(), batch.times.diff(dim=1)], 1)
        x = torch.cat([x, delta[..., None]], -1)
    twin = nn.GRU(x.shape[-1], 75, batch_first=True, dtype=torch.float64)
    twin.load_state_dict(model.layer.state_dict())
    prediction = model(batch, intermediates=True)
    states, _ = twin(x)
    torch.testing.assert_close(prediction.intermediates["states"], states)
    torch.testing.assert_close(by_hand(twin, x), states)
    torch.testing.assert_close(prediction.mean[batch.valid], model.output.mean(states[batch.valid]))


def test_sits_between_encoder_and_decoder_on_pictures() -> None:
    model = made("gru", SPECS["pictures"])
    assert model.layer.input_size == 15
    assert model(random_batch(SPECS["pictures"])).mean.shape == (3, 6, 1, 24, 24)
