"""What an install needs: how many packages, how large, and what works without the rest."""

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def closure(requirements: list[str]) -> set[str]:
    """The names of the distributions that requirements need, with all that these need."""
    found: set[tuple[str, str]] = set()
    waiting = [(Requirement(line), "") for line in requirements]
    while waiting:
        needed, extra = waiting.pop()
        if needed.marker is not None and not needed.marker.evaluate({"extra": extra}):
            continue
        name = re.sub(r"[-_.]+", "-", needed.name).lower()
        lines = (
            [line for extra in needed.extras for line in PROJECT["optional-dependencies"][extra]]
            if name == "cru"
            else metadata.requires(name) or []
        )
        for extra in needed.extras or {""}:
            if (name, extra) not in found:
                found.add((name, extra))
                waiting += [(Requirement(line), extra) for line in lines]
    return {name for name, _ in found} - {"cru"}


def files(distribution: str) -> list[Path]:
    found = metadata.distribution(distribution)
    return [Path(str(found.locate_file(file))) for file in found.files or ()]


def megabytes(distributions: set[str]) -> float:
    return sum(file.stat().st_size for name in distributions for file in files(name) if file.exists()) / 1e6


CORE = PROJECT["dependencies"]
TORCH = closure(["torch"])


@pytest.mark.parametrize(
    ("requirements", "packages", "size"), [(CORE, 15, 100), ([*CORE, "cru[all]"], 45, 450)], ids=["core", "all"]
)
def test_an_install_is_small(requirements: list[str], packages: int, size: int) -> None:
    added = closure(requirements) - TORCH
    assert len(added) <= packages and megabytes(added) <= size, sorted(added)
    assert "scipy" not in added and not added & {"pyarrow", "pandas", "jaxtyping"}


def test_importing_cru_and_asking_for_help_are_quick() -> None:
    program = "import sys, time; before = time.process_time(); {}; sys.stderr.write(str(time.process_time() - before))"
    cases = {
        "import cru": 0.1,
        "from cru.cli import app; app(['--help'], standalone_mode=False)": 0.3,
    }
    for statement, most in cases.items():
        words = [sys.executable, "-c", program.format(statement)]
        taken = [subprocess.run(words, capture_output=True, text=True, check=True).stderr for _ in range(3)]
        assert min(map(float, taken)) < most, statement


@pytest.fixture(scope="module")
def core(tmp_path_factory) -> Path:
    """A folder of links to the packages of the core and of pandas, for an interpreter without site packages."""
    folder = tmp_path_factory.mktemp("core")
    for name in closure([*CORE, "pandas"]):
        site = Path(str(metadata.distribution(name).locate_file("")))
        for first in {file.relative_to(site).parts[0] for file in files(name) if file.is_relative_to(site)} - {".."}:
            if not (folder / first).exists() and (site / first).exists():
                (folder / first).symlink_to(site / first)
    (folder / "cru").symlink_to(ROOT / "src" / "cru")
    return folder


def run(core: Path, folder: Path, program: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a program that finds the core and pandas only."""
    words = [sys.executable, "-S", "-c", program]
    environment = os.environ | {"PYTHONPATH": str(core), "OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_the_readme_runs_with_the_core_and_pandas(core, tmp_path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(blocks) == 3 and "Forecaster" in blocks[0] and "cru.CRU" in blocks[2]
    imported = "import sys; assert not {'polars', 'pyarrow', 'accelerate', 'rich', 'jaxtyping'} & set(sys.modules)"
    done = run(core, tmp_path, "\n".join([*blocks, imported, "print(type(model.forecast(horizon=5)).__module__)"]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().split(".")[0] == "pandas"


MISSING = {
    "files": ("open('t.csv', 'w').close(); cru.data.from_table('t.csv', id=None, time='t')", "polars"),
    "plots": ("from cru.reporting.figures.style import make_figure; make_figure()", "matplotlib"),
    "experiments": ("cru.data.load('pendulum-regression')", "tqdm"),
    "distributed": ("import os; os.environ['WORLD_SIZE'] = '2'; cru.training.loop.Engine()", "accelerate"),
    "ode": ("import torch; from cru.layers.ode import ODE; ODE(torch.nn.Linear(1, 1), solver='dopri5')", "torchdiffeq"),
}


@pytest.mark.slow
@pytest.mark.parametrize("extra", MISSING)
def test_a_missing_extra_is_named(core, tmp_path, extra: str) -> None:
    program, package = MISSING[extra]
    done = run(core, tmp_path, f"import cru; {program}", CRU_CACHE_DIR=str(tmp_path))
    said = done.stderr.strip().splitlines()[-1]
    assert said == f"cru.extras.MissingExtraError: {package} is not installed: pip install 'cru[{extra}]'."


@pytest.mark.slow
def test_the_command_names_its_extra(core, tmp_path) -> None:
    done = run(core, tmp_path, "import runpy; runpy.run_module('cru.cli', run_name='__main__')")
    assert done.stderr == "cru: the command needs typer and rich: pip install 'cru[cli]'.\n" and done.returncode == 1
