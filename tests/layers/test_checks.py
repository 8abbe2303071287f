"""Bad input gets one sentence: argument, rule, value found, what to do."""

import pytest
import torch

import cru

X, TIMES, ONES = torch.randn(2, 5, 3), torch.arange(5.0), torch.ones(2, 5, 4)


def _belief(layer: cru.CRU, **changed: torch.Tensor) -> cru.Belief:
    return layer.initial(2)._replace(**changed)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"hidden_size": 7}, r"`hidden_size` must be even .* got 7. Use 6 or 8"),
        ({"hidden_size": 1}, r"`hidden_size` must be even .* got 1. Use 2\."),
        ({"hidden_size": 2, "bandwidth": 4}, r"`bandwidth` must be between 0 and 3 for hidden_size = 2, got 4"),
        ({"hidden_size": 0}, r"`hidden_size` must be an integer of at least 1, got 0"),
        ({"input_size": -1}, r"`input_size` must be an integer of at least 1, got -1"),
        ({"num_basis": 0}, r"`num_basis` must be an integer of at least 1, got 0"),
        ({"bandwidth": -1}, r"`bandwidth` must be between 0 and 4 for hidden_size = 8, got -1"),
        ({"bandwidth": 5}, r"`bandwidth` must be between 0 and 4 for hidden_size = 8, got 5"),
        ({"time_scale": 0.0}, r"`time_scale` must be a positive number, got 0.0"),
        ({"time_scale": float("inf")}, r"`time_scale` must be a positive number, got inf"),
        ({"dtype": torch.float16}, r"`dtype` must be torch.float32 or torch.float64, got torch.float16"),
        ({"noise_map": "sofplus"}, r"a positive map must be a known one, got 'sofplus'; did you mean 'softplus'"),
    ],
)
def test_construction(arguments: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        cru.CRU(**({"input_size": 3, "hidden_size": 8} | arguments))


def test_defaults_never_crash() -> None:
    for hidden_size in (2, 4, 6):
        states, last = cru.CRU(1, hidden_size)(torch.randn(1, 2, 1), torch.arange(2.0))
        assert states.shape == (1, 2, hidden_size) and all(torch.isfinite(part).all() for part in (states, *last[:4]))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda n: n(X[..., :2], TIMES), r"`x` must have the shape \(batch, time, 3\), got \(2, 5, 2\)"),
        (lambda n: n(X[0], TIMES), r"`x` must have the shape"),
        (lambda n: n(X[:, :0], TIMES[:0]), r"`x` must have at least one time point"),
        (
            lambda n: n(X, TIMES[:4]),
            r"`times` must have the shape \(time,\) = \(5,\) or \(batch, time\) = \(2, 5\), got \(4,\)",
        ),
        (lambda n: n(X, TIMES.flip(0)), r"`times` must not decrease: series 0 goes from 4.0 to 3.0 at step 1"),
        (lambda n: n(X, TIMES / 0), r"`times` must be finite"),
        (lambda n: n(X / 0, TIMES), r"`x` must be finite where it is observed: series 0, step 0, feature 0 is"),
        (
            lambda n: n(X, TIMES, mask=torch.ones(2, 5)),
            r"`mask` must be a tensor of dtype torch.bool .* got torch.float32",
        ),
        (
            lambda n: n(X, TIMES, mask=torch.ones(2, 4).bool()),
            r"`mask` must have the shape \(2, 5\) or \(2, 5, 3\), got \(2, 4\)",
        ),
        (lambda n: n(X, TIMES, state=n.initial(3)), r"`state.mean` must have the shape \(2, 8\), got \(3, 8\)"),
        (
            lambda n: n(X, TIMES, state=_belief(n, upper=torch.ones(1, 1))),
            r"`state.upper` must have the shape \(2, 4\)",
        ),
        (lambda n: n(X, TIMES, state=_belief(n, side=torch.full((2, 4), torch.nan))), r"`state.side` must be finite"),
        (lambda n: n(X, TIMES, state=_belief(n, time=torch.tensor(1.0))), r"`state.time` must have the shape \(2,\)"),
        (
            lambda n: n(X, TIMES, state=n.filter(ONES, ONES, TIMES).posterior),
            r"Take one of its times, as in `state.at\(-1\)`",
        ),
        (lambda n: n.filter(X, X, TIMES), r"`y` must have the shape \(batch, time, 4\)"),
        (lambda n: n.filter(torch.ones(2, 5, 4), torch.ones(2, 5, 3), TIMES), r"`y_var` must have the shape of `y`"),
        (
            lambda n: n.filter(torch.ones(2, 5, 4), -torch.ones(2, 5, 4), TIMES),
            r"`y_var` must not be negative: series 0, step 0",
        ),
        (lambda n: n.filter(torch.ones(2, 5, 4), torch.ones(2, 5, 4) / 0, TIMES), r"`y_var` must be finite"),
        (lambda n: n.propagate(n.initial(2), -1.0), r"`delta` must be finite and not negative, got -1.0"),
        (
            lambda n: n.propagate(n.initial(2), torch.ones(3)),
            r"`delta` must be a number or have the shape \(2,\), got \(3,\)",
        ),
        (lambda n: n.step(X[:, 0], torch.ones(2, 1)), r"`time` must be a number or have the shape \(2,\)"),
        (lambda n: n.half()(X, TIMES), r"`dtype` must be torch.float32 or torch.float64, got torch.float16"),
        (lambda n: n.step(X, TIMES), r"`x_t` must be a tensor of the shape \(batch, 3\)"),
    ],
)
def test_calls(call, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call(cru.CRU(3, 8))
