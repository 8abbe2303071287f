"""One battery that every layer of the family passes."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

import cru
from cru import native
from cru.functional import Belief
from cru.layers import KalmanLayer
from cru.layers.checks import check_time_scale
from tests.helpers import difference

LAYERS = {
    "cru": cru.CRU,
    "f-cru": cru.FastCRU,
    "rkn": cru.RKN,
    "rkn-dt": lambda *a, **k: cru.RKN(*a, time_aware=True, **k),
    "paired": lambda *a, num_basis=None, **k: cru.PairedCRU(*a, **k),
}


@pytest.fixture(params=LAYERS)
def name(request) -> str:
    return request.param


def build(name: str, input_size: int = 3, hidden_size: int = 8, size: float = 0.3, **options) -> KalmanLayer:
    """A layer with weights as after some training, not at its quiet start."""
    torch.manual_seed(7)
    layer = LAYERS[name](input_size, hidden_size, num_basis=4, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(size * torch.randn_like(parameter))
    return layer


def series(batch: int = 4, time: int = 10, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(batch, time, 3, generator=generator, dtype=dtype)
    x[torch.rand(batch, time, 3, generator=generator) < 0.2] = torch.nan
    x[1, 4] = torch.nan
    return x, torch.rand(batch, time, generator=generator, dtype=torch.float64).cumsum(1)


def close(a: cru.Belief, b: cru.Belief, tolerance: float) -> bool:
    return all(difference(x, y) <= tolerance for x, y in zip(a[:4], b[:4], strict=True)) and torch.equal(a.time, b.time)


def assert_valid(belief: cru.Belief) -> None:
    assert all(torch.isfinite(field).all() for field in belief[:4])
    assert torch.all(belief.upper >= 0) and torch.all(belief.lower >= 0)
    assert torch.all(belief.upper * belief.lower >= belief.side**2)


def gradients(layer: KalmanLayer, output: torch.Tensor, state: cru.Belief) -> list[torch.Tensor]:
    layer.zero_grad()
    (output.sum() + sum(field.sum() for field in state[:4])).backward()
    return [parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None]


def test_shapes(name: str) -> None:
    layer, (x, times) = build(name), series()
    output, state = layer(x, times)
    assert output.shape == (4, 10, 8) and state.mean.shape == (4, 8)
    assert state.upper.shape == state.lower.shape == state.side.shape == (4, 4)
    assert torch.equal(state.time, times[:, -1]) and torch.equal(output[:, -1], state.mean)
    result = layer.filter(torch.randn(4, 10, 4), torch.rand(4, 10, 4), times)
    assert result.prior.mean.shape == (4, 10, 8) and result.gain.lower.shape == (4, 10, 4)
    assert_valid(result.prior), assert_valid(result.posterior)


def test_one_axis_of_times_serves_the_whole_batch(name: str) -> None:
    layer, (x, times) = build(name), series()
    assert torch.equal(layer(x, times[0])[0], layer(x, times[0].expand(4, 10))[0])


@pytest.mark.parametrize("cut", range(1, 10))
def test_cutting_a_series_anywhere_changes_nothing(name: str, cut: int) -> None:
    layer, (x, times) = build(name, dtype=torch.float64), series(dtype=torch.float64)
    whole, end = layer(x, times)
    first, state = layer(x[:, :cut], times[:, :cut])
    second, last = layer(x[:, cut:], times[:, cut:], state=state)
    assert difference(torch.cat([first, second], 1), whole) < 1e-12
    assert close(last, end, 1e-12)


def test_steps_are_the_sequence(name: str) -> None:
    layer, (x, times) = build(name, dtype=torch.float64), series(dtype=torch.float64)
    whole, end = layer(x, times)
    state = None
    for t in range(10):
        output, state = layer.step(x[:, t], times[:, t], state)
        assert difference(output, whole[:, t]) < 1e-12
    assert close(state, end, 1e-12)


def test_padding_a_ragged_batch_changes_nothing(name: str) -> None:
    layer, (x, times) = build(name), series()
    padded = torch.cat([x, torch.full((4, 6, 3), torch.nan)], 1)
    longer = torch.cat([times, times[:, -1:].expand(4, 6)], 1)
    output, state = layer(x, times)
    expected = gradients(layer, output, state)
    again, end = layer(padded, longer)
    assert torch.equal(again[:, :10], output)
    assert close(end, state, 0.0)
    found = gradients(layer, again[:, :10], end)
    assert all(difference(a, b) < 1e-5 for a, b in zip(found, expected, strict=True))


def test_missing_by_nan_and_by_mask_are_the_same(name: str) -> None:
    layer, (x, times) = build(name), series()
    by_nan, _ = layer(x, times)
    by_mask, _ = layer(torch.where(torch.isnan(x), 1e6, x), times, mask=~torch.isnan(x))
    assert torch.equal(by_nan, by_mask)


def test_a_mask_over_times_hides_whole_observations(name: str) -> None:
    layer, (x, times) = build(name), series()
    x, mask = torch.nan_to_num(x), torch.rand(4, 10, generator=torch.Generator().manual_seed(0)) < 0.6
    poisoned = torch.where(mask[..., None], x, 1e30)
    assert torch.equal(layer(x, times, mask=mask)[0], layer(poisoned, times, mask=mask)[0])
    result = layer.filter(torch.randn(4, 10, 4), torch.rand(4, 10, 4), times, mask=mask)
    assert torch.equal(result.prior.mean[~mask], result.posterior.mean[~mask])


def test_propagate_is_what_an_unobserved_time_gives(name: str) -> None:
    layer, (x, times) = build(name, dtype=torch.float64), series(dtype=torch.float64)
    _, state = layer(x, times)
    _, expected = layer(torch.full((4, 1, 3), torch.nan, dtype=torch.float64), state.time[:, None] + 0.7, state=state)
    later = layer.propagate(state, 0.7)
    assert close(later, expected, 1e-12)
    many = layer.propagate(state, torch.tensor([0.1, 0.7, 2.0, 100.0]))
    assert difference(many.mean[1], later.mean[1]) < 1e-7


def test_the_variance_grows_over_a_gap_and_shrinks_at_an_observation() -> None:
    layer = cru.CRU(3, 8)
    _, times = series()
    result = layer.filter(torch.randn(4, 10, 4), torch.full((4, 10, 4), 0.1), times)
    assert torch.all(result.posterior.upper < result.prior.upper)
    state = result.posterior.at(-1)
    widths = torch.stack([layer.propagate(state, gap).upper for gap in (0.0, 0.5, 1.0, 10.0)])
    assert torch.all(widths.diff(dim=0) > 0)


@pytest.mark.parametrize("unit", ["seconds", "nanoseconds"])
def test_absolute_times_keep_their_precision_in_float32(name: str, unit: str) -> None:
    x, _ = series()
    steps = torch.tensor([0, 1, 3, 4, 8, 9, 11, 15, 16, 20])
    exact, _ = build(name)(x, steps.double() * 1e-3)
    if unit == "seconds":
        found, _ = build(name)(x, 1.7e9 + steps.double() * 1e-3)
        assert difference(found, exact) < 1e-4
    else:
        found, state = build(name, time_scale=1e-9)(x, 1_700_000_000_000_000_000 + steps * 1_000_000)
        assert difference(found, exact) < 1e-6
        assert state.time.dtype == torch.int64


def test_the_time_scale_multiplies_the_gaps(name: str) -> None:
    x, times = series()
    assert difference(build(name, time_scale=0.2)(x, times)[0], build(name)(x, 0.2 * times)[0]) < 1e-6


def test_float32_is_close_to_float64(name: str) -> None:
    x, times = series()
    low, _ = build(name)(x, times)
    layer = build(name)
    high, _ = layer.double()(x.double(), times)
    assert difference(low.double(), high) < 1e-4


@pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")
def test_the_compiled_filter_and_the_one_in_pytorch_agree(name: str, monkeypatch) -> None:
    layer, (x, times) = build(name, dtype=torch.float64), series(dtype=torch.float64)
    fast, state = layer(x, times)
    expected = gradients(layer, fast, state)
    monkeypatch.setattr("cru.native.available", lambda *_: False)
    monkeypatch.setattr("cru.native.paired_available", lambda *_: False)
    slow, end = layer(x, times)
    copied = [type(output.grad_fn.next_functions[0][0]).__name__ for output in (fast, slow)]
    assert ["cru_" in origin for origin in copied] == [True, False]
    assert difference(fast, slow) < 1e-11
    found = gradients(layer, slow, end)
    assert all(difference(a, b) < 1e-8 for a, b in zip(found, expected, strict=True))


def test_saved_and_loaded_it_gives_the_same_bits(name: str, tmp_path) -> None:
    layer, (x, times) = build(name), series()
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    other = LAYERS[name](3, 8, num_basis=4)
    other.load_state_dict(torch.load(tmp_path / "layer.pt", weights_only=True))
    assert torch.equal(layer(x, times)[0], other(x, times)[0])


def test_the_gap_has_a_gradient(name: str) -> None:
    layer, (x, times) = build(name), series()
    _, state = layer(x, times)
    delta = torch.full((4,), 0.5, requires_grad=True)
    if name != "rkn":  # whose step does not depend on it
        layer.propagate(state, delta).mean.sum().backward()
        assert torch.isfinite(delta.grad).all()
    if name in ("cru", "f-cru", "paired"):
        moments = times.clone().requires_grad_()
        layer(x, moments)[0].sum().backward()
        assert torch.isfinite(moments.grad).all() and torch.any(moments.grad != 0)


@given(
    gaps=st.lists(st.sampled_from([0.0, 1e-6, 0.3, 1.0, 50.0, 1e4, 1e6]), min_size=1, max_size=6),
    variance=st.sampled_from([1e-12, 1e-6, 1.0, 1e6, 1e12]),
    kept=st.sampled_from([0.0, 0.5, 1.0]),
    size=st.sampled_from([0.0, 0.3, 2.0]),
    kind=st.sampled_from(sorted(LAYERS)),
    compiled=st.booleans(),
)
def test_never_a_nan(gaps: list[float], variance: float, kept: float, size: float, kind: str, compiled: bool) -> None:
    layer = build(kind, size=size)
    steps = len(gaps)
    generator = torch.Generator().manual_seed(steps)
    y = torch.randn(2, steps, 4, generator=generator).requires_grad_()
    y_var = torch.full((2, steps, 4), variance, requires_grad=True)
    mask = torch.rand(2, steps, 4, generator=generator) < kept
    times = torch.tensor(gaps, dtype=torch.float64).cumsum(0)
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr("cru.native.available", lambda *_: False)
            patch.setattr("cru.native.paired_available", lambda *_: False)
        result = layer.filter(y, y_var, times, mask=mask)
    assert_valid(result.prior), assert_valid(result.posterior)
    loss = sum(field.sum() for part in (result.prior[:4], result.posterior[:4], result.gain) for field in part)
    loss.backward()
    for tensor in (y, y_var, *layer.parameters()):
        assert tensor.grad is None or torch.isfinite(tensor.grad).all()


def test_a_hundred_thousand_steps(name: str) -> None:
    layer = build(name, size=0.1)
    x = torch.randn(1, 100_000, 3, generator=torch.Generator().manual_seed(0))
    output, state = layer(x, torch.arange(100_000) * 0.5)
    assert_valid(state)
    assert all(torch.isfinite(grad).all() for grad in gradients(layer, output, state))


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 5, 3), (3, 1, 3)])
def test_one_series_one_time_and_nothing_observed(name: str, shape: tuple[int, int, int]) -> None:
    layer = build(name)
    for x in (torch.zeros(shape), torch.full(shape, torch.nan)):
        output, state = layer(x, torch.zeros(shape[1]))
        assert_valid(state)
        assert all(torch.isfinite(grad).all() for grad in gradients(layer, output, state))


def test_a_state_of_another_type_is_converted(name: str) -> None:
    layer, (x, times) = build(name), series()
    _, state = layer(x, times)
    doubled = cru.Belief(*(field.double() for field in state[:4]), state.time)
    assert torch.equal(layer(x, times + 20, state=state)[0], layer(x, times + 20, state=doubled)[0])


def test_the_initial_belief_as_state_equals_no_state(name: str) -> None:
    layer, (x, times) = build(name), series()
    assert torch.equal(layer(x, times, state=layer.initial(4))[0], layer(x, times)[0])


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("variance_map", ["exp", "square"])
def test_an_absurd_observation_is_no_nan(name: str, variance_map: str, compiled: bool, monkeypatch) -> None:
    if not compiled:
        monkeypatch.setattr("cru.native.available", lambda *_: False)
        monkeypatch.setattr("cru.native.paired_available", lambda *_: False)
    layer = build(name, variance_map=variance_map)
    for size in (1e3, 1e20, 1e30):
        output, state = layer(torch.full((1, 3, 3), size), torch.arange(3.0))
        assert_valid(state)
        assert all(torch.isfinite(grad).all() for grad in gradients(layer, output, state))
    result = layer.filter(torch.ones(1, 2, 4), torch.full((1, 2, 4), 1e40, dtype=torch.float64), torch.arange(2.0))
    assert_valid(result.posterior)
    assert result.gain.upper.dtype == torch.float32


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("gap", [86_400 * 10**9, 10**18])
def test_gaps_of_days_in_nanoseconds_without_a_scale(name: str, gap: int, compiled: bool, monkeypatch) -> None:
    if not compiled:
        monkeypatch.setattr("cru.native.available", lambda *_: False)
        monkeypatch.setattr("cru.native.paired_available", lambda *_: False)
    layer = build(name)
    output, state = layer(torch.randn(2, 4, 3), torch.arange(4) * gap)
    assert_valid(state), assert_valid(layer.propagate(state, 1e39))
    assert all(torch.isfinite(grad).all() for grad in gradients(layer, output, state))


def test_whole_times_stay_whole(name: str) -> None:
    layer = build(name, time_scale=1e-9)
    start = 1_700_000_000_000_000_000
    _, state = layer(torch.randn(2, 3, 3), start + torch.arange(3) * 1_000_000)
    for delta in (5e5, 500_000, torch.tensor([5e5, 5e5])):
        later = layer.propagate(state, delta)
        assert later.time.tolist() == [start + 2_500_000] * 2
    unsigned, _ = layer(torch.randn(1, 3, 3), torch.tensor([1, 2, 200], dtype=torch.uint8))
    assert torch.isfinite(unsigned).all()


def test_pickled_and_copied(name: str) -> None:
    layer, (x, times) = build(name), series()
    for other in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        assert torch.equal(other(x, times)[0], layer(x, times)[0])


def test_made_on_the_meta_device_and_filled_later(name: str) -> None:
    layer, (x, times) = build(name), series()
    empty = LAYERS[name](3, 8, num_basis=4, device="meta").to_empty(device="cpu")
    empty.load_state_dict(layer.state_dict())
    assert torch.equal(empty(x, times)[0], layer(x, times)[0])


def test_autocast_leaves_the_filter_alone(name: str) -> None:
    layer, (x, times) = build(name), series()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, state = layer(x, times)
        later = layer.propagate(state, 1.0)
    assert torch.equal(output, layer(x, times)[0]) and later.mean.dtype == torch.float32


def test_autocast_leaves_the_bare_filter_alone(name: str) -> None:
    layer, (x, times) = build(name), series()
    expected = layer.filter(*layer.observe(x), times).posterior
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, y_var = layer.observe(x.bfloat16().float())
        found = layer.filter(*layer.observe(x), times).posterior
    assert y.dtype == y_var.dtype == torch.float32
    assert torch.equal(found.mean, expected.mean)


def test_an_integer_time_plus_a_fractional_gap(name: str) -> None:
    layer, (x, _) = build(name), series()
    (_, whole), (_, real) = layer.step(x[:, 0], 3), layer.step(x[:, 0], 3.0)
    assert layer.propagate(whole, 2).time.dtype == layer.propagate(whole, 2.0).time.dtype == torch.int64
    for gap in (0.5, 2.0, 2):
        assert torch.equal(layer.propagate(whole, gap).time.double(), layer.propagate(real, gap).time)
        after = [layer.step(x[:, 1], 6, layer.propagate(state, gap))[0] for state in (whole, real)]
        assert torch.equal(*after)


def test_a_repeated_time_moves_nothing(name: str) -> None:
    """As in one-step-ahead, where a question and its observation share a time."""
    layer, (x, times) = build(name), series()
    asked = torch.stack([torch.full_like(x, torch.nan), x], 2).flatten(1, 2)
    output, _ = layer(asked, times.repeat_interleave(2, 1))
    assert torch.equal(output[:, 1::2], layer(x, times)[0])


def test_a_frozen_layer_can_be_copied_and_differentiated_twice(name: str) -> None:
    layer, (x, times) = build(name).eval(), series()
    layer.freeze()
    x.requires_grad_()
    for _ in range(2):
        layer(x, times)[0].sum().backward()
    assert torch.equal(copy.deepcopy(layer)(x, times)[0], layer(x, times)[0])


@pytest.mark.parametrize(
    "change",
    [
        lambda layer, other: layer.load_state_dict(other.state_dict()),
        lambda layer, other: layer.train().load_state_dict(other.state_dict(), assign=True),
        lambda layer, other: (
            [p.data.copy_(q) for p, q in zip(layer.parameters(), other.parameters(), strict=True)] and layer.float()
        ),
    ],
    ids=["loaded", "trained", "moved"],
)
def test_a_frozen_layer_does_not_stay_behind(name: str, change) -> None:
    layer, other, (x, times) = build(name).eval(), build(name, size=0.1), series()
    layer.freeze()
    change(layer, other)
    assert torch.equal(layer(x, times)[0], other(x, times)[0])


def test_functional_transforms_work_in_pytorch(name: str) -> None:
    layer, (x, times) = build(name), series()
    _, state = layer(x, times)
    jacobian = torch.func.jacrev(lambda mean: layer.propagate(state._replace(mean=mean), 0.5).mean)(state.mean.detach())
    assert jacobian.shape == (4, 8, 4, 8) and torch.isfinite(jacobian).all()


def test_threads_do_not_hang_a_forked_child() -> None:
    program = """
