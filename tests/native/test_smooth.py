"""The compiled smoother as an operator. tests/functional/test_paired.py tests its numbers."""

import pytest
import torch

from cru import native
from cru.functional.paired import PairedTransition
from tests.functional.test_paired import Problem, smoothed_and_gradients

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")


def test_it_is_a_well_formed_operator() -> None:
    problem = Problem()
    prior, posterior = problem.filtered()
    arguments = [field.clone().requires_grad_() for field in (*prior[:4], *posterior[:4], *problem.transitions[:4])]
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(torch.ops.cru.paired_smooth.default, arguments, test_utils=tests)


def test_threads_change_nothing() -> None:
    problem = Problem(batch=5)
    expected, expected_grads = smoothed_and_gradients(native.smooth_paired, *problem.filtered(), problem.transitions)
    torch.set_num_threads(2)
    try:
        found, grads = smoothed_and_gradients(native.smooth_paired, *problem.filtered(), problem.transitions)
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip((*found, *grads), (*expected, *expected_grads), strict=True))


def test_only_tensors_of_one_type_and_shape() -> None:
    problem = Problem()
    prior, posterior = problem.filtered()
    with pytest.raises(ValueError, match=r"`upper` must be torch\.float64"):
        native.smooth_paired(prior._replace(upper=prior.upper.float()), posterior, problem.transitions)
    with pytest.raises(ValueError, match="`mean` must have the shape"):
        native.smooth_paired(prior, posterior, PairedTransition(*(field[:, 1:] for field in problem.transitions)))
