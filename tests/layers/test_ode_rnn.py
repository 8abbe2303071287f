"""ODE-RNN against its own GRU, and its walk backward in time."""

import torch
from torch import nn

from cru.layers.ode import ODE, tanh_field
from cru.layers.ode_rnn import ODERNN, GRUUpdate


def problem() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 9, 3, generator=generator, dtype=torch.float64)
    delta = torch.rand(4, 9, generator=generator, dtype=torch.float64)
    delta[:, 0] = 0
    return x, delta, torch.rand(4, 9, generator=generator) < 0.6


def build(cell: nn.Module | None = None) -> ODERNN:
    torch.manual_seed(0)
    return ODERNN(ODE(tanh_field(6, 8, 3)), cell or GRUUpdate(3, 6, 10), 6).double()


def test_without_gaps_it_is_its_gru() -> None:
    gru = nn.GRU(3, 6, batch_first=True)
    cell = nn.GRUCell(3, 6)
    cell.load_state_dict({name.removesuffix("_l0"): weight for name, weight in gru.state_dict().items()})
    x, delta, observed = problem()
    found = build(cell)(x, torch.zeros_like(delta), torch.ones_like(observed))
    torch.testing.assert_close(found, gru.double()(x)[0])


def test_the_gated_update_is_its_equations() -> None:
    torch.manual_seed(0)
    cell, x, h = GRUUpdate(3, 6, 10), torch.randn(2, 3), torch.randn(2, 6)

    def network(part: nn.Sequential, inputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(inputs @ part[0].weight.T + part[0].bias) @ part[2].weight.T + part[2].bias

    z = network(cell.update, torch.cat([h, x], 1)).sigmoid()
    r = network(cell.reset, torch.cat([h, x], 1)).sigmoid()
    n = network(cell.candidate, torch.cat([r * h, x], 1)).tanh()
    torch.testing.assert_close(cell(x, h), (1 - z) * n + z * h)


def test_it_is_the_algorithm_of_the_paper_series_by_series() -> None:
    layer, (x, delta, observed) = build(), problem()
    found = layer(x, delta, observed)
    for i in range(4):
        h = torch.zeros(1, 6, dtype=torch.float64)
        for t in range(9):
            h = layer.ode(h, delta[i, t : t + 1])
            if observed[i, t]:
                h = layer.cell(x[i, t][None], h)
            torch.testing.assert_close(found[i, t], h[0])


def test_backward_in_time_is_forward_on_the_mirrored_series() -> None:
    layer, (x, delta, observed) = build(), problem()
    observed[:, -1] = True
    mirrored = torch.cat([torch.zeros_like(delta[:, :1]), delta[:, 1:].flip(1)], 1)
    expected = layer(x.flip(1), mirrored, observed.flip(1))[:, -1]
    torch.testing.assert_close(layer.backward_in_time(x, delta, observed), expected)


def test_backward_in_time_nothing_happens_before_the_last_observation() -> None:
    layer, (x, delta, observed) = build(), problem()
    observed[:, 5], observed[:, 6:] = True, False
    whole = layer.backward_in_time(x, delta, observed)
    torch.testing.assert_close(whole, layer.backward_in_time(x[:, :6], delta[:, :6], observed[:, :6]))
    nothing = layer.backward_in_time(x, delta, torch.zeros_like(observed))
    assert torch.equal(nothing, torch.zeros_like(nothing))