import os, torch, cru
from cru.native import call
torch.set_num_threads(2)
call.threaded(4, lambda first, last: last - first)
child = os.fork()
if child == 0:
    os._exit(0 if call.threaded(4, lambda first, last: last - first) == [2, 2] else 1)
print(os.waitpid(child, 0)[1])
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "0"


def test_eigenvectors_stay_orthogonal_through_training() -> None:
    layer = cru.FastCRU(3, 30)
    x, times = series(8, 12)
    target = torch.randn(8, 12, 30)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        ((layer(x, times)[0] - target) ** 2).mean().backward()
        optimiser.step()
    E = layer.eigenvectors
    assert (E - torch.eye(30)).abs().max() > 0.1
    assert (E @ E.mT - torch.eye(30)).abs().max() < 1e-6


def test_transitions_start_as_in_the_paper() -> None:
    times = torch.arange(5.0)
    for layer in (cru.CRU(3, 8), cru.FastCRU(3, 8)):
        y = torch.randn(2, 5, 4)
        result = layer.filter(y, torch.ones(2, 5, 4), times)
        assert difference(result.prior.mean[:, 1:], result.posterior.mean[:, :-1]) < 1e-4
        torch.testing.assert_close(result.prior.upper[:, 0], torch.full((2, 4), 10.0))
        torch.testing.assert_close(layer.noise, torch.full((8,), 0.1))
    A = cru.RKN(3, 8).transition().matrix(cru.RKN(3, 8).initial(1), torch.ones(1))[0]
    expected = torch.eye(8) + 0.2 * (torch.diag(torch.ones(4), 4) - torch.diag(torch.ones(4), -4))
    torch.testing.assert_close(A, expected)


