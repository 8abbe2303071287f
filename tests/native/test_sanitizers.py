"""`make sanitize` would find an error: a read past the end and an overflow."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sanitize import sanitized_environment

OVERFLOW = """
#include <cstdlib>
extern "C" int past_the_end(int n) { int* a = new int[n](); int x = a[n]; delete[] a; return x; }
extern "C" int too_large(int n) { return 2147483647 + n; }
"""


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
