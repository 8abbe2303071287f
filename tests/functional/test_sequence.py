from pathlib import Path

import numpy as np
import pytest
import torch

from cru import native
from cru.functional import (
    Belief,
    Coefficients,
    DiscreteTransition,
    EigenTransition,
    ExpmTransition,
    covariance,
    discretise,
    filter_sequence,
    filter_sequence_reference,
    gain,
    gaps,
    update_reference,
)
from tests.helpers import KINDS, TOLERANCE, difference, outputs_and_gradients, random_belief, random_problem

BAND = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 1, 1]])
VECTORS = Path(__file__).parent.parent / "vectors"
COMPILED = pytest.param(
    native.filter_sequence, marks=pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")
)


def reference(transition, start, y, y_var, mask, delta, stepped):
    return filter_sequence_reference(transition, start, y, y_var, mask, delta)


def published(name: str) -> tuple[dict[str, torch.Tensor], tuple]:
    with np.load(VECTORS / f"{name}.npz", allow_pickle=False) as file:
        v = {key: torch.from_numpy(file[key]) for key in file.files}
    for key in v:
        if f"grad_{key}" in v:
            v[key].requires_grad_()
    coefficients = Coefficients(v["coefficient_weight"], v["coefficient_bias"])
    if name == "fast_cru":
        transition = EigenTransition(coefficients, v["eigenvalues"], v["eigenvectors"], v["process_noise"])
    else:
        top, bottom = torch.cat([v["basis_11"], v["basis_12"]], -1), torch.cat([v["basis_21"], v["basis_22"]], -1)
        kind = ExpmTransition if name == "cru" else DiscreteTransition
        transition = kind(coefficients, torch.cat([top, bottom], -2), v["process_noise"])
    batch, _, obs = v["y"].shape
    start = Belief(
        torch.zeros(batch, 2 * obs, dtype=torch.float64),
        v["initial_upper"].expand(batch, obs),
        v["initial_lower"].expand(batch, obs),
        torch.zeros(batch, obs, dtype=torch.float64),
    )
    delta = gaps(v["times"], None, 1.0, torch.float64)
    stepped = delta != 0 if name in ("cru", "fast_cru") else torch.ones_like(delta, dtype=torch.bool)
    stepped[:, 0] = False
    mask = v["observed"][..., None].expand_as(v["y"])
    return v, (transition, start, v["y"], v["y_var"], mask, delta, stepped)


@pytest.mark.parametrize("run", [reference, filter_sequence, COMPILED])
@pytest.mark.parametrize("name", ["cru", "fast_cru", "rkn", "rkn_delta"])
def test_the_numbers_of_the_published_implementation(name: str, run) -> None:
    v, problem = published(name)
    prior, posterior = run(*problem)
    k = gain(prior, v["y_var"])
    found = {f"posterior_{f}": getattr(posterior, f) for f in ("mean", "upper", "lower", "side")}
    found |= {f"next_prior_{f}": getattr(prior, f)[:, 1:] for f in ("mean", "upper", "lower", "side")}
    found |= {"gain_upper": k.upper, "gain_lower": k.lower}
    for key, value in found.items():
        assert difference(value, v[key]) < 1e-9, key
    loss = (posterior.mean**2).sum() + posterior.upper.sum() + 0.5 * posterior.lower.sum() + 0.25 * posterior.side.sum()
    assert difference(loss, v["loss"]) < 1e-9
    loss.backward()
    for key in v:
        if f"grad_{key}" in v:
            trained = BAND if key.startswith("basis") else torch.ones(())  # nothing is trained outside the band
            assert difference(trained * v[key].grad, v[f"grad_{key}"]) < 1e-8, key


@pytest.mark.parametrize("run", [filter_sequence, COMPILED])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_fast_paths_agree_with_the_reference(kind: str, seed: int, run) -> None:
    problem = random_problem(kind, 3, 8, 5, seed=seed, size=0.4)
    expected, expected_grads = outputs_and_gradients(reference, problem)
    found, grads = outputs_and_gradients(run, problem)
    assert max(difference(a, b) for a, b in zip(found, expected, strict=True)) < 1e-9
    assert max(difference(a, b) for a, b in zip(grads, expected_grads, strict=True)) < 1e-7


