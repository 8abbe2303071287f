"""The data of a report page, from ledgers and from the folders of runs."""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from cru.errors import full_message
from cru.evaluation.diagnostics import calibration, error_by_gap, gain_by_missing, gain_by_noise
from cru.models.registry import MODELS
from cru.reporting import ledger, paper_tables
from cru.reporting.figures.comparisons import measure_runtime
from cru.reporting.figures.style import model_style, time_label
from cru.reporting.ledger import compare_with_presets
from cru.reporting.report_page import describe_run, describe_series, describe_tables, limit_size
from cru.reporting.run_folder import (
    RunFolder,
    RunPredictions,
    data_key,
    files_below,
    find_folders,
    load_test,
    predict_run,
)
from cru.training.presets import presets
from cru.training.settings import differences

SERIES_BYTES = 6_000_000  # size of all test series, so that a page stays below 8 MB
_DIAGNOSED_SERIES = 100  # number of test series for calibration, error by gap and gain


def collect(
    paths: Sequence[Path],
    *,
    title: str | None = None,
    series: int = 12,
    runtime: bool = False,
    data_dir: Path | str | None = None,
    allow_code: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Collect the data of a page.

    Args:
        paths: folders with runs and ledgers, or ledgers.
        title: title of the page.
        series: largest number of test series of each experiment. The size of the page can reduce it.
        runtime: whether to measure the runtime of the layers.
        data_dir: folder of the raw files.
        allow_code: whether models outside this library may be imported.
        say: the function to call with progress messages.

    Raises:
        ValueError: there is no run and no ledger.
    """
    folders = find_folders(path for path in paths if not path.is_file())
    entries = _entries(paths, folders, say)
    if not entries and not folders:
        raise ValueError(f"there is no run and no ledger.jsonl in {', '.join(map(str, paths))}.")
    logs = {id_of(folder): folder.log for folder in folders}
    runs = [describe_run(entry, logs.get(entry["run"], []), "") for entry in entries]
    runs += [describe_run(_unfinished(folder), folder.log, id_of(folder)) for folder in folders if not folder.record]
    order = paper_tables.in_order(run["model"] for run in runs)
    runs.sort(key=lambda run: (order.index(run["model"]), run["seed"]))
    _split_own_experiments(runs)
    known = presets()
    present = {run["preset"] for run in runs}
    names = [name for name in dict.fromkeys([*paper_tables.paper_presets(), *sorted(present)]) if name in present]
    experiments, experiment_of = [], {run["id"]: run["preset"] for run in runs}
    for name in names:
        own = [folder for folder in folders if experiment_of[id_of(folder)] == name]
        share = SERIES_BYTES // max(1, len(names))
        experiment = _experiment(own, count=series, share=share, data_dir=data_dir, allow_code=allow_code, say=say)
        experiments.append({"preset": name, "about": known.get(name, ""), "paper": _paper(name)} | experiment)
    models = dict.fromkeys([*MODELS, *(run["model"] for run in runs)])
    return {
        "title": title or _title(runs, names),
        "made": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "styles": {model: model_style(model)._asdict() for model in models},
        "tables": describe_tables(entries),
        "runtime": _runtime() if runtime else None,
        "runs": runs,
        "experiments": experiments,
    }


def id_of(folder: RunFolder) -> str:
    """Return the id of a run in the ledger, or the folder of an unfinished run."""
    return str(folder.record["run"]) if folder.record else str(folder.path)


def _entries(paths: Sequence[Path], folders: Iterable[RunFolder], say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Read each run once, from ledgers and folders."""
    found: dict[str, dict[str, Any]] = {}
    files = [file for path in paths for file in ([path] if path.is_file() else files_below(path, ledger.LEDGER.name))]
    for file in files:
        try:
            entries = ledger.read(file)
        except ValueError as error:
            if file in paths:
                raise
            say(f"Left out: {error}")  # it may be a ledger of another program
            continue
        for entry in entries:
            found.setdefault(entry["run"], entry)
    for folder in folders:
        if folder.record:
            found.setdefault(folder.record["run"], folder.record)
    return compare_with_presets(found.values())


def _unfinished(folder: RunFolder) -> dict[str, Any]:
    settings = folder.settings
    return {"preset": settings.preset, "model": folder.model, "seed": settings.seed, "settings": settings.as_dict()}


def _split_own_experiments(runs: list[dict[str, Any]]) -> None:
    """Split runs without a preset into experiments by their data."""
    own = {run["id"]: data_key({"data": {}} | run["settings"]) for run in runs if run["preset"] == "own"}
    keys = list(dict.fromkeys(own.values()))
    for run in runs:
        if run["id"] in own and len(keys) > 1:
            data = run["settings"].get("data", {})
            words = [data[name] for name in ("dataset", "task") if name in data]
            run["preset"] = f"own {keys.index(own[run['id']]) + 1}: {', '.join(words)}"


def _title(runs: list[dict[str, Any]], names: list[str]) -> str:
    if len(runs) == 1:
        return f"{names[0]}, {runs[0]['model']}, seed {runs[0]['seed']}"
    return " and ".join(names) if len(names) < 3 else f"{len(names)} experiments"


def _runtime() -> dict[str, dict[str, list[float]]]:
    return {
        layer: {"x": [float(size) for size in seconds], "y": [1e3 * value for value in seconds.values()]}
        for layer, seconds in measure_runtime().items()
    }


def _paper(preset: str) -> dict[str, dict[str, list[float]]]:
    """Return the scores of the paper in the units of ours: metric -> model -> mean and standard deviation."""
    printed: dict[str, dict[str, list[float]]] = {}
    for table in paper_tables.paper()["table"]:
        if preset in table["columns"]:
            scale = table["scale"]
            printed[table["metric"]] = {
                model: [mean * scale, std * scale] for model, (mean, std, *_) in table[preset].items()
            }
    return printed


def _experiment(
    folders: list[RunFolder],
    *,
    count: int,
    share: int,
    data_dir: Path | str | None,
    allow_code: bool,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Predict test series of an experiment: one set of series for the browser, all runs for the diagnostics."""
    found: dict[str, Any] = {"calibration": {}, "gaps": {}, "gain": {}, "series": [], "notes": [], "time": "time"}
    groups: dict[str, list[RunFolder]] = {}
    for folder in folders:
        if (folder.path / "best.safetensors").is_file():
            groups.setdefault(folder.data_key, []).append(folder)
    shown: RunFolder | None = None
    # A series is shown with every model on the same data. The data with most models come first.
    for group in sorted(groups.values(), key=lambda group: -len({folder.model for folder in group})):
        tested = _tested(group, found, data_dir=data_dir, allow_code=allow_code, say=say)
        if tested and shown is None:
            shown = tested[0].folder
            found["series"] = _series(tested, count, share)
        elif tested and shown is not None:
            found["notes"].append(
                f"{_titles([one.folder for one in tested])}: not in the test series below, because the data differ "
                f"({', '.join(_other_data(tested[0].folder, shown))})."
            )
    return found


def _tested(
    group: list[RunFolder],
    found: dict[str, Any],
    *,
    data_dir: Path | str | None,
    allow_code: bool,
    say: Callable[[str], None],
) -> list[RunPredictions]:
    """Predict and diagnose the test series of runs on the same data. Note a run that cannot be read, and continue."""
    try:
        test = load_test(group[0], data_dir=data_dir)
    except (ValueError, OSError) as error:
        found["notes"].append(f"{_titles(group)}: no test series are shown. {full_message(error)}")
        return []
    tested = []
    for folder in group:
        try:
            one = predict_run(folder, test, count=_DIAGNOSED_SERIES, allow_code=allow_code)
            _diagnose(one, found)
        except (ValueError, OSError, RuntimeError) as error:  # torch raises RuntimeError for weights of another shape
            found["notes"].append(f"{folder.title}: no test series are shown. {full_message(error)}")
            say(found["notes"][-1])
            continue
        say(f"{folder.title}: {len(one.predictions)} test series")
        tested.append(one)
    return tested


def _titles(folders: list[RunFolder], most: int = 5) -> str:
    titles = [folder.title for folder in folders]
    return "; ".join([*titles[:most], *([f"{len(titles) - most} more"] if len(titles) > most else [])])


def _other_data(ours: RunFolder, theirs: RunFolder) -> list[str]:
    """Return the settings of the data in which two runs differ."""
    return [key for key in differences(ours.settings, theirs.settings) if key.startswith("data.")]


def _diagnose(one: RunPredictions, found: dict[str, Any]) -> None:
    run = id_of(one.folder)
    found["time"], found["error_unit"] = time_label(one.test.time_unit), one.error_unit
    found["diagnosed"] = max(found.get("diagnosed", 0), len(one.predictions))
    curve = calibration(one.predictions, scored=one.scored)
    if curve is not None:
        found["calibration"][run] = curve._asdict()
    found["gaps"][run] = error_by_gap(one.predictions, scored=one.scored, scale=one.scale)._asdict()
    by_noise = gain_by_noise(one.predictions)
    spread = by_noise or gain_by_missing(one.predictions)
    if spread is not None:
        found["gain"][run] = spread._asdict() | {"by": "noise" if by_noise else "missing"}


def _series(tested: list[RunPredictions], count: int, share: int) -> list[dict[str, Any]]:
    first = tested[0]
    names, units = first.folder.target_names(first.test)
    regression = first.folder.settings.data.task == "regression"
    return limit_size(
        (
            describe_series(
                {id_of(one.folder): one.predictions[number] for one in tested},
                names=names,
                units=units,
                regression=regression,
            )
            for number in range(min(count, len(first.predictions)))
        ),
        share,
    )
