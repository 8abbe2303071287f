"""The missing cells of the tables of the paper, run in parallel jobs within a time limit, the shortest first."""

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
from cru.reporting.paper_tables import paper_presets, paper_seconds
from cru.reporting.run_folder import RunFolder, find_folders
from cru.training.checkpoint import read_checkpoint
from cru.training.experiment import data_version
from cru.training.presets import models_of, settings_for
from cru.training.run import check_folder
from cru.training.settings import RunSettings

_STOP_TIMEOUT = 60.0  # seconds that a run has to stop before it is killed


class PlannedRun(NamedTuple):
    """A planned run, and its expected duration."""

    source: str  # name or path of the preset
    settings: RunSettings
    folder: Path
    seconds: float

    @property
    def title(self) -> str:
        """Preset, model and seed."""
        return f"{self.settings.preset} {self.settings.model.name} seed {self.settings.seed}"


class Group(NamedTuple):
    """Cells of the tables: presets, models (all if empty) and the number of seeds. Groups are run in order."""

    presets: list[str]
    models: list[str]
    seeds: int

    @staticmethod
    def parse(text: str) -> "Group":
        """Parse "PRESET,PRESET:MODEL,MODEL:SEEDS". Empty parts mean the presets of the paper, all models, one seed.

        >>> from cru.reporting.reproduction import Group
        >>> Group.parse("ushcn-one-step:gru-d,ode-rnn")
        Group(presets=['ushcn-one-step'], models=['gru-d', 'ode-rnn'], seeds=1)
        """
        presets, models, seeds, *more = [*text.split(":"), "", ""][: max(3, text.count(":") + 1)]
        if more or not (seeds.strip() or "1").isdecimal():
            raise InputError("groups", "have the form PRESETS:MODELS:SEEDS", repr(text))
        return Group(split_names(presets), split_names(models), int(seeds.strip() or 1))


def missing_in(
    groups: Sequence[Group], *, ledger_path: Path = ledger.LEDGER, folder: Path = Path("runs")
) -> list[PlannedRun]:
    """Find the missing cells of all groups, in the order of the groups, each once.

    Args:
        groups: the groups.
        ledger_path: the ledger of finished runs.
        folder: the folder of the runs.
    """
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
    """Find the cells of the tables of the paper that are not in the ledger, the shortest first.

    Args:
        presets: the presets. Empty: those of the tables.
        models: the models. Empty: all models.
        seeds: the number of seeds.
        ledger_path: the ledger of finished runs.
        folder: the folder of the runs.
    """
    entries = _timed_entries(ledger_path)
    # Runs on other series or on an earlier version of the data do not count.
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
    """Find the finished runs of a group, and its missing cells.

    Args:
        group: the group.
        places: the folders that are searched. The missing runs have folders in the first of them.
        ledger_path: the ledger with the times of runs.
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
    """Yield all cells of a group in order."""
    for model in group.models:
        entry(model)  # raises for an unknown name
    for preset in group.presets or paper_presets():
        known = models_of(preset)
        chosen = [name for name in group.models or MODELS if name in known or is_own(name)]
        for model in chosen:
            for seed in range(1 if model in NAIVE else group.seeds):  # a naive model is not random
                settings = settings_for(preset, model, seed=seed)
                run_folder = _run_folder(folder, settings)
                yield PlannedRun(preset, settings, run_folder, _expected(settings, run_folder, entries))


def _run_folder(folder: Path, settings: RunSettings) -> Path:
    """Return the folder of a run. Use another name if it holds a run with earlier settings of the preset."""
    run_folder = folder / str(settings.preset) / f"{settings.model.name}-{settings.seed}"
    try:
        check_folder(run_folder, settings, resume=True)
    except ValueError:
        return run_folder.with_name(f"{run_folder.name}-{settings.hash[:8]}")
    return run_folder


def reproduce(
    cells: Iterable[PlannedRun],
    *,
    hours: float,
    jobs: int = 1,
    ledger_path: Path = ledger.LEDGER,
    data_dir: Path | str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """Run cells with `cru run --resume`, one thread each, and stop the running ones at the time limit.

    Args:
        cells: the runs, in order.
        hours: time limit.
        jobs: number of parallel runs.
        ledger_path: the ledger of the runs.
        data_dir: folder of the raw files.
        say: the function to call with progress messages.

    Returns:
        The titles of the failed runs.
    """
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
                    say(f"FAILED {cell.title}: {_last_output_line(cell)}")
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
        say(f"stop   {cell.title}: its last epoch is stored")
    for process in running:
        try:
            process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _last_output_line(cell: PlannedRun) -> str:
    lines = (cell.folder / "output.txt").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"


def _speed_ratio(entries: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the median ratio of our seconds to those of the paper."""
    pairs = [(e["seconds_per_epoch"], paper_seconds(str(e["preset"]), e["model"])) for e in entries]
    ratios = [ours / paper for ours, paper in pairs if paper]
    return statistics.median(ratios) if ratios else None


def _expected(settings: RunSettings, folder: Path, entries: Iterable[Mapping[str, Any]]) -> float:
    """Estimate the seconds of the remaining epochs.

    Use the first of these times that the ledger has: this model on this preset, this model on this dataset, other
    models on this preset. Otherwise, scale the time of the paper by `_speed_ratio`.
    """
    name, preset = settings.model.name, str(settings.preset)
    if name in NAIVE:
        return 0.0
    trained = [e for e in entries if e["model"] not in NAIVE and "data.train" not in e["changed"]]
    here = [e for e in trained if e["preset"] == preset]
    near = [e for e in trained if e["settings"]["data"]["dataset"] == settings.data.dataset]
    same_model = [[e for e in group if e["model"] == name] for group in (here, near)]
    known = next(({e["model"]: e["seconds_per_epoch"] for e in group} for group in (*same_model, here) if group), None)
    paper = (paper_seconds(preset, name) or 100.0) * (_speed_ratio(trained) or 1.0)
    epoch = statistics.median(known.values()) if known else paper  # the latest of each model
    try:
        done = read_checkpoint(folder / "last.safetensors")[1]["progress"]["epoch"]
    except (OSError, ValueError, KeyError, TypeError):
        done = 0
    left: int = max(settings.training.epochs - done, 0)
    return float(epoch) * left
