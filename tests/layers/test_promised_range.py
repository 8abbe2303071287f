"""At the edges of the promised range the layers are finite, and as precise as they promise."""

import copy

import pytest
import torch

import cru
from cru import native

LAYERS = {"cru": cru.CRU, "f-cru": cru.FastCRU, "rkn": cru.RKN, "paired": cru.PairedCRU}
PATHS = [
    "torch",
    pytest.param("compiled", marks=pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")),
]


@pytest.fixture(params=PATHS)
def _path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRU_NATIVE", "1" if request.param == "compiled" else "0")


@torch.no_grad()
@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize("smallest", [1e-12, 1e-10, 1e-8, 1e-4])
@pytest.mark.parametrize("smooth", [False, True])
def test_precise_observations_at_repeated_times(smallest: float, smooth: bool) -> None:
    """Float32 within 1e-3 of float64, relative to the largest mean, for variances from ``smallest`` to 1."""
    layer = cru.PairedCRU(2, 10)
    exact = copy.deepcopy(layer).double()
    for _ in range(10):
        gap = 10 ** (5 * torch.rand(2, 20) - 3)
        times = torch.where(torch.rand(2, 20) < 0.4, 0.0, gap).double().cumsum(1)
        y, y_var = torch.randn(2, 20, 5), smallest ** torch.rand(2, 20, 5)

        def run(made: cru.PairedCRU, y: torch.Tensor, y_var: torch.Tensor, times: torch.Tensor = times) -> torch.Tensor:
            return (made.smooth(y, y_var, times) if smooth else made.filter(y, y_var, times).posterior).mean

        expected = run(exact, y.double(), y_var.double())
        assert (run(layer, y, y_var) - expected).abs().max() <= 1e-3 * expected.abs().max()


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("gap", [1e3, 3e6, 1e9, 1e12, 1e15])
def test_gradients_are_finite_over_long_gaps(kind: str, gap: float) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        layer = LAYERS[kind](2, 8)
        times = (gap * torch.rand(2, 12, dtype=torch.float64)).cumsum(1)
        output, state = layer(torch.randn(2, 12, 2), times)
        (output.square().mean() + state.upper.log().mean()).backward()
        assert torch.isfinite(output).all()
        for name, parameter in layer.named_parameters():
            assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize("kind", LAYERS)
def test_the_largest_observations_give_finite_outputs(kind: str) -> None:
    """The encoder overflows: 3e38 times weights above one is infinite in float32, and a difference of two such NaN."""
    for seed in range(5):
        torch.manual_seed(seed)
        layer = LAYERS[kind](3, 8)
        with torch.no_grad():
            layer.observation.weight.mul_(10)
            layer.observation_variance.weight.mul_(10)
        x = torch.where(torch.rand(1, 5, 3) < 0.5, -1.0, 1.0) * 2.5e38
        output, state = layer(x, torch.arange(5.0))
        (output.mean() + state.lower.mean()).backward()
        assert torch.isfinite(output).all()
        assert all(torch.isfinite(field).all() for field in state[:4])
        for name, parameter in layer.named_parameters():
            assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name
