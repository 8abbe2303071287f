"""What the structural layer adds to the functions, which tests/functional compares with a dense Gaussian process."""

import copy
import inspect
import math

import pytest
import torch
from torch import Tensor

import cru
from cru import native
from cru.functional.structural import StructuralState
from cru.layers.structural import MIN_NOISE
from tests.helpers import difference


def setting(dtype: torch.dtype = torch.float64) -> tuple[cru.StructuralLayer, Tensor, Tensor]:
    """A layer away from its start values, values with NaN, and times with a repeated one."""
    torch.manual_seed(0)
    layer = cru.StructuralLayer(2, [1.0, 10.0], [24.0, 12.0], dtype=dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    values = torch.randn(3, 15, 2, dtype=dtype)
    values[torch.rand(3, 15, 2) < 0.3] = torch.nan
    times = (60 * torch.rand(3, 15, dtype=torch.float64)).sort(1).values
    times[:, 7] = times[:, 6]
    return layer, values, times


def dense(layer: cru.StructuralLayer, values: Tensor, times: Tensor, at: Tensor, v: int) -> tuple[Tensor, ...]:
    """Mean and variance at times ``at`` of a series (time, variable), and the nll, by the formula of the model."""
    rate, var, noise = (field[v].detach() for field in layer.hyperparameters)
    periods = torch.tensor(layer.periods, dtype=torch.float64)
    season = layer.season[v].detach().view(-1, 2)

    def kernel(s: Tensor, t: Tensor) -> Tensor:
        lag = s[:, None] - t
        total = sum(var[d] * torch.exp(-lag.abs() * rate[d]) for d in range(3))
        for k, period in enumerate(periods):
            d = 3 + 2 * k
            total = total + var[d] * torch.exp(-lag.abs() * rate[d]) * torch.cos(2 * math.pi * lag / period)
        return total

    def mean(t: Tensor) -> Tensor:
        angle = 2 * math.pi * t[:, None] / periods
        return (season[:, 0] * angle.cos() + season[:, 1] * angle.sin()).sum(-1)

    seen = ~torch.isnan(values[:, v])
    t, y = times[seen], values[seen, v]
    gram = kernel(t, t) + noise * torch.eye(len(t), dtype=torch.float64)
    weight = torch.linalg.solve(gram, kernel(t, at)).T
    nll = -torch.distributions.MultivariateNormal(mean(t), gram).log_prob(y)
    return mean(at) + weight @ (y - mean(t)), (kernel(at, at) - weight @ kernel(t, at)).diagonal(), nll


@pytest.mark.parametrize("compiled", [False, True])
def test_it_is_the_gaussian_process_of_its_components(compiled: bool, monkeypatch) -> None:
    monkeypatch.setenv("CRU_NATIVE", str(int(compiled)))
    layer, values, times = setting()
    later = times[:, -1:] + torch.tensor([30.0, 0.0, 2.5], dtype=torch.float64)
    with torch.no_grad():
        smoothed, filtered, nll = layer.smooth(values, times), layer(values, times), layer.nll(values, times)
        mean, var = layer.forecast(filtered.state, later)
    for b in range(3):
        for v in range(2):
            expected = dense(layer, values[b], times[b], times[b], v)
            torch.testing.assert_close(smoothed.mean[b, :, v], expected[0], rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(smoothed.var[b, :, v], expected[1], rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(filtered.nll[b, v], expected[2], rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(nll[b, v], expected[2], rtol=1e-9, atol=1e-9)
            expected = dense(layer, values[b], times[b], later[b], v)
            torch.testing.assert_close(mean[b, :, v], expected[0], rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(var[b, :, v], expected[1], rtol=1e-9, atol=1e-9)
            others = values[b].clone()
            others[4, v] = torch.nan
            if others[:, v].isfinite().any():
                expected = dense(layer, others, times[b], times[b, 4:5], v)
                torch.testing.assert_close(smoothed.loo_mean[b, 4, v], expected[0][0], rtol=1e-9, atol=1e-9)
                torch.testing.assert_close(smoothed.loo_var[b, 4, v], expected[1][0], rtol=1e-9, atol=1e-9)


@pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")
def test_training_takes_the_compiled_likelihood_and_the_gradient_of_the_filter() -> None:
    layer, values, times = setting()
    compiled, plain = layer.nll(values, times), layer.filter(values, times).nll
    assert "filter" not in str(compiled.grad_fn) and difference(compiled, plain) < 1e-12
    grads = [torch.autograd.grad(nll.sum(), tuple(layer.parameters())) for nll in (compiled, plain)]
    assert all(difference(a, b) < 1e-9 for a, b in zip(*grads, strict=True))


def test_every_output_has_a_gradient() -> None:
    layer, values, times = setting()
    found = [*layer.filter(values, times)[:3], *layer.smooth(values, times), layer.components(values, times).mean]
    found += layer.forecast(layer.filter(values, times).state, times[:, -1:] + 1)
    for output in found:
        grads = torch.autograd.grad(output.sum(), (layer.log_rate, layer.log_var), retain_graph=True)
        assert all(torch.isfinite(grad).all() and grad.any() for grad in grads)


@torch.no_grad()
def test_a_series_row_by_row_is_the_whole_series() -> None:
    layer, values, times = setting(torch.float32)
    whole, state, rows, nll = layer.filter(values, times), None, [], 0.0
    for k in range(15):
        step = layer.filter(values[:, k : k + 1], times[:, k : k + 1], state=state)
        state, nll = step.state, nll + step.nll
        rows.append(step.mean)
    assert difference(torch.cat(rows, 1), whole.mean) < 1e-6
    assert difference(nll, whole.nll) < 1e-6
    for found, expected in zip(state, whole.state, strict=True):
        assert difference(found, expected) < 1e-12
    assert layer.initial(times).mean.shape == state.mean.shape


@torch.no_grad()
def test_a_state_moves_to_a_later_time() -> None:
    layer, values, times = setting()
    state = layer.filter(values, times).state
    moved = layer.propagate(state, 100.0)
    assert torch.equal(moved.time, torch.full((3,), 100.0, dtype=torch.float64))
    at = torch.tensor([100.0, 250.0], dtype=torch.float64)
    for found, expected in zip(layer.forecast(moved, at), layer.forecast(state, at), strict=True):
        assert difference(found, expected) < 1e-12
    with pytest.raises(ValueError, match="`time` must be finite and not before"):
        layer.propagate(moved, 99.0)
    with pytest.raises(ValueError, match="`times` must be finite and not before"):
        layer.forecast(moved, at - 1)
    assert torch.equal(layer.propagate(moved, 100.0 - 1e-14).time, moved.time)  # a rounding error


@torch.no_grad()
def test_components_have_names_and_add_up() -> None:
    layer, values, times = setting()
    parts = layer.components(values, times)
    assert parts.names == ("level", "ou 1", "ou 10", "period 24", "period 12", "seasonal mean") == layer.names
    assert difference(parts.mean.sum(-1), layer.smooth(values, times).mean) < 1e-9
    assert torch.all(parts.var >= 0)
    flat = cru.StructuralLayer(1, [3.2])
    assert flat.components(torch.randn(2, 4, 1), torch.arange(4)).names == ("level", "ou 3.2")


@torch.no_grad()
def test_components_in_groups() -> None:
    layer, values, times = setting()
    whole, parts = layer.components(values, times), layer.components(values, times, groups=[0, 1, 1, 2, 2])
    assert parts.names == ("level", "ou 1 + ou 10", "period 24 + period 12", "seasonal mean")
    for k, among in enumerate(([0], [1, 2], [3, 4], [5])):
        assert difference(parts.mean[..., k], whole.mean[..., among].sum(-1)) < 1e-9
    assert not torch.allclose(parts.var[..., 1], whole.var[..., 1:3].sum(-1))  # they are correlated
    for groups in ([0, 1, 1, 2], [0, 1, 1, 3, 3], [1, 1, 1, 1, 1]):
        with pytest.raises(ValueError, match="`groups` must give each of the 5 components a number from 0"):
            layer.components(values, times, groups=groups)


@torch.no_grad()
def test_causal_components_add_up_to_the_filtered_signal() -> None:
    layer, values, times = setting()
    found = layer.components(values, times, causal=True)
    for t in range(values.shape[1]):
        now = layer.components(values[:, : t + 1], times[:, : t + 1])
        assert difference(found.mean[:, t], now.mean[:, -1]) < 1e-9
        assert difference(found.var[:, t], now.var[:, -1]) < 1e-8


@torch.no_grad()
def test_a_frozen_layer_computes_the_same() -> None:
    layer, values, times = setting()
    frozen = copy.deepcopy(layer)
    frozen.freeze()
    assert frozen.hyperparameters is frozen.hyperparameters
    for found, expected in zip(frozen.smooth(values, times), layer.smooth(values, times), strict=True):
        assert torch.equal(found, expected)


@torch.no_grad()
def test_samples_scatter_around_the_smoother() -> None:
    layer, values, times = setting()
    smoothed, n = layer.smooth(values, times), 4000
    draws = layer.sample(values, times, n, generator=torch.Generator().manual_seed(0))
    assert draws.shape == (n, 3, 15, 2)
    assert torch.all((draws.mean(0) - smoothed.mean).abs() < 5 * (smoothed.var / n).sqrt())
    assert torch.all((draws.var(0) - smoothed.var).abs() < 6 * smoothed.var * (2 / n) ** 0.5)


@torch.no_grad()
def test_a_mask_and_nan_are_equivalent() -> None:
    layer, values, times = setting()
    mask = ~torch.isnan(values)
    for found in (layer.smooth(values, times, mask), layer.smooth(torch.where(mask, values, 99.0), times, mask)):
        assert all(torch.equal(a, b) for a, b in zip(found, layer.smooth(values, times), strict=True))


@torch.no_grad()
def test_single_precision_agrees_with_double_at_times_of_a_calendar() -> None:
    """Seconds since 1970: their phases need float64."""
    layer, values, times = setting()
    single = copy.deepcopy(layer).float()
    layer.load_state_dict(single.state_dict())
    values = values.float().double()
    times = 1.7e9 + times
    for name in ("filter", "smooth"):
        found, expected = (getattr(each, name)(values.to(each.dtype), times) for each in (single, layer))
        for a, b in zip(found[:3], expected[:3], strict=True):
            assert a.dtype == torch.float32
            torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_nothing_saturates() -> None:
    layer, values, times = setting()
    layer.season.zero_()
    at = times[:, -1:] + 5
    small, large = (layer.forecast(layer.filter(size * values, times).state, at) for size in (1.0, 1e6))
    assert difference(large[0], 1e6 * small[0]) < 1e-9
    assert torch.equal(large[1], small[1])


def test_start_values() -> None:
    layer = cru.StructuralLayer(3, [2.0, 8.0], [24.0], level=1e4)
    rate, var, noise = (field.detach() for field in layer.hyperparameters)
    expected = torch.tensor([1e-4, 0.5, 0.125, 1 / 480, 1 / 480])
    torch.testing.assert_close(rate, expected.repeat(3, 1))
    torch.testing.assert_close(var, torch.tensor([0.3, 0.25, 0.25, 0.05, 0.05]).repeat(3, 1))
    torch.testing.assert_close(noise, torch.full((3,), 0.1 + MIN_NOISE))
    names = {name for name, _ in layer.named_parameters()}
    assert names == set(layer.state_dict()) == {"log_rate", "log_var", "log_noise", "season"}
    assert layer.season.shape == (3, 2) and not layer.season.any()
    assert "level=10000" in repr(layer)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"size": 0}, "`size` must be an integer"),
        ({"time_constants": [1.0, 0.0]}, "`time_constants` must be positive and finite, got 0.0"),
        ({"periods": [math.inf]}, "`periods` must be positive and finite, got inf"),
        ({"level": -1.0}, "`level` must be positive"),
        ({"dtype": torch.float16}, "`dtype` must be"),
    ],
)
def test_the_constructor_checks_what_it_is_given(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        cru.StructuralLayer(**({"size": 1, "time_constants": [1.0]} | wrong))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"values": torch.ones(3, 15, 1)}, "`values` must have the shape"),
        ({"values": torch.full((3, 15, 2), torch.inf)}, "`values` must be finite where it is observed"),
        ({"times": torch.arange(4)}, "`times` must have the shape"),
        ({"times": torch.arange(15).flip(0)}, "`times` must not decrease"),
        ({"mask": torch.ones(3, 15)}, "`mask` must be a tensor of dtype torch.bool"),
    ],
)
def test_bad_arguments_are_refused(wrong: dict[str, object], words: str) -> None:
    layer, values, times = setting()
    for call in (layer.filter, layer.smooth, layer.nll, layer.components):
        with pytest.raises(ValueError, match=words):
            call(**({"values": values, "times": times} | wrong))


def test_bad_states_are_refused() -> None:
    layer, values, times = setting()
    with torch.no_grad():
        state = layer.filter(values, times).state
    wrongs: dict[str, StructuralState] = {
        "`state.mean` must have the shape": state._replace(mean=state.mean[:1]),
        "`state.explained` must be finite": state._replace(explained=state.explained * torch.nan),
    }
    for words, wrong in wrongs.items():
        with pytest.raises(ValueError, match=words):
            layer.filter(values, times + 100, state=wrong)
    with pytest.raises(ValueError, match="`times` must not decrease"):
        layer.filter(values, times, state=state)
    with pytest.raises(ValueError, match="`state` must be a `StructuralState`"):
        inspect.unwrap(cru.StructuralLayer._checked)(layer, 3, None)  # without the checks of types in tests
    with pytest.raises(ValueError, match="`times` must have the shape"):
        layer.forecast(state, torch.ones(2, 2, 2))
