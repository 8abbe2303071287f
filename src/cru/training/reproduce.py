"""The paper's whole grid, cheapest missing cell first, as many at a time as there are jobs, until the time is up."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cru.evaluation import ledger
from cru.evaluation.tables import paper_presets, paper_seconds
from cru.models.registry import MODELS, NAIVE, entry, is_own
from cru.training.checkpoint import read_checkpoint
from cru.training.presets import models_of, settings_for
from cru.training.run import as_of_now, check_folder
from cru.training.settings import RunSettings

_PATIENCE = 60.0  # seconds for a run to stop by itself


class Cell(NamedTuple):
    """A run that is still to be done, and what it is expected to take."""

    source: str  # the preset's name, or the path of its file
    settings: RunSettings
    folder: Path
    seconds: float

    @property
    def title(self) -> str:
        """For a line on the screen."""
        return f"{self.settings.preset} {self.settings.model.name} seed {self.settings.seed}"


class Group(NamedTuple):
    """Cells that are run before those of later groups: experiments, models (all where empty) and seeds of each."""

    presets: list[str]
    models: list[str]
    seeds: int

    @staticmethod
    def parse(text: str) -> "Group":
        """Read "PRESET,PRESET:MODEL,MODEL:SEEDS"; an empty part means the paper's experiments, all models, one seed.

        >>> Group.parse("ushcn-one-step:gru-d,ode-rnn")
        Group(presets=['ushcn-one-step'], models=['gru-d', 'ode-rnn'], seeds=1)
        """
        presets, models, seeds, *more = [*text.split(":"), "", ""][: max(3, text.count(":") + 1)]
        if more or not (seeds.strip() or "1").isdecimal():
            raise ValueError(f"`groups` must look like PRESETS:MODELS:SEEDS, got {text!r}.")
        return Group(_names(presets), _names(models), int(seeds.strip() or 1))


def missing_in(
    groups: Sequence[Group], *, ledger_path: Path = ledger.LEDGER, folder: Path = Path("runs")
) -> list[Cell]:
    """The missing cells of each group after those of the groups before it, each once."""
    cells: dict[str, Cell] = {}
    for group in groups:
        for cell in missing(group.presets, group.models, seeds=group.seeds, ledger_path=ledger_path, folder=folder):
            cells.setdefault(cell.settings.hash, cell)
    return list(cells.values())


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def missing(
    presets: Sequence[str] = (),
    models: Sequence[str] = (),
    *,
    seeds: int = 5,
    ledger_path: Path = ledger.LEDGER,
    folder: Path = Path("runs"),
) -> list[Cell]:
    """Every cell of the paper's tables that the ledger does not have, the cheapest first."""
    for model in models:
        entry(model)  # an unknown name is an error
    entries = [line for line in ledger.read(ledger_path) if {"hash", "changed", "seconds_per_epoch"} <= line.keys()]
    # A run on series of one's own or on an earlier version of the data does not count.
    done = {line["hash"] for line in as_of_now(entries) if "splits" not in line["changed"] and not line["outdated"]}
    cells = []
    for preset in presets or paper_presets():
        known = [name for name in models_of(preset) if name in (models or MODELS)]
        for model in dict.fromkeys([*known, *filter(is_own, models)]):
            for seed in range(1 if model in NAIVE else seeds):  # nothing random is left in a naive model
                settings = settings_for(preset, model, seed=seed)
                if settings.hash not in done:
                    home = _home(folder, settings)
                    cells.append(Cell(preset, settings, home, _expected(settings, home, entries)))
    return sorted(cells, key=lambda cell: (cell.seconds, cell.settings.seed))


def _home(folder: Path, settings: RunSettings) -> Path:
    """The folder of a run; another one where it holds a run from before the preset was changed."""
    home = folder / str(settings.preset) / f"{settings.model.name}-{settings.seed}"
    try:
        check_folder(home, settings, resume=True)
    except ValueError:
        return home.with_name(f"{home.name}-{settings.hash[:8]}")
    return home


