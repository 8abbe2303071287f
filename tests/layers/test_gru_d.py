"""GRU-D against torch.nn.GRU, and against its equations written out."""

import pytest
import torch
from torch import nn

from cru.layers.gru_d import GRUD


def problem(seen: float = 0.5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 9, 3, generator=generator, dtype=torch.float64)
    mask = torch.rand(4, 9, 3, generator=generator) < seen
    return torch.where(mask, x, 0.0), mask, torch.rand(4, 9, generator=generator, dtype=torch.float64).cumsum(1)


def build() -> GRUD:
    torch.manual_seed(0)
    layer = GRUD(3, 6).double()
    layer.mean.copy_(torch.tensor([0.3, -1.0, 2.0]))
    return layer


def test_without_decay_and_fully_observed_it_is_a_gru() -> None:
    layer, (x, mask, times) = build(), problem(seen=1.1)
    for parameter in (layer.input_rate, layer.input_offset, layer.state_rate.weight, layer.state_rate.bias):
        nn.init.zeros_(parameter)
    gru = nn.GRU(6, 6, batch_first=True).double()
    gru.load_state_dict({f"{name}_l0": weight for name, weight in layer.cell.state_dict().items()})
    expected, _ = gru(torch.cat([x, torch.ones_like(x)], -1))
    torch.testing.assert_close(layer(x, mask, times), expected)


def test_it_is_its_equations_series_by_series() -> None:
    layer, (x, mask, times) = build(), problem()
    found = layer(x, mask, times)
    for i in range(4):
        h, last, since = torch.zeros(6).double(), layer.mean.clone(), torch.zeros(3).double()
        for t in range(9):
            if t > 0:
                gap = times[i, t] - times[i, t - 1]
                since = torch.where(mask[i, t - 1], gap, gap + since)
            m = mask[i, t].double()
            decay_x = torch.exp(-torch.clamp(layer.input_rate * since + layer.input_offset, min=0))
            decay_h = torch.exp(-torch.clamp(layer.state_rate.weight @ since + layer.state_rate.bias, min=0))
            imputed = m * x[i, t] + (1 - m) * (decay_x * last + (1 - decay_x) * layer.mean)
            h = layer.cell(torch.cat([imputed, m])[None], (decay_h * h)[None])[0]
            last = torch.where(mask[i, t], x[i, t], last)
            torch.testing.assert_close(found[i, t], h)


def test_a_missing_input_decays_to_the_mean() -> None:
    layer, (x, mask, _) = build(), problem()
    nn.init.constant_(layer.input_rate, 1.0)
    mask[:, 0], mask[:, 1:] = True, False
    soon = layer.impute(x, mask, torch.full_like(x, 1e-9))[:, 1:]
    late = layer.impute(x, mask, torch.full_like(x, 1e4))[:, 1:]
    torch.testing.assert_close(soon, x[:, :1].expand_as(soon))
    torch.testing.assert_close(late, layer.mean.expand_as(late))


@pytest.mark.parametrize("gap", [0.0, 1e-6, 1e4])
def test_gradients_are_finite(gap: float) -> None:
    layer, (x, mask, _) = build(), problem()
    layer(x, mask, gap * torch.arange(9.0).double().expand(4, 9)).sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in layer.parameters())
