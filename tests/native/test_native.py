import inspect
import os
import subprocess
import sys

import pytest
import torch

import cru
from cru import native
from cru.functional import filter_sequence
from cru.native import build
from tests.helpers import GRADIENT_TOLERANCE, KINDS, TOLERANCE, difference, outputs_and_gradients, random_problem

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("obs", [1, 4, 5, 9, 15])
@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_the_filter_in_pytorch_at_every_size(kind: str, obs: int, dtype: torch.dtype) -> None:
    problem = random_problem(kind, 3, 6, obs, seed=obs, size=0.5, dtype=dtype)
    expected, expected_grads = outputs_and_gradients(filter_sequence, problem)
    found, grads = outputs_and_gradients(native.filter_sequence, problem)
    assert max(difference(a, b) for a, b in zip(found, expected, strict=True)) < TOLERANCE[dtype]
    assert max(difference(a, b) for a, b in zip(grads, expected_grads, strict=True)) < GRADIENT_TOLERANCE[dtype]


@pytest.mark.parametrize("size", [0.0, 1.0, 3.0])
def test_doublings_agree_over_long_gaps(size: float) -> None:
    problem = list(random_problem("expm", 4, 2, 3, seed=5, size=size))
    problem[5] = torch.tensor([[0.0, 1.0], [0.0, 4.0], [0.0, 0.01], [0.0, 9.0]], dtype=torch.float64)
    problem[6] = problem[5] > 0
    expected, expected_grads = outputs_and_gradients(filter_sequence, tuple(problem))
    found, grads = outputs_and_gradients(native.filter_sequence, tuple(problem))
    assert max(difference(a, b) for a, b in zip(found, expected, strict=True)) < 1e-10
    assert max(difference(a, b) for a, b in zip(grads, expected_grads, strict=True)) < 1e-8


@pytest.mark.parametrize("kind", KINDS)
def test_threads_change_nothing(kind: str) -> None:
    problem = random_problem(kind, 5, 6, 4, seed=3)
    expected, expected_grads = outputs_and_gradients(native.filter_sequence, problem)
    torch.set_num_threads(2)
    try:
        found, grads = outputs_and_gradients(native.filter_sequence, problem)
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert max(difference(a, b) for a, b in zip(grads, expected_grads, strict=True)) < 1e-14


def test_it_is_a_well_formed_operator() -> None:
    problem = random_problem("expm", 2, 3, 2)
    transition, start, y, y_var, mask, delta, moves = problem
    arguments = (
        0,
        y,
        y_var,
        mask,
        delta,
        moves,
        *start[:4],
        *transition.coefficients,
        transition.basis,
        y.new_empty(0),
        transition.noise,
    )
    torch.library.opcheck(
        torch.ops.cru.filter.default,
        arguments,
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )


def test_not_for_gradients_of_the_gaps_nor_for_other_sizes_and_types() -> None:
    transition, _, y, _, _, delta, _ = random_problem("expm", 1, 2, 2)
    assert native.available(transition, y, delta)
    assert not native.available(transition, y, delta.requires_grad_())
    assert build.library(torch.float16, 2) is None
    assert build.library(torch.float32, build.MAX_OBS + 1) is None


PROGRAM = """
import torch, cru
from cru import native
layer = cru.CRU(2, 6)
torch.manual_seed(0)
output, _ = layer(torch.randn(2, 4, 2), torch.arange(4.0))
output.sum().backward()
print(native.paired_available(output), bool(torch.isfinite(output).all()))
"""


@pytest.mark.parametrize("environment", [{"CRU_NATIVE": "0"}, {"PATH": "", "CXX": ""}])
def test_works_without_a_compiler(environment: dict[str, str]) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["False", "True"]


def test_a_broken_compiler_is_no_catastrophe(tmp_path) -> None:
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    environment = os.environ | {"CXX": str(broken), "CRU_CACHE_DIR": str(tmp_path / "cache")}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["False", "True"]
    assert "the slower one in PyTorch is used" in result.stderr
    assert not list((tmp_path / "cache" / "native").iterdir())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_weights_of_another_type_are_refused(dtype: torch.dtype) -> None:
    layer = cru.CRU(3, 8)
    layer.coefficients.to(dtype)
    with pytest.raises(ValueError, match=r"`weight` must be torch\.float32"):
        layer.filter(torch.randn(2, 5, 4), torch.ones(2, 5, 4), torch.arange(5.0))


DEVICE = """
import torch, cru
torch.set_default_device("meta")
layer = cru.CRU(3, 8, device="cpu")
with torch.inference_mode():
    print(layer(torch.ones(1, 2, 3, device="cpu"), torch.tensor([0.0, 1.0], device="cpu"))[0].isfinite().all().item())
"""


def test_another_default_device_is_no_catastrophe() -> None:
    done = subprocess.run([sys.executable, "-c", DEVICE], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


CACHE = """
import logging, torch, cru
from cru.native.build import library
logging.basicConfig()
print(library(torch.float32, 4) is not None)
"""


def test_a_damaged_library_is_made_anew_and_a_cache_that_cannot_be_written_is_done_without(tmp_path) -> None:
    def said(folder: str) -> subprocess.CompletedProcess:
        environment = os.environ | {"CRU_CACHE_DIR": folder}
        return subprocess.run([sys.executable, "-c", CACHE], capture_output=True, text=True, env=environment)

    assert said(str(tmp_path)).stdout == "True\n"
    (made,) = (tmp_path / "native").glob("*.so")
    made.write_bytes(b"")
    again = said(str(tmp_path))
    assert (again.stdout, again.stderr) == ("True\n", "") and made.stat().st_size > 0
    nowhere = said("/proc/nowhere")
    assert nowhere.stdout == "True\n" and "CRU_CACHE_DIR can name a folder" in nowhere.stderr


@pytest.mark.parametrize(
    ("number", "wrong"),
    [
        (3, lambda y_var: y_var[:, :1]),
        (4, lambda mask: mask[:1, :1]),
        (4, lambda mask: mask.double()),
        (5, lambda delta: delta[:, :1]),
        (6, lambda moves: moves[:, :1]),
        (0, lambda transition: transition._replace(basis=transition.basis[:, :2])),
        (0, lambda transition: transition._replace(noise=transition.noise[:1])),
    ],
)
def test_nothing_of_another_shape_or_type_is_read(number: int, wrong) -> None:
    problem = list(random_problem("expm", 2, 3, 2))
    problem[number] = wrong(problem[number])
    with pytest.raises(ValueError, match=r"must (have the shape|be torch)"):
        inspect.unwrap(native.filter_sequence)(*problem)  # as it is outside the tests, without checks of types
