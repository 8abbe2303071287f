"""The compiled structural functions against those in PyTorch; the dense oracle is in tests/functional."""

import inspect

import pytest
import torch

from cru import native
from cru.functional import structural
from cru.functional.structural import Components
from cru.native.libraries import structural_library
from cru.native.structural import MAX_COEFFICIENTS
from tests.functional.test_structural import Problem, problem
from tests.helpers import difference

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")


def with_leaves(p: Problem) -> tuple[Problem, list[torch.Tensor]]:
    leaves = [field.clone().requires_grad_() for field in (*p.components, torch.nan_to_num(p.values))]
    return p._replace(components=Components(*leaves[:3]), values=leaves[3]), leaves


@pytest.mark.parametrize("size", [1, 4, 7, 12, 16, 18, 24, 30, 47, 64])
def test_every_size_agrees(size: int) -> None:
    """With a start and its gradient, which is that of the variance while the explained part stays as it is."""
    p, leaves = with_leaves(problem(size))
    later = p.rows(slice(4, None))
    with torch.no_grad():
        state = structural.filter_structural(*p.rows(slice(0, 4))).state
        for name in ("filter_structural", "smooth_structural"):
            found, expected = (getattr(kind, name)(*later, state) for kind in (native, structural))
            assert all(difference(a, b) < 1e-10 for a, b in zip(found[:3], expected[:3], strict=True))
    expected = structural.filter_structural(*later, state).nll
    found = native.nll_structural(*later, state)
    assert difference(found, expected) < 1e-12
    for a, b in zip(*(torch.autograd.grad(nll.sum(), leaves) for nll in (found, expected)), strict=True):
        assert difference(a, b) < 1e-9


@pytest.mark.parametrize("size", [3, 20])
def test_series_longer_than_the_tape_of_the_likelihood(size: int) -> None:
    p, leaves = with_leaves(problem(size, time=2100 if size == 3 else 400, batch=1))
    found, expected = native.nll_structural(*p), structural.filter_structural(*p).nll
    assert difference(found, expected) < 1e-11
    for a, b in zip(*(torch.autograd.grad(nll.sum(), leaves) for nll in (found, expected)), strict=True):
        assert difference(a, b) < 1e-9


def test_threads_change_nothing() -> None:
    p, leaves = with_leaves(problem(batch=5))

    def results() -> list[torch.Tensor]:
        nll = native.nll_structural(*p)
        grads = torch.autograd.grad(nll.sum(), leaves)
        with torch.no_grad():
            return [nll, *grads, *native.filter_structural(*p)[:3], *native.smooth_structural(*p)]

    expected = results()
    torch.set_num_threads(2)
    try:
        found = results()
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_tensors_need_not_be_contiguous() -> None:
    p = problem()
    strided = p._replace(
        values=p.values.transpose(0, 2).contiguous().transpose(0, 2), mask=p.mask.mT.contiguous().mT,
        components=Components(p.components.rate.T.contiguous().T, *p.components[1:]),
    )  # fmt: skip
    for name in ("filter_structural", "smooth_structural"):
        found, expected = (getattr(native, name)(*each) for each in (strided, p))
        assert all(torch.equal(a, b) for a, b in zip(found[:3], expected[:3], strict=True))


def test_where_it_is_available(monkeypatch) -> None:
    regressors, leaf = torch.ones(1, 2, 3), torch.ones(3, requires_grad=True)
    assert structural_library() is not None
    assert native.structural_available(regressors, leaf.detach(), None)
    assert not native.structural_available(regressors, None, leaf)
    with torch.no_grad():
        assert native.structural_available(regressors, leaf)
    assert not native.structural_available(torch.ones(1, 2, MAX_COEFFICIENTS + 1))
    assert not native.structural_available(regressors.to("meta"))
    monkeypatch.setenv("CRU_NATIVE", "0")
    assert not native.structural_available(regressors)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("times", lambda p: p.times[:, 1:]),
        ("times", lambda p: p.times.float()),
        ("mask", lambda p: p.mask[..., :1]),
        ("mask", lambda p: p.mask.double()),
        ("regressors", lambda p: p.regressors[:1]),
        ("regressors", lambda p: p.regressors[..., :2]),
        ("components", lambda p: p.components._replace(noise=p.components.noise[:1])),
        ("components", lambda p: p.components._replace(var=p.components.var[:1])),
    ],
)
@pytest.mark.parametrize("name", ["filter_structural", "smooth_structural", "nll_structural"])
def test_nothing_of_another_shape_or_type_is_read(name: str, field: str, wrong) -> None:
    p = problem()
    with pytest.raises(ValueError, match=r"must (have the shape|be torch)"):
        inspect.unwrap(getattr(native, name))(*p._replace(**{field: wrong(p)}))


def test_a_start_of_another_shape_or_type_is_not_read() -> None:
    p = problem()
    state = structural.initial_state(p.components, p.times)
    wrongs = (
        state._replace(mean=state.mean[:1]),
        state._replace(explained=state.explained.float()),
        state._replace(time=state.time[:1]),
    )
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"`state\.\w+` must (have the shape|be torch)"):
            inspect.unwrap(native.filter_structural)(*p, wrong)
    with pytest.raises(ValueError, match="`groups` must have the shape"):
        inspect.unwrap(native.smooth_components)(*p, torch.zeros(2, dtype=torch.int64))
