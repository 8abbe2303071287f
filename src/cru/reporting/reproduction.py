"""The paper's whole grid, cheapest missing cell first, as many at a time as there are jobs, until the time is up."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cru.errors import InputError
from cru.models.registry import MODELS, NAIVE, entry, is_own
from cru.reporting import ledger
from cru.reporting.ledger import compare_with_presets
from cru.reporting.run_folder import RunFolder, find_folders
from cru.reporting.tables import paper_presets, paper_seconds
from cru.training.checkpoint import read_checkpoint
from cru.training.experiment import data_version
from cru.training.presets import models_of, settings_for
from cru.training.run import check_folder
from cru.training.settings import RunSettings

_PATIENCE = 60.0  # seconds for a run to stop by itself


class PlannedRun(NamedTuple):
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
            raise InputError("groups", "look like PRESETS:MODELS:SEEDS", repr(text))
        return Group(split_names(presets), split_names(models), int(seeds.strip() or 1))


def missing_in(
    groups: Sequence[Group], *, ledger_path: Path = ledger.LEDGER, folder: Path = Path("runs")
) -> list[PlannedRun]:
    """The missing cells of each group after those of the groups before it, each once."""
    cells: dict[str, PlannedRun] = {}
    for group in groups:
        for cell in missing(group.presets, group.models, seeds=group.seeds, ledger_path=ledger_path, folder=folder):
            cells.setdefault(cell.settings.hash, cell)
    return list(cells.values())


def split_names(text: str) -> list[str]:
    """Split names at commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def missing(
    presets: Sequence[str] = (),
    models: Sequence[str] = (),
    *,
    seeds: int = 5,
    ledger_path: Path = ledger.LEDGER,
    folder: Path = Path("runs"),
) -> list[PlannedRun]:
    """Every cell of the paper's tables that the ledger does not have, the cheapest first."""
    entries = _timed_entries(ledger_path)
    # A run on series of one's own or on an earlier version of the data does not count.
    done = {
        line["hash"]
        for line in compare_with_presets(entries)
        if "splits" not in line["changed"] and not line["outdated"]
    }
    cells = _cells(Group(list(presets), list(models), seeds), folder, entries)
    left = [cell for cell in cells if cell.settings.hash not in done]
    return sorted(left, key=lambda cell: (cell.seconds, cell.settings.seed))


def find_runs(
    group: Group, places: Sequence[Path], *, ledger_path: Path = ledger.LEDGER
) -> tuple[list[RunFolder], list[PlannedRun]]:
    """Find the finished runs of a group below ``places``, in its order, and the cells that are missing there.

    The missing ones belong into the first place.
    """
    finished = {
        folder.settings.hash: folder
        for folder in find_folders([place for place in places if place.is_dir()])
        if folder.record is not None and "splits" not in folder.record["changed"]
        if folder.record.get("data_version", 1) == data_version(folder.settings)
    }
    cells = list(_cells(group, places[0], _timed_entries(ledger_path)))
    found = [finished[cell.settings.hash] for cell in cells if cell.settings.hash in finished]
    return found, [cell for cell in cells if cell.settings.hash not in finished]


def _timed_entries(path: Path) -> list[dict[str, Any]]:
    return [line for line in ledger.read(path) if {"hash", "changed", "seconds_per_epoch"} <= line.keys()]


def _cells(group: Group, folder: Path, entries: Sequence[Mapping[str, Any]]) -> Iterator[PlannedRun]:
    """All cells of a group, in its order."""
    for model in group.models:
        entry(model)  # an unknown name is an error
    for preset in group.presets or paper_presets():
        known = models_of(preset)
        chosen = [name for name in group.models or MODELS if name in known or is_own(name)]
        for model in chosen:
            for seed in range(1 if model in NAIVE else group.seeds):  # nothing random is left in a naive model
                settings = settings_for(preset, model, seed=seed)
                home = _home(folder, settings)
                yield PlannedRun(preset, settings, home, _expected(settings, home, entries))


def _home(folder: Path, settings: RunSettings) -> Path:
    """The folder of a run; another one where it holds a run from before the preset was changed."""
    home = folder / str(settings.preset) / f"{settings.model.name}-{settings.seed}"
    try:
        check_folder(home, settings, resume=True)
    except ValueError:
        return home.with_name(f"{home.name}-{settings.hash[:8]}")
    return home


def reproduce(
    cells: Iterable[PlannedRun],
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
    running: dict[subprocess.Popen[bytes], tuple[PlannedRun, float]] = {}
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


def _start(cell: PlannedRun, ledger_path: Path, data_dir: Path | str | None) -> "subprocess.Popen[bytes]":
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


def _stop(running: Mapping["subprocess.Popen[bytes]", tuple[PlannedRun, float]], say: Callable[[str], None]) -> None:
    for process, (cell, _) in running.items():
        process.terminate()
        say(f"stop   {cell.title}: its last epoch is kept")
    for process in running:
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _last_words(cell: PlannedRun) -> str:
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
