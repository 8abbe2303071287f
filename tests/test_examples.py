"""All of examples/ runs, in the quick version of each example, as a program of its own and without a warning."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PICTURES = {  # what each example draws
    "demo": {"weather.png", "angle.png", "gain.png", "report.html", "stations.html"},
    "layers": {"layers.png"},
    "pair": {"pair.png"},
    "ward": {"ward-patient.png", "ward-board.png"},
    "weather": {"weather-gap.png", "weather-coverage.png"},
}
ELSEWHERE = {  # the tests of the other examples
    "errors": "tests/data/test_errors_example.py",
    "gallery": "tests/cli/test_cli_figure.py",
    "make_weather_sample": "tests/data/test_samples.py",
}
PRINTED = {"anomalies"}  # they draw nothing
PARTS = {"demo_pendulum", "demo_weather", "tutorial"}  # others import them


def start(name: str, *words: object, **environment: str) -> subprocess.CompletedProcess:
    """Run an example. It finds the library of this checkout, and computes with one thread."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"} | environment
    true = "ignore:A naive model is better than the model"  # of a model that is trained for one epoch
    program = [sys.executable, "-W", "error", "-W", true, str(EXAMPLES / f"{name}.py"), *map(str, words)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=600, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert "\r" not in ended.stderr  # no bars in a pipe
    return ended


def test_no_example_is_forgotten() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*PICTURES, *ELSEWHERE, *PRINTED, *PARTS}
    assert all(f'"{name}.py"' in (ROOT / path).read_text() for name, path in ELSEWHERE.items())


@pytest.mark.parametrize("name", PICTURES)
def test_it_draws(name: str, tmp_path) -> None:
    words = [tmp_path / "pair.png"] if name == "pair" else ["--small", "--out", tmp_path]
    said = start(name, *words).stdout
    assert PICTURES[name] <= {path.name for path in tmp_path.iterdir()}
    if name == "demo":
        assert "has the smaller error" in said or "Forecaster()" in said
        assert "from results/ledger.jsonl: CRU " in said and f"Open {tmp_path / 'stations.html'} in a browser." in said


@pytest.mark.parametrize("name", PRINTED)
def test_it_prints(name: str) -> None:
    assert "spike" in start(name, "--small").stdout


def test_the_pictures_of_the_documentation_are_drawn_by_an_example() -> None:
    for name in ("pair", "ward", "weather"):
        assert all((ROOT / "docs" / "pictures" / picture).exists() for picture in PICTURES[name])
