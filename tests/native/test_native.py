import hashlib
import inspect
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import expm

import cru
from cru import native
from cru.functional import Belief, filter_sequence
from cru.native import libraries
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
    # After modes that grow, the lower posterior variance is a difference of large numbers: flags decide its rounding.
    assert max(difference(a, b) for a, b in zip(found, expected, strict=True)) < (1e-10 if size < 3 else 1e-8)
    assert max(difference(a, b) for a, b in zip(grads, expected_grads, strict=True)) < 1e-8


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_short_gaps_couple_the_halves_precisely(dtype: torch.dtype) -> None:
    """With a known upper half, the side is Φ - I times the lower variance: to be exact about Φ is not enough."""
    digits = 2e-6 if dtype == torch.float32 else 1e-13
    for gap in (1e-5, 3e-4, 1e-2):
        transition, _, y, y_var, mask, *_ = random_problem("expm", 1, 2, 3, dtype=dtype)
        start = Belief(torch.zeros(1, 6), torch.full((1, 3), 1e-12), torch.ones(1, 3), torch.zeros(1, 3))
        start = Belief(*(field.to(dtype) for field in start[:4]))
        delta = torch.tensor([[0.0, gap]], dtype=dtype)
        found, _ = native.filter_sequence(transition, start, y, y_var, torch.zeros_like(mask), delta, delta > 0)
        matrix = transition.matrix(start, delta[:, 1]).double()[0].numpy()
        phi, noise = expm(matrix * gap), transition.noise.double().numpy()
        nodes, weights = np.polynomial.legendre.leggauss(8)
        steps = [expm(matrix * gap * (node + 1) / 2) for node in nodes]
        added = sum(gap * w / 2 * step @ np.diag(noise) @ step.T for w, step in zip(weights, steps, strict=True))
        cov = phi @ np.diag(torch.cat([start.upper, start.lower], 1)[0].double().numpy()) @ phi.T + added
        expected = torch.as_tensor(cov[:3, 3:].diagonal().copy())
        assert torch.all((found.side[0, 1] - expected).abs() <= digits * expected.abs().max())


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
    transition, start, y, y_var, mask, delta, stepped = problem
    arguments = (
        0,
        y,
        y_var,
        mask,
        delta,
        stepped,
        *start[:4],
        *transition.coefficients,
        transition.basis,
        y.new_empty(0),
        transition.noise,
    )
    torch.library.opcheck(
        torch.ops.cru.locally_linear_filter.default,
        arguments,
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )


def test_not_for_gradients_of_the_gaps_nor_for_other_sizes_and_types() -> None:
    transition, _, y, _, _, delta, _ = random_problem("expm", 1, 2, 2)
    assert native.available(transition, y, delta)
    assert not native.available(transition, y, delta.requires_grad_())
    assert libraries.library(torch.float16, 2) is None
    assert libraries.library(torch.float32, libraries.MAX_OBS + 1) is None


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
from cru.native.libraries import library
logging.basicConfig()
print(library(torch.float32, 4) is not None)
"""
EVIL = """
#include <cstdlib>
#include <cstdio>
__attribute__((constructor)) static void run() { std::fclose(std::fopen(std::getenv("MARK"), "w")); }
extern "C" { void cru_locally_linear_filter() {} void cru_locally_linear_filter_backward() {} }
"""


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A compiler that does not optimise. All tests compile the same library, so it compiles once."""
    folder = tmp_path_factory.mktemp("quick")
    script, made = folder / "c++", folder / "made.so"
    compiled = f'{" ".join(native.compiler())} "$@" -O0 && mv "$last" {made}'  # the output is the last argument
    script.write_text(f'#!/bin/sh\nfor last; do :; done\n[ -f {made} ] || {{ {compiled}; }} && cp {made} "$last"\n')
    script.chmod(0o755)
    return script


def load(quick, folder, *, umask: int = 0o022) -> subprocess.CompletedProcess:
    """Load a filter in a process of its own."""
    environment = os.environ | {"CRU_CACHE_DIR": str(folder), "CXX": str(quick), "MARK": str(folder / "mark")}
    words = [sys.executable, "-c", CACHE]
    return subprocess.run(words, capture_output=True, text=True, env=environment, umask=umask)


