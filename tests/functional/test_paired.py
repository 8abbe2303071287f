"""The paired filter and smoother against the dense joint Gaussian of each pair's whole series."""

import numpy as np
import pytest
import torch
from scipy.integrate import quad_vec
from scipy.linalg import expm

from cru import native
from cru.functional import Belief
from cru.functional.paired import PairedTransition, discretise_paired, filter_paired, phi1_complex
from cru.functional.paired_scan import filter_paired_scan, smooth_paired
from cru.functional.scan import associative_scan
from tests.helpers import difference, loss_of, random_belief

COMPILED = pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")
FILTERS = [filter_paired, filter_paired_scan, pytest.param(native.filter_paired, marks=COMPILED)]
SMOOTHERS = [smooth_paired, pytest.param(native.smooth_paired, marks=COMPILED)]


class Problem:
    """Random pairs, observations with some missing, short gaps and long, equal times among them and at the end."""

    def __init__(self, batch: int = 2, time: int = 7, obs: int = 3, seed: int = 0, dtype: torch.dtype = torch.float64):
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> torch.Tensor:
            return torch.rand(*shape, generator=generator, dtype=torch.float64)

        self.start = Belief(*(field.to(dtype) for field in random_belief(batch, obs, generator)[:4]))
        self.y, self.y_var = (4 * draw(batch, time, obs) - 2).to(dtype), (0.1 + draw(batch, time, obs)).to(dtype)
        self.mask = draw(batch, time, obs) < 0.7
        self.delta = 3 * draw(batch, time) ** 3
        self.delta[:, 3] = self.delta[0, -2:] = 0
        self.decay, self.frequency = draw(obs), 3 * draw(obs) - 1
        self.noise_upper, self.noise_lower = draw(obs), draw(obs)
        parameters = (self.decay, self.frequency, self.noise_upper, self.noise_lower, self.delta[..., None])
        self.transitions = PairedTransition(*(field.to(dtype) for field in discretise_paired(*parameters)))

    def filtered(self) -> tuple[Belief, Belief]:
        return filter_paired(self.start, self.y, self.y_var, self.mask, self.transitions)

    def joint(self, b: int, d: int) -> tuple[np.ndarray, np.ndarray]:
        """Mean (2T,) and covariance (2T, 2T) of one pair at all times, by SciPy."""
        A = np.array([[-self.decay[d], self.frequency[d]], [-self.frequency[d], -self.decay[d]]])
        Q = np.diag([self.noise_upper[d], self.noise_lower[d]])
        s, obs, steps = self.start, self.y.shape[-1], self.y.shape[1]
        mean = np.array([s.mean[b, d], s.mean[b, obs + d]])
        cov = np.array([[s.upper[b, d], s.side[b, d]], [s.side[b, d], s.lower[b, d]]])
        means, covs = [], np.zeros((steps, steps, 2, 2))
        for t, gap in enumerate(self.delta[b].tolist()):
            F = expm(A * gap)
            added = quad_vec(lambda s: expm(A * s) @ Q @ expm(A * s).T, 0, gap, epsrel=1e-13)[0] if gap else 0 * Q
            mean = F @ mean
            covs[t, t] = F @ (cov if t == 0 else covs[t - 1, t - 1]) @ F.T + added
            for earlier in range(t):
                covs[t, earlier] = F @ covs[t - 1, earlier]
                covs[earlier, t] = covs[t, earlier].T
            means.append(mean)
        return np.concatenate(means), covs.transpose(0, 2, 1, 3).reshape(2 * steps, 2 * steps)

    def conditioned(self, b: int, d: int, until: int) -> tuple[np.ndarray, np.ndarray, float]:
        """The joint given the observations up to time ``until``, and their log-likelihood."""
        mean, cov = self.joint(b, d)
        seen = [t for t in range(until + 1) if self.mask[b, t, d]]
        if not seen:
            return mean, cov, 0.0
        rows = [2 * t for t in seen]
        gram = cov[np.ix_(rows, rows)] + np.diag(self.y_var[b, seen, d])
        residual = self.y[b, seen, d].numpy() - mean[rows]
        weight = np.linalg.solve(gram, cov[rows]).T
        likelihood = -0.5 * (residual @ np.linalg.solve(gram, residual) + np.linalg.slogdet(2 * np.pi * gram)[1])
        return mean + weight @ residual, cov - weight @ cov[rows], float(likelihood)