def reproduce(
    cells: Iterable[Cell],
    *,
    hours: float,
    jobs: int = 1,
    ledger_path: Path = ledger.LEDGER,
    data_dir: Path | str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """Run the cells, each a `cru run --resume` with one thread, and stop what is under way when the time is up. Returns
    the titles of those that failed."""
    deadline = time.monotonic() + 3600 * hours
    waiting, failed = list(cells), []
    running: dict[subprocess.Popen[bytes], tuple[Cell, float]] = {}
    try:
        while (waiting or running) and time.monotonic() < deadline:
            while waiting and len(running) < jobs:
                cell = waiting.pop(0)
                running[_start(cell, ledger_path, data_dir)] = (cell, time.monotonic())
                say(f"start  {cell.title}  (about {cell.seconds / 60:.0f} min)")
            for process in [process for process in running if process.poll() is not None]:
                cell, since = running.pop(process)
                took = (time.monotonic() - since) / 60
                if process.returncode == 0:
                    say(f"done   {cell.title}  in {took:.1f} min")
                else:
                    failed.append(cell.title)
                    say(f"FAILED {cell.title}: {_last_words(cell)}")
            time.sleep(0.1)
    finally:
        _stop(running, say)
    return failed


def _start(cell: Cell, ledger_path: Path, data_dir: Path | str | None) -> "subprocess.Popen[bytes]":
    run = cell.settings
    words = [
        sys.executable,
        "-m",
        "cru.cli",
        "run",
        cell.source,
        "--model",
        run.model.name,
        "--seed",
        str(run.seed),
    ]
    words += ["--out", str(cell.folder), "--ledger", str(ledger_path), "--resume"]
    words += ["--data-dir", str(data_dir)] if data_dir else []
    cell.folder.mkdir(parents=True, exist_ok=True)
    with (cell.folder / "output.txt").open("ab") as output:
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        return subprocess.Popen(words, stdout=output, stderr=output, env=os.environ | threads)


def _stop(running: Mapping["subprocess.Popen[bytes]", tuple[Cell, float]], say: Callable[[str], None]) -> None:
    for process, (cell, _) in running.items():
        process.terminate()
        say(f"stop   {cell.title}: its last epoch is kept")
    for process in running:
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _last_words(cell: Cell) -> str:
    lines = (cell.folder / "output.txt").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "without a word"


def _pace(entries: Iterable[Mapping[str, Any]]) -> float | None:
    """Seconds here for a second of the paper, where both are known."""
    pairs = [(e["seconds_per_epoch"], paper_seconds(str(e["preset"]), e["model"])) for e in entries]
    ratios = [ours / paper for ours, paper in pairs if paper]
    return statistics.median(ratios) if ratios else None


def _expected(settings: RunSettings, folder: Path, entries: Iterable[Mapping[str, Any]]) -> float:
    """Seconds for the epochs that are left: what the ledger measured for this model on this experiment, else on another
    of these series, else for other models on this experiment; else the paper's time, at the pace of the ledger."""
    name, preset = settings.model.name, str(settings.preset)
    if name in NAIVE:
        return 0.0
    trained = [e for e in entries if e["model"] not in NAIVE and "data.train" not in e["changed"]]
    here = [e for e in trained if e["preset"] == preset]
    near = [e for e in trained if e["settings"]["data"]["dataset"] == settings.data.dataset]
    alike = [[e for e in group if e["model"] == name] for group in (here, near)]
    known = next(({e["model"]: e["seconds_per_epoch"] for e in group} for group in (*alike, here) if group), None)
    paper = (paper_seconds(preset, name) or 100.0) * (_pace(trained) or 1.0)
    epoch = statistics.median(known.values()) if known else paper  # the latest of each model
    try:
        done = read_checkpoint(folder / "last.safetensors")[1]["progress"]["epoch"]
    except (OSError, ValueError, KeyError, TypeError):
        done = 0
    left: int = max(settings.training.epochs - done, 0)
    return float(epoch) * left
