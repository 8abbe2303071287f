"""The commands in README and docs are executed: each line of every bash block, on a pendulum of a few sequences."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cru as library
from cru.data.datasets import pendulum
from tests.cli.helpers import SMALL_PENDULUM, done

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [page for page in (ROOT / "README.md", *DOCS) if page.parent.name != "tutorials"]  # those have their own tests
SMALL = ["--set", "training.epochs=1", "--set", "training.batch_size=4"]


def commands(page: Path) -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(), re.S)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def lines(*starts: str) -> list[str]:
    found = [line for page in PAGES for line in commands(page)]
    return list(dict.fromkeys(line for line in found if line.startswith(starts)))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def small_world(cache, tmp_path, monkeypatch):
    """Few sequences, and a cache that all commands share."""
    monkeypatch.setenv("CRU_CACHE_DIR", str(cache))
    monkeypatch.setattr(pendulum, "SIZES", (12, 4, 4))
    monkeypatch.chdir(tmp_path)


def test_no_command_is_forgotten():
    known = lines("cru ", "make ", "torchrun ", "accelerate ")
    assert set(known) == {line for page in PAGES for line in commands(page)} and len(known) > 12


@pytest.mark.parametrize("line", lines("cru "))
def test_cru(line, request, monkeypatch):
    words = shlex.split(line, comments=True)[1:]
    if words[0] == "run":
        words += SMALL
        if words[1].startswith("ushcn"):
            words += ["--data-dir", request.getfixturevalue("ushcn_dir"), "--set", "data.train=2"]
    if words[0] == "reproduce":
        words += ["--hours", "0"]  # everything but the waiting
    if words[0] in ("fit", "forecast", "impute", "plot", "view", "backtest"):
        few_stations(request.getfixturevalue("fitted"))
        words += ["--epochs", "1"] if words[0] == "fit" else []
    if words[0] == "table" and "--time" in words:  # everything but the epochs
        monkeypatch.setattr("cru.reporting.timing.measure_epoch", lambda settings, splits, epochs: 1.0)
    if words[0] in ("figure", "report"):
        finished_runs(request.getfixturevalue("pendulum_runs"))
    done(*words)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> Path:
    """What the lines for a table leave: the table, with few stations, and a model."""
    folder = tmp_path_factory.mktemp("fitted")
    weather = library.data.sample("weather")
    some = [*weather["station"].unique()[:11], "USC00344766"]  # the last is the one that the pages plot
    weather[weather["station"].isin(some)].to_csv(folder / "weather.csv", index=False)
    columns = ["--id", "station", "--time", "date", "--values", "TMAX,TMIN", "--model", "climatology"]
    done("fit", folder / "weather.csv", *columns, "--out", folder / "model")
    return folder


def few_stations(source: Path) -> None:
    """Put the table and the model into this folder."""
    shutil.copy(source / "weather.csv", "weather.csv")
    shutil.copytree(source / "model", "model")


def finished_runs(source: Path) -> None:
    """What `cru run` would have left in this folder."""
    for run in ("regression-f-cru", "regression-gru-dt", "interpolation-f-cru"):
        task, model = run.split("-", 1)
        shutil.copytree(source / run, f"runs/pendulum-{task}/{model}-0")
    Path("results").mkdir()
    shutil.copy(source / "ledger.jsonl", "results")


@pytest.mark.parametrize("line", lines("torchrun", "accelerate"))
def test_launchers(line, tmp_path):
    (tmp_path / "small.py").write_text(SMALL_PENDULUM)
    modules = {"torchrun": "torch.distributed.run", "accelerate": "accelerate.commands.accelerate_cli"}
    words = shlex.split(line.replace("-m cru.cli", "small.py"))
    words = [sys.executable, "-m", modules[words[0]], *words[1:], *SMALL]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MASTER_PORT": "0"}
    ended = subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("Stored in runs/pendulum-regression/") == 1


def test_make():
    """The targets are there; tests/test_examples.py runs the demo."""
    targets = {line: shlex.split(line, comments=True)[1] for line in lines("make ")}
    makefile = (ROOT / "Makefile").read_text()
    assert [line for line, target in targets.items() if not re.search(rf"^{target}: install", makefile, re.M)] == []


def test_links_lead_somewhere():
    pages = [*sorted(ROOT.glob("*.md")), *DOCS]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())]
    local = [(page, link) for page, link in links if not link.startswith("https://")]
    assert [(page, link) for page, link in local if not (page.parent / link).exists()] == []