@pytest.mark.parametrize("run", FILTERS)
def test_the_filter_is_exact(run) -> None:
    problem = Problem()
    prior, posterior = run(problem.start, problem.y, problem.y_var, problem.mask, problem.transitions)
    for b in range(2):
        for d in range(3):
            for t in range(7):
                mean, cov, _ = problem.conditioned(b, d, t)
                here = cov[2 * t : 2 * t + 2, 2 * t : 2 * t + 2]
                found = [posterior.mean[b, t, d], posterior.mean[b, t, 3 + d], posterior.upper[b, t, d]]
                found += [posterior.lower[b, t, d], posterior.side[b, t, d]]
                expected = [*mean[2 * t : 2 * t + 2], here[0, 0], here[1, 1], here[0, 1]]
                np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)
            total = torch.distributions.Normal(prior.mean[b, :, d], (prior.upper + problem.y_var)[b, :, d].sqrt())
            likelihood = total.log_prob(problem.y[b, :, d])[problem.mask[b, :, d]].sum()
            assert abs(float(likelihood) - problem.conditioned(b, d, 6)[2]) < 1e-9


def dense_log_likelihood(problem: Problem, parameters: list[torch.Tensor], b: int, d: int) -> torch.Tensor:
    """Of one pair's observations under their joint Gaussian, by matrix exponentials (Van Loan's for the noise)."""
    decay, frequency, upper, lower = (p[d] for p in parameters)
    A = torch.stack([torch.stack([-decay, frequency]), torch.stack([-frequency, -decay])])
    block = torch.cat([torch.cat([-A, torch.diag(torch.stack([upper, lower]))], 1), torch.cat([0 * A, A.T], 1)])
    s, obs = problem.start, problem.y.shape[-1]
    mean = torch.stack([s.mean[b, d], s.mean[b, obs + d]])
    cov = torch.stack([torch.stack([s.upper[b, d], s.side[b, d]]), torch.stack([s.side[b, d], s.lower[b, d]])])
    means, rows = [], []
    for gap in problem.delta[b]:
        both = torch.matrix_exp(block * gap)
        F = both[2:, 2:].T
        mean, cov = F @ mean, F @ cov @ F.T + F @ both[:2, 2:]
        rows.append([*(F @ cross for cross in (rows[-1] if rows else [])), cov])
        means.append(mean[0])
    seen = [t for t in range(len(means)) if problem.mask[b, t, d]]
    gram = torch.stack([torch.stack([rows[max(i, j)][min(i, j)][0, 0] for j in seen]) for i in seen])
    total = torch.distributions.MultivariateNormal(
        torch.stack([means[t] for t in seen]), gram + torch.diag(problem.y_var[b, seen, d])
    )
    return total.log_prob(problem.y[b, seen, d])