def test_a_damaged_library_is_made_anew_and_a_cache_that_cannot_be_written_is_done_without(quick, tmp_path) -> None:
    assert load(quick, tmp_path).stdout == "True\n"
    (made,) = (tmp_path / "native").glob("*.so")
    made.write_bytes(b"")
    again = load(quick, tmp_path)
    assert again.stdout == "True\n" and made.stat().st_size > 0
    assert "is not loaded and compiled again: it is damaged" in again.stderr and again.stderr.count("\n") == 1
    kept = load(quick, tmp_path)
    assert (kept.stdout, kept.stderr) == ("True\n", "")
    nowhere = load(quick, Path("/proc/nowhere"))
    assert nowhere.stdout == "True\n" and "set CRU_CACHE_DIR to a folder" in nowhere.stderr


def _others_file(path) -> None:
    os.chown(path, 12345, 12345)


def _others_folder(path) -> None:
    os.chown(path.parent, 12345, 12345)


def _link(path) -> None:
    path.rename(path.parent / "elsewhere")
    path.symlink_to(path.parent / "elsewhere")


PLANTED = {
    "nothing wrong": lambda path: None,  # a file of this user's own is trusted, so the test can fail
    "other contents": lambda path: path.rename(path.with_name(path.stem[:-64] + 64 * "0" + ".so")),
    "a file that others can write": lambda path: path.chmod(0o766),
    "a folder that others can write": lambda path: path.parent.chmod(0o777),
    "a link": _link,
    "the file of another user": _others_file,
    "the folder of another user": _others_folder,
}


@pytest.fixture(scope="module")
def evil(quick, tmp_path_factory):
    """A library that leaves a mark when it is loaded, and the name that it must have."""
    folder = tmp_path_factory.mktemp("evil")
    (folder / "evil.cpp").write_text(EVIL)
    words = [*native.compiler(), "-shared", "-fPIC", str(folder / "evil.cpp"), "-o", str(folder / "evil.so")]
    subprocess.run(words, check=True)
    assert load(quick, folder).stdout == "True\n"
    (made,) = (folder / "native").glob("*.so")
    contents = (folder / "evil.so").read_bytes()
    return contents, f"{made.stem[:-64]}{hashlib.sha256(contents).hexdigest()}.so"


@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_library_is_not_loaded(quick, evil, tmp_path, case: str) -> None:
    if "another user" in case and os.geteuid() != 0:
        pytest.skip("only root can make files of another user")
    contents, name = evil
    (tmp_path / "native").mkdir(mode=0o700)
    planted = tmp_path / "native" / name
    planted.write_bytes(contents)
    planted.chmod(0o700)
    PLANTED[case](planted)
    assert load(quick, tmp_path).stdout == "True\n"
    assert (tmp_path / "mark").exists() == (case == "nothing wrong")


def test_nobody_else_can_write_the_compiled_code_whatever_the_umask(quick, tmp_path) -> None:
    assert load(quick, tmp_path, umask=0).stdout == "True\n"
    assert stat.S_IMODE((tmp_path / "native").stat().st_mode) == 0o700
    (made,) = (tmp_path / "native").iterdir()
    assert stat.S_IMODE(made.stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize(
    ("number", "wrong"),
    [
        (3, lambda y_var: y_var[:, :1]),
        (4, lambda mask: mask[:1, :1]),
        (4, lambda mask: mask.double()),
        (5, lambda delta: delta[:, :1]),
        (6, lambda stepped: stepped[:, :1]),
        (0, lambda transition: transition._replace(basis=transition.basis[:, :2])),
        (0, lambda transition: transition._replace(noise=transition.noise[:1])),
    ],
)
def test_nothing_of_another_shape_or_type_is_read(number: int, wrong) -> None:
    problem = list(random_problem("expm", 2, 3, 2))
    problem[number] = wrong(problem[number])
    with pytest.raises(ValueError, match=r"must (have the shape|be torch)"):
        inspect.unwrap(native.filter_sequence)(*problem)  # as it is outside the tests, without checks of types
