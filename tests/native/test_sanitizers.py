"""A short slice of `make sanitize`: one size of each kernel, forward and backward."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sanitize import run, sanitized_environment

SLICE = (
    "tests/native/test_native.py::test_agrees_with_the_filter_in_pytorch_at_every_size[expm-5-dtype1]",
    "tests/native/test_native.py::test_agrees_with_the_filter_in_pytorch_at_every_size[eigen-5-dtype1]",
    "tests/native/test_native.py::test_agrees_with_the_filter_in_pytorch_at_every_size[discrete-timed-5-dtype1]",
    "tests/native/test_smooth.py::test_threads_change_nothing",
    "tests/native/test_structural.py::test_every_size_agrees[7]",
)
OVERFLOW = """
#include <cstdlib>
extern "C" int past_the_end(int n) { int* a = new int[n](); int x = a[n]; delete[] a; return x; }
extern "C" int too_large(int n) { return 2147483647 + n; }
"""


@pytest.mark.slow
def test_the_kernels_are_clean(tmp_path: Path) -> None:
    status = run(list(SLICE), tmp_path)
    if status is None:
        pytest.skip("the compiler has no AddressSanitizer or UBSan")
    assert status == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "report"), [("past_the_end", "heap-buffer-overflow"), ("too_large", "signed integer overflow")]
)
def test_an_error_is_found(tmp_path: Path, name: str, report: str) -> None:
    environment = sanitized_environment(tmp_path)
    if environment is None:
        pytest.skip("the compiler has no AddressSanitizer or UBSan")
    source, library = tmp_path / "wrong.cpp", tmp_path / "wrong.so"
    source.write_text(OVERFLOW)
    subprocess.run([environment["CXX"], "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    call = f"import ctypes; ctypes.CDLL({str(library)!r}).{name}(3)"
    done = subprocess.run([sys.executable, "-c", call], env=environment, capture_output=True, text=True)
    assert done.returncode != 0 and report in done.stderr