@pytest.mark.parametrize("run", FILTERS)
def test_gradients_are_those_of_the_dense_gaussian(run) -> None:
    problem = Problem()
    names = ("decay", "frequency", "noise_upper", "noise_lower")
    parameters = [getattr(problem, name).clone().requires_grad_() for name in names]
    prior, _ = run(
        problem.start, problem.y, problem.y_var, problem.mask, discretise_paired(*parameters, problem.delta[..., None])
    )
    each = torch.distributions.Normal(prior.mean[..., :3], (prior.upper + problem.y_var).sqrt()).log_prob(problem.y)
    found = torch.where(problem.mask, each, 0.0).sum()
    dense = sum(dense_log_likelihood(problem, parameters, b, d) for b in range(2) for d in range(3))
    torch.testing.assert_close(found, dense, rtol=0, atol=1e-9)
    for ours, theirs in zip(
        torch.autograd.grad(found, parameters), torch.autograd.grad(dense, parameters), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("run", SMOOTHERS)
def test_the_smoother_is_exact(run) -> None:
    problem = Problem()
    smoothed = run(*problem.filtered(), problem.transitions)
    for b in range(2):
        for d in range(3):
            mean, cov, _ = problem.conditioned(b, d, 6)
            np.testing.assert_allclose(smoothed.mean[b, :, d], mean[::2], rtol=1e-9, atol=1e-11)
            np.testing.assert_allclose(smoothed.mean[b, :, 3 + d], mean[1::2], rtol=1e-9, atol=1e-11)
            np.testing.assert_allclose(smoothed.upper[b, :, d], np.diag(cov)[::2], rtol=1e-9, atol=1e-11)
            np.testing.assert_allclose(smoothed.lower[b, :, d], np.diag(cov)[1::2], rtol=1e-9, atol=1e-11)
            np.testing.assert_allclose(smoothed.side[b, :, d], np.diag(cov, 1)[::2], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("run", FILTERS[1:])
@pytest.mark.parametrize("time", [1, 2, 5, 33])
def test_scan_and_compiled_agree_with_the_loop(run, time: int, dtype: torch.dtype, tolerance: float) -> None:
    problem = Problem(time=max(time, 4), seed=time, dtype=dtype)
    leaves = [
        t[:, :time] if i < 7 else t
        for i, t in enumerate((problem.y, problem.y_var, *problem.transitions, *problem.start[:4]))
    ]
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]

    def outputs(which):
        prior, posterior = which(
            Belief(*leaves[7:]), leaves[0], leaves[1], problem.mask[:, :time], PairedTransition(*leaves[2:7])
        )
        return [*prior[:4], *posterior[:4]], torch.autograd.grad(loss_of(prior, posterior), leaves)

    (expected, expected_grads), (found, grads) = outputs(filter_paired), outputs(run)
    assert max(difference(a, b) for a, b in zip(found, expected, strict=True)) < tolerance
    assert max(difference(a, b) for a, b in zip(grads, expected_grads, strict=True)) < tolerance


@pytest.mark.parametrize("run", FILTERS)
@pytest.mark.parametrize("smallest", [1e-4, 1e-9])
def test_precise_observations_keep_their_variance_in_float32(run, smallest: float) -> None:
    """1 - k of a gain k close to one has no digits left: the variance kept must not come from there."""
    exact, rounded = (Problem(time=33, dtype=dtype) for dtype in (torch.float64, torch.float32))
    found, expected = (run(p.start, p.y, smallest * p.y_var, p.mask, p.transitions)[1].upper for p in (rounded, exact))
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=0)


def smoothed_and_gradients(
    run, prior: Belief, posterior: Belief, transitions: PairedTransition
) -> tuple[list[torch.Tensor], tuple[torch.Tensor, ...]]:
    leaves = [
        field.clone().requires_grad_() for field in (*prior[:4], *posterior[:4], transitions.cos, transitions.sin)
    ]
    smoothed = run(Belief(*leaves[:4]), Belief(*leaves[4:8]), PairedTransition(*leaves[8:], *transitions[2:]))
    loss = loss_of(smoothed, Belief(*(field.sin() for field in smoothed[:4])))
    return list(smoothed[:4]), torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)


