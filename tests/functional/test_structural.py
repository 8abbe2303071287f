"""The structural filter, smoother, likelihood and samples against a dense Gaussian process."""

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from cru import native
from cru.functional import structural
from cru.functional.structural import (
    Components,
    StructuralState,
    filter_components,
    filter_structural,
    forecast_structural,
    initial_state,
    propagate,
    sample_structural,
    smooth_components,
    smooth_structural,
)
from tests.helpers import difference

COMPILED = pytest.param(native, marks=pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler"))
both = pytest.mark.parametrize("run", [structural, COMPILED], ids=["torch", "compiled"])


class Problem(NamedTuple):
    times: Tensor
    values: Tensor
    mask: Tensor
    regressors: Tensor
    components: Components

    def rows(self, part: slice) -> "Problem":
        return Problem(*(field[:, part] for field in self[:4]), self.components)


def regressors_at(times: Tensor, size: int) -> Tensor:
    """A constant for every odd number of coefficients left, then cos and sin of ever shorter periods."""
    phase = 2 * math.pi * times[..., None] / torch.tensor([24.0 / (k + 1) for k in range(size // 2)])
    waves = torch.stack([phase.cos(), phase.sin()], -1).flatten(-2)
    return torch.cat([torch.ones(*times.shape, size - waves.shape[-1], dtype=torch.float64), waves], -1)


def problem(size: int = 5, time: int = 14, batch: int = 3, variables: int = 2, huge: bool = False) -> Problem:
    """Missing values (NaN), several rows at one time, padding at the end of the last series, and perhaps huge gaps."""
    generator = torch.Generator().manual_seed(size)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    times = (40 * draw(batch, time)).sort(1).values
    times[:, 4] = times[:, 5]
    times = times.sort(1).values
    if huge:
        times[:, 8:] += 1e15
        times[0, 10:] += 3e8
    mask = draw(batch, time, variables) < 0.7
    times[-1, -2:] = times[-1, -3]
    mask[-1, -2:] = False
    values = 4 * draw(batch, time, variables) - 2
    values[~mask] = torch.nan
    components = Components(2 * draw(variables, size) ** 2, 0.1 + draw(variables, size), 0.05 + 0.2 * draw(variables))
    components.rate[:, 0] = 1e-9
    return Problem(times, values, mask, regressors_at(times, size), components)


def kernel(components: Components, v: int, s: Tensor, g: Tensor, t: Tensor, h: Tensor) -> Tensor:
    """Covariances of the signal at times s (regressors g) and t (regressors h)."""
    decay = torch.exp(-(s[:, None] - t[None]).abs()[..., None] * components.rate[v])
    return (components.var[v] * g[:, None] * h[None] * decay).sum(-1)


class Dense:
    """One variable of one series, conditioned on some of its observations by one linear solve."""

    def __init__(self, p: Problem, b: int, v: int, used: Tensor):
        self.p, self.b, self.v = p, b, v
        self.times, self.h, self.y = p.times[b, used], p.regressors[b, used], p.values[b, used, v]
        self.gram = kernel(p.components, v, self.times, self.h, self.times, self.h)
        self.gram = self.gram + p.components.noise[v] * torch.eye(len(self.y), dtype=torch.float64)

    def signal(self, t: Tensor, h: Tensor, part: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and covariance at t, of the coefficients that ``part`` selects."""
        g = h if part is None else h * part
        cross = kernel(self.p.components, self.v, t, g, self.times, self.h)
        weight = torch.linalg.solve(self.gram, cross.T).T
        return weight @ self.y, kernel(self.p.components, self.v, t, g, t, g) - weight @ cross.T

    def nll(self) -> Tensor:
        total = torch.distributions.MultivariateNormal(torch.zeros_like(self.y), self.gram)
        return -total.log_prob(self.y) if len(self.y) else self.y.sum()


def each(p: Problem):
    return ((b, v) for b in range(len(p.times)) for v in range(p.values.shape[-1]))


@both
@pytest.mark.parametrize("size", [1, 4, 5, 9, 21])
@pytest.mark.parametrize("huge", [False, True])
def test_the_filter_is_a_gaussian_process_on_earlier_rows(run, size: int, huge: bool) -> None:
    p = problem(size, huge=huge)
    found = run.filter_structural(*p)
    for b, v in each(p):
        for t in range(p.times.shape[1]):
            dense = Dense(p, b, v, p.mask[b, :, v] & (torch.arange(p.times.shape[1]) < t))
            mean, cov = dense.signal(p.times[b, t : t + 1], p.regressors[b, t : t + 1])
            torch.testing.assert_close(found.mean[b, t, v], mean[0], rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(found.var[b, t, v], cov[0, 0], rtol=1e-9, atol=1e-9)
        expected = Dense(p, b, v, p.mask[b, :, v]).nll()
        torch.testing.assert_close(found.nll[b, v], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("start", [0, 6])
def test_filtered_components_are_gaussian_processes_on_rows_so_far(size: int, start: int) -> None:
    p = problem(size)
    state = filter_structural(*p.rows(slice(0, start))).state if start else None
    groups = torch.arange(size) % 3
    found_mean, found_var = filter_components(*p.rows(slice(start, None)), groups, state)
    for b, v in each(p):
        for t in range(start, p.times.shape[1]):
            dense = Dense(p, b, v, p.mask[b, :, v] & (torch.arange(p.times.shape[1]) <= t))
            for g in range(int(groups.max()) + 1):
                mean, cov = dense.signal(p.times[b, t : t + 1], p.regressors[b, t : t + 1], groups == g)
                torch.testing.assert_close(found_mean[b, t - start, v, g], mean[0], rtol=1e-9, atol=1e-9)
                torch.testing.assert_close(found_var[b, t - start, v, g], cov[0, 0], rtol=1e-9, atol=1e-9)


@both
@pytest.mark.parametrize("size", [1, 5, 21])
@pytest.mark.parametrize("huge", [False, True])
@pytest.mark.parametrize("start", [0, 6])
def test_the_smoother_is_a_gaussian_process_on_all_rows(run, size: int, huge: bool, start: int) -> None:
    """From a state after six rows, too; those rows then enter by the state alone."""
    p = problem(size, huge=huge)
    state = run.filter_structural(*p.rows(slice(0, start))).state if start else None
    later = p.rows(slice(start, None))
    found = run.smooth_structural(*later, state)
    groups = torch.arange(size) % 3
    part_mean, part_var = run.smooth_components(*later, groups, state)
    assert difference(part_mean.sum(-1), found.mean) < 1e-9
    for b, v in each(p):
        seen, t, h = p.mask[b, :, v], later.times[b], later.regressors[b]
        dense = Dense(p, b, v, seen)
        mean, cov = dense.signal(t, h)
        torch.testing.assert_close(found.mean[b, :, v], mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.var[b, :, v], cov.diagonal(), rtol=1e-9, atol=1e-9)
        for g in range(int(groups.max()) + 1):
            mean, cov = dense.signal(t, h, groups == g)
            torch.testing.assert_close(part_mean[b, :, v, g], mean, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(part_var[b, :, v, g], cov.diagonal(), rtol=1e-9, atol=1e-9)
        for k in range(len(t)):
            others = seen & (torch.arange(len(seen)) != start + k)
            mean, cov = Dense(p, b, v, others).signal(t[k : k + 1], h[k : k + 1])
            torch.testing.assert_close(found.loo_mean[b, k, v], mean[0], rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(found.loo_var[b, k, v], cov[0, 0], rtol=1e-9, atol=1e-9)


@both
def test_parts_of_a_series_add_up(run) -> None:
    p = problem()
    whole = run.filter_structural(*p)
    first = run.filter_structural(*p.rows(slice(0, 5)))
    second = run.filter_structural(*p.rows(slice(5, None)), first.state)
    assert difference(torch.cat([first.mean, second.mean], 1), whole.mean) < 1e-12
    assert difference(torch.cat([first.var, second.var], 1), whole.var) < 1e-12
    assert difference(first.nll + second.nll, whole.nll) < 1e-12
    for found, expected in zip(second.state, whole.state, strict=True):
        assert difference(found, expected) < 1e-12


def test_a_forecast_is_an_unobserved_row() -> None:
    p = problem(huge=True)
    state = filter_structural(*p).state
    at = p.times[:, -1:] + torch.tensor([[50.0, 0.0, 0.5, 1e15]], dtype=torch.float64)
    h = regressors_at(at, 5)
    found, later = forecast_structural(state, at, h, p.components), propagate(state, at[:, 0], p.components)
    moved = forecast_structural(later, at[:, :1], h[:, :1], p.components)
    for b, v in each(p):
        mean, cov = Dense(p, b, v, p.mask[b, :, v]).signal(at[b], h[b])
        torch.testing.assert_close(found[0][b, :, v], mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found[1][b, :, v], cov.diagonal(), rtol=1e-9, atol=1e-9)
    for a, b in zip(moved, found, strict=True):
        torch.testing.assert_close(a[:, 0], b[:, 0], rtol=1e-12, atol=1e-12)
    assert torch.equal(later.time, at[:, 0])


def likelihood(run, p: Problem, state: StructuralState | None = None) -> Tensor:
    return run.nll_structural(*p, state) if run is native else run.filter_structural(*p, state).nll


@both
@pytest.mark.parametrize("huge", [False, True])
def test_gradients_are_those_of_the_dense_gaussian_process(run, huge: bool) -> None:
    p = problem(huge=huge)
    leaves = [field.clone().requires_grad_() for field in (*p.components, torch.nan_to_num(p.values))]
    p = p._replace(components=Components(*leaves[:3]), values=leaves[3])
    weight = torch.rand(p.mask.shape[::2], dtype=torch.float64)
    nll = likelihood(run, p)
    dense = torch.stack([Dense(p, b, v, p.mask[b, :, v]).nll() for b, v in each(p)]).view_as(nll)
    torch.testing.assert_close(nll, dense, rtol=1e-9, atol=1e-9)
    found = torch.autograd.grad((weight * nll).sum(), leaves)
    expected = torch.autograd.grad((weight * dense).sum(), leaves)
    for name, ours, theirs in zip(("rate", "var", "noise", "values"), found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}")


def test_samples_have_the_mean_and_covariance_of_the_dense_gaussian_process() -> None:
    """For the rows after a state, which the samples continue; five standard errors."""
    p, n = problem(time=12, batch=1), 20_000
    state = filter_structural(*p.rows(slice(0, 5))).state
    later, generator = p.rows(slice(5, None)), torch.Generator().manual_seed(0)
    found = sample_structural(*later, n, generator, state)
    assert found.shape == (n, 1, 7, 2)
    for v in range(2):
        mean, cov = Dense(p, 0, v, p.mask[0, :, v]).signal(later.times[0], later.regressors[0])
        draws = found[:, 0, :, v]
        assert torch.all((draws.mean(0) - mean).abs() < 5 * (cov.diagonal() / n).sqrt())
        spread = (cov.diagonal()[:, None] * cov.diagonal() + cov**2) / n
        assert torch.all((draws.T.cov() - cov).abs() < 5 * spread.sqrt())
    again = sample_structural(*later, n, torch.Generator().manual_seed(0), state)
    assert torch.equal(found, again)


def test_samples_without_a_state() -> None:
    p, n = problem(time=9, batch=2), 20_000
    found = sample_structural(*p, n, torch.Generator().manual_seed(1))
    mean, cov = Dense(p, 1, 0, p.mask[1, :, 0]).signal(p.times[1], p.regressors[1])
    assert torch.all((found[:, 1, :, 0].mean(0) - mean).abs() < 5 * (cov.diagonal() / n).sqrt())
    assert torch.all((found[:, 1, :, 0].var(0) - cov.diagonal()).abs() < 5 * cov.diagonal() * (2 / n) ** 0.5)


@both
def test_single_precision_values_lose_nothing_but_their_own_rounding(run) -> None:
    """A level far above the noise: arithmetic in float32 would lose the variance."""
    p = problem(time=200)
    p.components.var[:, 0] = 1e2
    p = p._replace(values=p.values.float().double(), regressors=p.regressors.float().double())
    p = p._replace(components=Components(*(field.float().double() for field in p.components)))
    small = Problem(p.times, p.values.float(), p.mask, p.regressors.float(), Components(*(f.float() for f in p[4])))
    for ours, theirs in ((run.filter_structural, filter_structural), (run.smooth_structural, smooth_structural)):
        for found, expected in zip(ours(*small)[:2], theirs(*p)[:2], strict=True):
            assert found.dtype == torch.float32
            torch.testing.assert_close(found.double(), expected, rtol=2e-7, atol=1e-7)
    assert run.filter_structural(*small).state.explained.dtype == torch.float64
    assert all(part.dtype == torch.float32 for part in run.smooth_components(*small, torch.arange(5)))


@both
def test_a_prior_far_above_the_noise_leaves_the_variance_its_digits(run) -> None:
    """The oracle is R I - R² (K + R I)⁻¹, the covariance at the observed rows without a difference of large numbers."""
    p = problem(time=40, batch=1)
    p.components.var[:, 0] = 1e4
    p.components.noise[:] = 1e-4
    found = run.smooth_structural(*p)
    for v in range(2):
        seen = p.mask[0, :, v]
        expected = 1e-4 - 1e-8 * torch.linalg.inv(Dense(p, 0, v, seen).gram).diagonal()
        torch.testing.assert_close(found.var[0, seen, v], expected, rtol=1e-6, atol=0)


@both
@pytest.mark.parametrize("noise", [0.0, 1e-12, 1e12])
@pytest.mark.parametrize("var", [0.0, 1e-12, 1e6])
def test_any_gap_and_scale_give_finite_results(run, noise: float, var: float) -> None:
    times = torch.tensor([0.0, 0.0, 1e-300, 1.0, 1e6, 1e15, 2e15, 3e15], dtype=torch.float64).expand(2, 8)
    values = torch.randn(2, 8, 2, requires_grad=True)
    rate = torch.tensor([[0.0, 1e-12, 1.0, 1e12], [1e-20, 1.0, 1.0, 1e30]], requires_grad=True)
    leaves = [rate, torch.full((2, 4), var, requires_grad=True), torch.full((2,), noise, requires_grad=True)]
    p = Problem(times, values, torch.rand(2, 8, 2) < 0.8, torch.ones(2, 8, 4), Components(*leaves))
    with torch.no_grad():
        results = [*run.filter_structural(*p)[:3], *run.filter_structural(*p).state, *run.smooth_structural(*p)]
    nll = likelihood(run, p)
    for tensor in (*results, nll, *torch.autograd.grad(nll.sum(), [*leaves, values])):
        assert torch.isfinite(tensor).all()
    assert all(torch.all(tensor >= 0) for tensor in (results[1], results[7], results[9]))


@both
def test_nothing_observed_is_the_prior(run) -> None:
    p = problem()
    p = p._replace(mask=torch.zeros_like(p.mask))
    prior = (p.regressors[:, :, None] ** 2 * p.components.var).sum(-1)
    filtered, smoothed = run.filter_structural(*p), run.smooth_structural(*p)
    for mean in (filtered.mean, smoothed.mean, smoothed.loo_mean, filtered.nll, likelihood(run, p)):
        assert torch.equal(mean, torch.zeros_like(mean))
    for var in (filtered.var, smoothed.var, smoothed.loo_var):
        torch.testing.assert_close(var, prior, rtol=1e-12, atol=0)
    start = initial_state(p.components, p.times)
    assert all(torch.equal(a, b) for a, b in zip(filtered.state[:2], start[:2], strict=True))


@both
def test_times_that_decrease_are_refused(run) -> None:
    p = problem()
    with pytest.raises(ValueError, match="`times` must not decrease"):
        run.filter_structural(p.times.flip(1), *p[1:])
    with pytest.raises(ValueError, match="`times` must not decrease"):
        run.filter_structural(*p, initial_state(p.components, p.times + 1e3))


def test_one_group_is_the_whole_signal() -> None:
    p = problem()
    mean, var = smooth_components(*p, torch.zeros(5, dtype=torch.int64))
    smoothed = smooth_structural(*p)
    assert difference(mean[..., 0], smoothed.mean) < 1e-12
    assert difference(var[..., 0], smoothed.var) < 1e-12
