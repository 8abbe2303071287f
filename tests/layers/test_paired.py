import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cru
from cru import native
from tests.helpers import difference
from tests.layers.test_layers import assert_valid, build


def setting() -> tuple[cru.PairedCRU, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    layer = cru.PairedCRU(1, 8, dtype=torch.float64)
    y = torch.randn(3, 12, 4, dtype=torch.float64)
    y[torch.rand(3, 12, 4) < 0.3] = torch.nan
    return layer, y, torch.full_like(y, 0.2), torch.rand(3, 12, dtype=torch.float64).cumsum(1)


def test_smoothing_reduces_the_variance() -> None:
    layer, y, y_var, times = setting()
    filtered, smoothed = layer.filter(y, y_var, times).posterior, layer.smooth(y, y_var, times)
    assert torch.all(smoothed.upper <= filtered.upper * (1 + 1e-9))
    assert torch.all(smoothed.lower <= filtered.lower * (1 + 1e-9))
    assert difference(smoothed.mean[:, -1], filtered.mean[:, -1]) < 1e-12


def test_a_query_time_is_an_unobserved_time() -> None:
    layer, y, y_var, times = setting()
    at = torch.stack([times[:, 4] + 0.01, times[:, 0], times[:, -1] + 3, times[:, 6]], 1)
    asked = layer.smooth(y, y_var, times, at=at)
    whole = layer.smooth(y, y_var, times)
    assert difference(asked.mean[:, 1], whole.mean[:, 0]) < 1e-10
    assert difference(asked.upper[:, 3], whole.upper[:, 6]) < 1e-10
    later = layer.propagate(layer.filter(y, y_var, times).posterior.at(-1), 3.0)
    assert difference(asked.mean[:, 2], later.mean) < 1e-10
    with pytest.raises(ValueError, match="not before the first time"):
        layer.smooth(y, y_var, times, at=times[:, :1] - 1)


def test_the_smoother_trains() -> None:
    layer, y, y_var, times = setting()
    layer.smooth(y, y_var, times).mean.square().sum().backward()
    for name in ("raw_decay", "frequency", "raw_noise", "raw_initial_variance"):
        assert torch.isfinite(getattr(layer, name).grad).all()


@pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")
def test_the_compiled_smoother_and_the_one_in_pytorch_agree(monkeypatch) -> None:
    layer, y, y_var, times = setting()
    used = []

    def smoothed() -> tuple[cru.Belief, tuple[torch.Tensor, ...]]:
        belief = layer.smooth(y, y_var, times)
        used.append(belief.mean.grad_fn)
        loss = sum(field.square().sum() for field in belief[:4])
        return belief, torch.autograd.grad(loss, (layer.raw_decay, layer.frequency, layer.raw_noise))

    fast, grads = smoothed()
    monkeypatch.setattr("cru.native.paired_available", lambda *_: False)
    slow, expected = smoothed()
    assert ["paired_smooth" in type(node).__name__ for node in used] == [True, False]
    assert all(difference(a, b) < 1e-11 for a, b in zip(fast[:4], slow[:4], strict=True))
    assert all(difference(a, b) < 1e-8 for a, b in zip(grads, expected, strict=True))
    assert torch.equal(fast.time, times)


@given(
    gaps=st.lists(st.sampled_from([0.0, 1e-40, 1e-12, 1e-6, 0.3, 1.0, 50.0, 1e6]), min_size=1, max_size=40),
    variance=st.sampled_from([1e-12, 1e-6, 1.0, 1e12]),
    kept=st.sampled_from([0.0, 0.5, 1.0]),
    noise=st.sampled_from([-60.0, 0.0, 5.0]),
    compiled=st.booleans(),
)
def test_the_smoother_never_gives_a_nan(
    gaps: list[float], variance: float, kept: float, noise: float, compiled: bool
) -> None:
    layer = build("paired")
    layer.raw_noise.data += noise
    layer.raw_decay.data += noise
    generator = torch.Generator().manual_seed(len(gaps))
    y = torch.randn(2, len(gaps), 4, generator=generator).requires_grad_()
    y_var = torch.full_like(y, variance).requires_grad_()
    mask = torch.rand(y.shape, generator=generator) < kept
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr("cru.native.paired_available", lambda *_: False)
        belief = layer.smooth(y, y_var, torch.tensor(gaps, dtype=torch.float64).cumsum(0), mask)
    assert_valid(belief)
    sum(field.sum() for field in belief[:4]).backward()
    assert all(t.grad is None or torch.isfinite(t.grad).all() for t in (y, y_var, *layer.parameters()))


def test_the_start_spreads_over_rates_and_turns_of_the_span() -> None:
    layer = cru.PairedCRU(1, 32, span=50.0)
    assert float(layer.decay.detach().min()) == pytest.approx(0.1 / 50, rel=1e-3)
    assert float(layer.decay.detach().max()) == pytest.approx(1.0, rel=1e-3)
    turns = torch.sort(layer.frequency.detach() * 50 / (2 * torch.pi)).values
    assert float(turns[0]) == 0
    assert float(turns[-1]) == pytest.approx(50, rel=1e-5)
    torch.testing.assert_close(turns, turns.round(), rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="`span` must be positive"):
        cru.PairedCRU(1, 4, span=0.0)


def test_the_stationary_variance_of_a_new_pair_is_one() -> None:
    layer = cru.PairedCRU(1, 16)
    later = layer.propagate(layer.initial(1), 1e6)
    torch.testing.assert_close(later.upper, torch.ones(1, 8), rtol=1e-3, atol=0)
    torch.testing.assert_close(later.lower, torch.ones(1, 8), rtol=1e-3, atol=0)
    torch.testing.assert_close(later.mean, torch.zeros(1, 16))


def test_equal_gaps_share_their_transition() -> None:
    layer = cru.PairedCRU(1, 8, dtype=torch.float64)
    delta = torch.tensor([[0.0, 1.0, 2.0, 1.0], [0.0, 0.5, 1.0, 2.0]], dtype=torch.float64)
    shared, each = layer._transitions(delta), layer._transitions(delta.clone().requires_grad_())
    for a, b in zip(shared, each, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    weights = torch.rand_like(shared.cos)
    grads = [
        torch.autograd.grad(sum((field * weights).sum() for field in transitions), (layer.raw_decay, layer.frequency))
        for transitions in (shared, each)
    ]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_questions_between_whole_numbers() -> None:
    layer, y, y_var, _ = setting()
    times = torch.arange(12)
    at = torch.tensor([0.5, 2.5, 20.25])
    found, expected = (layer.smooth(y, y_var, t, at=at) for t in (times, times.double()))
    for a, b in zip(found[:4], expected[:4], strict=True):
        assert difference(a, b) < 1e-12
    assert layer.smooth(y, y_var, times, at=at[:0]).mean.shape == (3, 0, 8)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"y_var": -torch.ones(3, 12, 4)}, "`y_var` must not be negative"),
        ({"y_var": torch.ones(3, 12, 1)}, "`y_var` must have the shape"),
        ({"times": torch.arange(5)}, "`times` must have the shape"),
        ({"at": torch.tensor(0.5)}, "`at` must have the shape"),
        ({"at": torch.tensor([torch.inf])}, "`at` must be finite"),
    ],
)
def test_smoothing_checks_what_it_is_given(wrong: dict[str, object], words: str) -> None:
    layer, y, y_var, times = setting()
    with pytest.raises(ValueError, match=words):
        layer.smooth(**({"y": y, "y_var": y_var, "times": times} | wrong))