@COMPILED
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@pytest.mark.parametrize("time", [1, 2, 5, 33, 400])
def test_the_compiled_smoother_agrees_with_the_scan(time: int, dtype: torch.dtype, tolerance: float) -> None:
    problem = Problem(time=max(time, 4), obs=11, seed=time, dtype=dtype)
    prior, posterior = (Belief(*(field[:, -time:] for field in part[:4])) for part in problem.filtered())
    transitions = PairedTransition(*(field[:, -time:] for field in problem.transitions))
    expected, expected_grads = smoothed_and_gradients(smooth_paired, prior, posterior, transitions)
    found, grads = smoothed_and_gradients(native.smooth_paired, prior, posterior, transitions)
    assert max(difference(a, b) for a, b in zip(found, expected, strict=True)) < tolerance
    assert max(difference(a, b) for a, b in zip(grads, expected_grads, strict=True)) < tolerance


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("run", SMOOTHERS)
def test_a_known_state_does_not_change(run, dtype: torch.dtype) -> None:
    problem = Problem(dtype=dtype)
    none = torch.zeros_like(problem.y)
    prior, posterior = (part._replace(upper=none, lower=none, side=none) for part in problem.filtered())
    found, grads = smoothed_and_gradients(run, prior, posterior, problem.transitions)
    has_gap = problem.delta[:, 1:] > 0
    assert torch.equal(found[0][:, :-1][has_gap], posterior.mean[:, :-1][has_gap])
    assert all(torch.isfinite(tensor).all() for tensor in (*found, *grads))


@pytest.mark.parametrize("run", SMOOTHERS)
def test_no_gradient_where_the_smoothed_belief_is_clamped(run) -> None:
    fields = [[[[2e18, 3.0, 1.0, 1.0]]], [[[2e15, 1.0]]], [[[1.0, -0.5]]], [[[0.5, 0.7]]]]
    leaves = [torch.tensor(field, requires_grad=True) for field in fields]
    posterior = Belief(*leaves)
    one = torch.ones(1, 1, 2)
    smoothed = run(posterior, posterior, PairedTransition(one, 0 * one, one, one, 0 * one))
    assert smoothed.mean.tolist() == [[[float(torch.tensor(1e18)), 3.0, 1.0, 1.0]]]
    assert smoothed.upper.tolist() == [[[float(torch.tensor(1e15)), 1.0]]]
    assert smoothed.lower.tolist() == [[[1.0, 0.0]]]
    assert smoothed.side.tolist() == [[[0.5, 0.0]]]
    mean, upper, lower, side = torch.autograd.grad(sum(field.sum() for field in smoothed[:4]), leaves)
    assert mean.tolist() == [[[0.0, 1.0, 1.0, 1.0]]]
    assert upper.tolist() == [[[0.0, 1.0]]]
    assert lower.tolist() == side.tolist() == [[[1.0, 0.0]]]


def test_the_noise_integral_is_stable_towards_zero() -> None:
    x = -torch.tensor([0.0, 1e-12, 1e-6, 1e-3, 0.2, 0.2499, 0.3, 2.0, 50.0], dtype=torch.float64)
    for y in (torch.zeros_like(x), x.abs().flip(0), 3 * x):
        real, imaginary = phi1_complex(x, y)
        w = x.numpy() + 1j * y.numpy()
        nodes, weights = np.polynomial.legendre.leggauss(120)
        exact = (np.exp(w[:, None] * (nodes + 1) / 2) * weights / 2).sum(1)
        np.testing.assert_allclose(real.numpy() + 1j * imaginary.numpy(), exact, rtol=1e-12, atol=1e-13)
    inputs = (x[1:].clone().requires_grad_(), (0.5 * x[1:]).clone().requires_grad_())
    assert torch.autograd.gradcheck(phi1_complex, inputs, eps=1e-7, atol=1e-6)


def test_an_associative_scan_of_matrices() -> None:
    matrices = torch.randn(2, 11, 3, 3, dtype=torch.float64)
    (found,) = associative_scan(lambda a, b: (a[0] @ b[0],), (matrices,))
    product = matrices[:, 0]
    for t in range(1, 11):
        product = product @ matrices[:, t]
        assert difference(found[:, t], product) < 1e-12
