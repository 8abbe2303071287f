"""The ODE wrapper against closed forms, scipy and torchdiffeq, each series over a gap of its own."""

import pytest
import torch
from scipy.integrate import solve_ivp
from torch import nn
from torchdiffeq import odeint

from cru.layers.gru_ode import GRUODEField
from cru.layers.ode import (
    ADAPTIVE_SOLVERS,
    FIXED_SOLVERS,
    ODE,
    OPEN_SOLVERS,
    exponential_time_map,
    tanh_field,
    uniform_time_map,
)
from tests.helpers import difference

GAPS = torch.tensor([0.0, 0.1, 0.7, 2.0], dtype=torch.float64)


class Rotation(nn.Module):
    def forward(self, state: torch.Tensor) -> torch.Tensor:
        return state @ torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=state.dtype)


@pytest.mark.parametrize("solver", FIXED_SOLVERS + ADAPTIVE_SOLVERS)
def test_a_rotation_turns_every_series_by_its_own_gap(solver: str) -> None:
    steps = {"euler": 20_000, "midpoint": 300, "heun2": 300}.get(solver, 100)
    ode = ODE(Rotation(), solver=solver, steps=steps, rtol=1e-6, atol=1e-8).double()
    found = ode(torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(4, 2), GAPS)
    torch.testing.assert_close(found, torch.stack([GAPS.cos(), GAPS.sin()], -1), atol=3e-4, rtol=0)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("solver", FIXED_SOLVERS)
def test_fixed_steps_are_those_of_torchdiffeq(solver: str, steps: int) -> None:
    torch.manual_seed(0)
    field, start = tanh_field(5, 16, 3).double(), torch.randn(4, 5, dtype=torch.float64)
    time_maps = (uniform_time_map, exponential_time_map) if solver in OPEN_SOLVERS else (uniform_time_map,)
    for time_map in time_maps:
        speed, grid = time_map(GAPS[:, None]), torch.linspace(0, 1, steps + 1, dtype=torch.float64)
        expected = odeint(lambda s, h, speed=speed: speed(s) * field(h), start, grid, method=solver)[-1]
        found = ODE(field, solver=solver, steps=steps, time_map=time_map)(start, GAPS)
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("field", ["tanh", "gru"])
def test_it_agrees_with_scipy(field: str) -> None:
    torch.manual_seed(0)
    network = (tanh_field(5, 16, 3) if field == "tanh" else GRUODEField(5)).double()
    start = torch.rand(4, 5, dtype=torch.float64) * 2 - 1
    found = ODE(network, steps=50)(start, GAPS)

    def derivative(_: float, h: object) -> object:
        return network(torch.as_tensor(h)[None])[0].detach().numpy()

    for i, gap in enumerate(GAPS.tolist()):
        if gap:
            expected = solve_ivp(derivative, (0, gap), start[i].numpy(), rtol=1e-10, atol=1e-12).y[:, -1]
            assert difference(found[i], torch.as_tensor(expected)) < 1e-6


@pytest.mark.parametrize("solver", ["euler", "midpoint", "rk4", "dopri5"])
def test_a_gap_of_zero_changes_no_bit(solver: str) -> None:
    torch.manual_seed(0)
    start = torch.randn(3, 6)
    moved = ODE(tanh_field(6, 8, 3), solver=solver)(start, torch.tensor([0.0, 1.0, 0.0]))
    assert torch.equal(moved[0], start[0]) and torch.equal(moved[2], start[2])
    assert not torch.equal(moved[1], start[1])


def test_with_fixed_steps_a_series_does_not_depend_on_the_others() -> None:
    torch.manual_seed(0)
    ode, start, gap = ODE(tanh_field(6, 8, 3), steps=3), torch.randn(5, 6), torch.rand(5)
    together = ode(start, gap)
    for i in range(5):
        torch.testing.assert_close(ode(start[i : i + 1], gap[i : i + 1])[0], together[i])


@pytest.mark.parametrize("solver, steps, per_gap", [("euler", 3, 3), ("midpoint", 2, 4), ("rk4", 1, 4)])
def test_evaluations_are_counted(solver: str, steps: int, per_gap: int) -> None:
    ode = ODE(tanh_field(4, 8, 2), solver=solver, steps=steps)
    for _ in range(3):
        ode(torch.zeros(2, 4), torch.ones(2))
    assert ode.evaluations == 3 * per_gap


@pytest.mark.parametrize("solver", OPEN_SOLVERS)
def test_the_exponential_time_map_converges_to_the_same_solution(solver: str) -> None:
    torch.manual_seed(0)
    field, start = GRUODEField(5).double(), torch.rand(4, 5, dtype=torch.float64) * 2 - 1
    expected = ODE(field, steps=100)(start, GAPS)
    steps = 20_000 if solver == "euler" else 300
    found = ODE(field, solver=solver, steps=steps, time_map=exponential_time_map)(start, GAPS)
    assert difference(found, expected) < 1e-4


def test_the_exponential_time_map_reaches_a_constant_target_exactly() -> None:
    """dh/dt = -h is a straight line in s: one step of either open solver is exact, over any gap."""
    for solver in OPEN_SOLVERS:
        decay = nn.Linear(1, 1, bias=False).double()
        nn.init.constant_(decay.weight, -1.0)
        gap = torch.tensor([0.0, 0.3, 5.0, 1e4], dtype=torch.float64)
        found = ODE(decay, solver=solver, time_map=exponential_time_map)(torch.ones(4, 1, dtype=torch.float64), gap)
        torch.testing.assert_close(found[:, 0], torch.exp(-gap), atol=1e-12, rtol=0)


@pytest.mark.parametrize("size", [1.0, 5.0])
def test_gaps_from_zero_to_ten_thousand_stay_finite(size: float) -> None:
    torch.manual_seed(0)
    gap = torch.tensor([0.0, 1e-6, 1.0, 1e2, 1e4])  # of five series, 200 times in a row
    relaxing = ODE(GRUODEField(6), solver="midpoint", time_map=exponential_time_map)
    for ode in (ODE(tanh_field(6, 8, 3)), relaxing):
        with torch.no_grad():
            for parameter in ode.parameters():
                parameter.mul_(size)
        state = torch.rand(5, 6, requires_grad=True)
        later = state
        for _ in range(200):
            later = ode(later, gap)
        later.sum().backward()
        assert torch.isfinite(later).all() and torch.isfinite(state.grad).all()
        assert all(torch.isfinite(parameter.grad).all() for parameter in ode.parameters())
        if ode is relaxing:
            assert later.abs().max() < 10


def test_errors_name_the_wrong_argument() -> None:
    field = tanh_field(2, 4, 2)
    with pytest.raises(ValueError, match="`solver` must be one of euler"):
        ODE(field, solver="rk5")
    with pytest.raises(ValueError, match="`steps` must be at least 1, got 0"):
        ODE(field, steps=0)
    with pytest.raises(ValueError, match="`rtol` and `atol` must be positive"):
        ODE(field, rtol=0.0)
    with pytest.raises(ValueError, match="with the exponential time map"):
        ODE(field, solver="rk4", time_map=exponential_time_map)
    with pytest.raises(ValueError, match="`layers` must be at least 2"):
        tanh_field(2, 4, 1)
    assert "solver=rk4, steps=2" in repr(ODE(field, steps=2)) and "rtol" in repr(ODE(field, solver="dopri5"))