@pytest.mark.parametrize("run", [filter_sequence, COMPILED])
@pytest.mark.parametrize("norm", [0.01, 0.5, 2.0, 5.0, 10.0, 20.0])
@pytest.mark.parametrize("kind", ["expm", "eigen"])
def test_one_gap_of_any_length_agrees_with_the_reference(kind: str, norm: float, run) -> None:
    """Two times with nothing observed, so that only the predict step is compared, ‖A Δ‖ up to ``norm``."""
    transition, start, y, y_var, mask, _, stepped = random_problem(kind, 3, 2, 5, seed=4)
    delta = torch.tensor([[0.0, 1.0], [0.0, 0.5], [0.0, 0.1]], dtype=torch.float64)
    matrices = transition.basis if kind == "expm" else torch.diag_embed(transition.eigenvalues)
    scale = (norm / torch.linalg.matrix_norm(matrices.detach(), 2).max()).item()
    name = "basis" if kind == "expm" else "eigenvalues"
    scaled = (getattr(transition, name).detach() * scale).requires_grad_()
    stepped = stepped | torch.tensor([False, True])
    problem = (transition._replace(**{name: scaled}), start, y, y_var, torch.zeros_like(mask), delta, stepped)
    expected, expected_grads = outputs_and_gradients(reference, problem)
    found, grads = outputs_and_gradients(run, problem)
    assert max(difference(a, b) for a, b in zip(found, expected, strict=True)) < 1e-9
    assert max(difference(a, b) for a, b in zip(grads, expected_grads, strict=True)) < 1e-7


@pytest.mark.parametrize("run", [filter_sequence, COMPILED])
@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_close_to_the_float64_reference(kind: str, run) -> None:
    exact, low = (
        random_problem(kind, 3, 8, 5, seed=1, size=0.4, dtype=dtype) for dtype in (torch.float64, torch.float32)
    )
    expected, expected_grads = outputs_and_gradients(reference, exact)
    found, grads = outputs_and_gradients(run, low)
    assert max(difference(a, b) for a, b in zip(found, expected, strict=True)) < TOLERANCE[torch.float32]
    assert max(difference(a, b) for a, b in zip(grads, expected_grads, strict=True)) < 1e-3


def test_without_factorisation_it_is_the_dense_joint_gaussian_of_the_whole_series() -> None:
    """Condition the joint Gaussian of every state at once, and compare with predict / update on full covariances."""
    generator = torch.Generator().manual_seed(0)
    steps, obs, state = 5, 2, 4
    A = 0.6 * torch.randn(1, state, state, generator=generator, dtype=torch.float64)
    q = 0.1 + torch.rand(state, generator=generator, dtype=torch.float64)
    delta = torch.tensor([0.3, 1.2, 0.0, 2.0], dtype=torch.float64)
    start = random_belief(1, obs, generator)
    y = torch.randn(steps, obs, generator=generator, dtype=torch.float64)
    y_var = 0.1 + torch.rand(steps, obs, generator=generator, dtype=torch.float64)
    transitions = [discretise(A, q, gap[None], 6) for gap in delta]

    mean, cov, filtered = start.mean, covariance(start), []
    for t in range(steps):
        if t > 0:
            phi, Q = transitions[t - 1]
            mean, cov = (phi @ mean[..., None])[..., 0], phi @ cov @ phi.mT + Q
        mean, cov = update_reference(mean, cov, y[t][None], y_var[t][None])
        filtered.append((mean[0], cov[0]))

    means, covs = [start.mean[0]], torch.zeros(steps, steps, state, state, dtype=torch.float64)
    covs[0, 0] = covariance(start)[0]
    for t in range(1, steps):
        phi, Q = (m[0] for m in transitions[t - 1])
        means.append(phi @ means[-1])
        for s in range(t):
            covs[t, s] = phi @ covs[t - 1, s]
            covs[s, t] = covs[t, s].mT
        covs[t, t] = phi @ covs[t - 1, t - 1] @ phi.mT + Q
    joint_mean, joint = torch.cat(means), covs.permute(0, 2, 1, 3).reshape(steps * state, steps * state)
    for t in range(steps):  # what is known at time t: the observations up to t
        seen = torch.cat([torch.arange(s * state, s * state + obs) for s in range(t + 1)])
        own = torch.arange(t * state, (t + 1) * state)
        gram = joint[seen][:, seen] + torch.diag(y_var[: t + 1].flatten())
        weight = torch.linalg.solve(gram, joint[seen][:, own]).mT
        expected_mean = joint_mean[own] + weight @ (y[: t + 1].flatten() - joint_mean[seen])
        expected_cov = joint[own][:, own] - weight @ joint[seen][:, own]
        assert difference(filtered[t][0], expected_mean) < 1e-12
        assert difference(filtered[t][1], expected_cov) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_against_finite_differences(kind: str) -> None:
    transition, start, y, y_var, mask, delta, stepped = random_problem(kind, 1, 3, 2, seed=2)
    run = native.filter_sequence if native.available(transition, y, delta) else filter_sequence

    def outputs(
        y: torch.Tensor, y_var: torch.Tensor, noise: torch.Tensor, *start: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        beliefs = run(transition._replace(noise=noise), Belief(*start), y, y_var, mask, delta, stepped)
        return tuple(field for belief in beliefs for field in belief[:4])

    assert torch.autograd.gradcheck(outputs, (y, y_var, transition.noise, *start[:4]), rtol=1e-5, atol=1e-7)