def test_parameters_are_those_of_the_paper() -> None:
    """The filter's share of 14.4 k (CRU) and 10.1 k (f-CRU) on pendulum regression."""

    def count(layer: KalmanLayer) -> int:
        heads = sum(p.numel() for head in (layer.observation, layer.observation_variance) for p in head.parameters())
        return sum(p.numel() for p in layer.parameters()) - heads

    band = 15 * 7 - 2 * (1 + 2 + 3)
    assert count(cru.CRU(1, 30)) == 15 * 4 * band + 15 * 31 + 30 + 30
    assert count(cru.FastCRU(1, 30)) == 15 * 30 + 30 * 30 + 15 * 31 + 30 + 30


@pytest.mark.parametrize("gap", [0.0, 0.3, 5.0])
def test_a_new_coupled_cru_rotates_its_state(gap: float) -> None:
    layer = cru.CRU(3, 8, coupling=0.7).double()
    mean = torch.randn(2, 8, dtype=torch.float64)
    upper, lower = mean.chunk(2, -1)
    angle = torch.tensor(0.7 * gap, dtype=torch.float64)
    expected = torch.cat([upper * angle.cos() + lower * angle.sin(), lower * angle.cos() - upper * angle.sin()], -1)
    moved = layer.propagate(layer.initial(2)._replace(mean=mean), gap)
    torch.testing.assert_close(moved.mean, expected)


