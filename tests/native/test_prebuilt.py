"""The wheel with prebuilt libraries, and the choice among them."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cru import native
from cru.native import prebuilt
from cru.native.prebuilt import LEVELS, best_level

ROOT = Path(__file__).parents[2]
FEATURES = [" ".join(list(LEVELS.values())[:count]) for count in range(len(LEVELS) + 1)]


@pytest.mark.parametrize(
    ("features", "level", "reason"),
    [
        (FEATURES[3], "x86-64-v4", "the highest level"),
        (FEATURES[3].replace("avx512cd", ""), "x86-64-v3", "x86-64-v4 needs avx512cd"),
        (FEATURES[3].replace("avx2", ""), "x86-64-v2", "x86-64-v3 needs avx2"),
        (FEATURES[1], "x86-64-v2", f"x86-64-v3 needs {', '.join(sorted(LEVELS['x86-64-v3'].split()))}"),
        ("neon", None, f"x86-64-v2 needs {', '.join(sorted(LEVELS['x86-64-v2'].split()))}"),
    ],
)
def test_the_processor_decides_on_the_level(monkeypatch, features: str, level: str | None, reason: str) -> None:
    monkeypatch.setattr(prebuilt, "processor_features", lambda: features)
    assert best_level.__wrapped__() == (level, reason)


COMPARE = """
import json, sys
import torch
from cru import functional, native
from cru.functional import structural
from cru.native import libraries, prebuilt
from tests.helpers import GRADIENT_TOLERANCE, KINDS, TOLERANCE, difference, outputs_and_gradients, random_problem

prebuilt.processor_features = lambda: sys.argv[1]
torch.manual_seed(0)
for dtype in TOLERANCE:
    for kind in KINDS:
        for obs in (1, 5, 15, 33):  # the last one is padded to the next larger library
            problem = random_problem(kind, 3, 6, obs, seed=obs, size=0.5, dtype=dtype)
            assert native.available(problem[0], problem[2], problem[5])
            expected = outputs_and_gradients(functional.filter_sequence, problem)
            found = outputs_and_gradients(native.filter_sequence, problem)
            for a, b, tolerance in zip(found, expected, (TOLERANCE[dtype], GRADIENT_TOLERANCE[dtype])):
                assert max(difference(*pair) for pair in zip(a, b, strict=True)) < tolerance, (kind, obs, dtype)
    assert libraries.paired_library(dtype) is not None
times, mask = torch.rand(2, 9).double().cumsum(1), torch.rand(2, 9, 3) < 0.8
values, regressors = torch.randn(2, 9, 3).double(), torch.randn(2, 9, 4).double()
components = structural.Components(torch.rand(3, 4).double(), torch.rand(3, 4).double(), torch.rand(3).double())
found, expected = (
    part.filter_structural(times, values, mask, regressors, components) for part in (native, structural)
)
assert difference(found.mean, expected.mean) < 1e-9 and difference(found.nll, expected.nll) < 1e-9
dtypes = [(torch.float32, 16), (torch.float64, 12)]
origins = [libraries.load("locally_linear", *each).origin for each in dtypes]
origins += [libraries.load("paired", torch.float32, 8).origin, libraries.load("structural", torch.float64, 4).origin]
print(json.dumps([prebuilt.__file__, sorted(set(origins))]))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The wheel of `make wheel`, or one that is built here, installed into a folder of its own."""
    if native.compiler() is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("wheel")
    made = Path(os.environ.get("CRU_WHEEL_DIR", folder))
    if made == folder:
        words = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
        subprocess.run(words, check=True, cwd=ROOT, env=os.environ | {"HATCH_BUILD_HOOK_ENABLE_CUSTOM": "true"})
    (wheel,) = made.glob("*.whl")
    assert wheel.name.startswith("cru-0.1.0-py3-none-manylinux") and wheel.stat().st_size < 5_000_000
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def run(installed: Path, folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess:
    """Run a program that finds the installed wheel and no compiler."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CXX", "CRU_NATIVE")}
    environment |= {"PYTHONPATH": f"{installed}:{ROOT}", "PATH": "", "CRU_CACHE_DIR": str(folder)}
    words = [sys.executable, "-W", "error", "-c", program, *arguments]
    return subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True)


@pytest.mark.wheel
@pytest.mark.parametrize("count", range(1, len(LEVELS) + 1))
def test_the_wheel_needs_no_compiler_and_agrees_with_pytorch(installed, tmp_path, count: int) -> None:
    level = list(LEVELS)[count - 1]
    if level > (best_level()[0] or ""):
        pytest.skip(f"this processor does not support {level}")
    done = run(installed, tmp_path, COMPARE, FEATURES[count])
    assert done.returncode == 0, done.stderr
    file, origins = json.loads(done.stdout)
    assert Path(file).is_relative_to(installed)
    assert origins == [f"prebuilt for {level} ({best_reason(count)})"]
    assert list(tmp_path.iterdir()) == [], "nothing is compiled"


def best_reason(count: int) -> str:
    later = list(LEVELS.items())[count:]
    return f"{later[0][0]} needs {', '.join(sorted(later[0][1].split()))}" if later else "the highest level"


LOAD = """
import logging, torch
from cru.native import libraries
logging.basicConfig()
found = libraries.load("paired", torch.float32, 8)
print(found.library is not None, found.origin)
"""


@pytest.mark.wheel
def test_a_damaged_library_of_the_wheel_is_not_loaded(installed, tmp_path) -> None:
    assert run(installed, tmp_path, LOAD).stdout.startswith("True prebuilt for x86-64-v")
    for path in (installed / "cru" / "native" / "prebuilt").glob("*-paired-float-*.so"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    done = run(installed, tmp_path, LOAD)
    assert done.stdout.startswith("False no C++ compiler, and the prebuilt libraries for x86-64-v")
    assert "is not loaded: it is damaged" in done.stderr