def test_gradient_checkpointing(name: str) -> None:
    layer, x, times = build(name), torch.randn(2, 5, 3), torch.arange(5.0)
    layer(x, times)[0].square().sum().backward()
    expected = [parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None]
    layer.zero_grad()
    checkpoint(lambda x: layer(x, times)[0], x, use_reentrant=False).square().sum().backward()
    found = [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_times_of_two_float_types_use_the_less_precise_one(name: str) -> None:
    layer, x = build(name), torch.randn(1, 1, 3)
    _, state = layer(x, torch.tensor([0.1]))  # float32, as tensors are
    _, again = layer.step(x[:, 0], 0.1, state)  # float64, as numbers are
    later = layer.propagate(state, 0.6)
    assert again.time.item() == state.time.item() and later.time.dtype == torch.float32
    _, state = layer.step(x[:, 0], 0.7, later)  # though 0.1 + 0.6 is a little more, in float32
    _, state = layer(x, torch.tensor([0.7]), state=state._replace(time=state.time.double()))
    with pytest.raises(ValueError, match="must not decrease"):
        layer.step(x[:, 0], 0.6999, state)


def test_a_belief_is_kept_in_a_file_and_moved(name: str, tmp_path) -> None:
    _, state = build(name)(torch.randn(2, 4, 3), torch.arange(4.0))
    torch.save({"state": state}, tmp_path / "state.pt")
    found = torch.load(tmp_path / "state.pt")["state"]
    assert isinstance(found, Belief) and all(torch.equal(a, b) for a, b in zip(found, state, strict=True))
    assert state.to("meta").mean.device.type == state.to("meta").time.device.type == "meta"


def test_half_precision_is_refused_everywhere(name: str) -> None:
    layer = build(name)
    _, state = layer(torch.randn(2, 4, 3), torch.arange(4.0))
    with pytest.raises(ValueError, match=r"torch\.float32 or torch\.float64"):
        layer.half().propagate(state, 1.0)


def test_numbers_of_numpy_are_numbers() -> None:
    for scale in (np.int64(2), np.float32(2.0), 0.2):
        check_time_scale(scale)
    for wrong in (np.float32("inf"), 0, "1", None):
        with pytest.raises(ValueError, match="`time_scale` must be a positive number"):
            check_time_scale(wrong)


def test_a_coupling_is_finite() -> None:
    with pytest.raises(ValueError, match="`coupling` must be finite"):
        cru.CRU(3, 8, coupling=float("nan"))
