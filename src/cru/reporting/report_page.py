"""The report page: runs, tables and test series as data in one self-contained HTML file."""

import base64
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from cru.errors import require_extra
from cru.evaluation.evaluate import SeriesPrediction
from cru.reporting.html_page import make_page, number, numbers
from cru.reporting.paper_tables import Table, TableCell, tables
from cru.reporting.render import MARKS, SIGNS
from cru.shapes import Float

_LEVELS = (0, 50, 90)  # of the intervals that a reader can choose, in per cent
_UNSHOWN = "†→"  # signs of scores that the page does not have
SCRIPTS = ("dom.js", "scale.js", "chart.js", "charts.js", "scores.js", "frames.js", "browser.js", "main.js")


def render(data: Mapping[str, Any]) -> str:
    """Make the HTML page of ``data`` from `cru.reporting.report_data.collect`."""
    return make_page(str(data["title"]), {**data, **_constants()}, SCRIPTS)


def _constants() -> dict[str, Any]:
    """Return what the scripts must know: the signs of the tables, and the half widths of intervals in deviations."""
    bands = [{"level": level, "width": NormalDist().inv_cdf(0.5 + level / 200)} for level in _LEVELS]
    signs = {sign: meaning for sign, meaning in SIGNS.items() if not set(sign) & set(_UNSHOWN)}
    return {"bands": bands, "marks": MARKS, "signs": signs}


def describe_series(
    predictions: Mapping[str, SeriesPrediction], *, names: Sequence[str], units: Sequence[str], regression: bool
) -> dict[str, Any]:
    """Describe one series: times, observations or frames, and the prediction and gain of each run.

    Channels without any observation or target are left out.

    Args:
        predictions: predictions of the same series, by the ids of runs.
        names: the names of the targets.
        units: the units of the targets.
        regression: whether the task is a regression.
    """
    first = next(iter(predictions.values()))
    series: dict[str, Any] = {"id": first.id, "times": numbers(first.times, 7), "channels": [], "frames": None}
    if first.is_image:
        truth = None if regression else encode_frames(first.targets[:, 0])
        series["frames"] = {
            "height": first.values.shape[2],
            "width": first.values.shape[3],
            "seen": encode_frames(first.values[:, 0]),
            "observed": "".join("1" if seen else "0" for seen in first.observed),
            "truth": truth,
        }
    if first.noise is not None and first.noise.any():
        series["noise"] = numbers(first.noise, 3)
    image_targets = first.targets.ndim > 2
    kept = [] if image_targets else [k for k in range(first.targets.shape[1]) if _has_values(first, k, regression)]
    series["channels"] = [
        {"name": names[k], "unit": units[k] if units else "", **_points(first, k, regression)} for k in kept
    ]
    series["predictions"] = {
        run: _describe_prediction(output, kept, image_targets) for run, output in predictions.items()
    }
    return series


def limit_size(series: Iterable[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    """Select the first series that fit into ``size`` bytes of JSON, but at least one."""
    kept: list[dict[str, Any]] = []
    for one in series:
        size -= len(json.dumps(one, separators=(",", ":")))
        if kept and size < 0:
            break
        kept.append(one)
    return kept


def encode_frames(frames: Float[np.ndarray, "time height width"]) -> str:
    """Encode frames of brightness 0 to 1, one above another, as the data URL of a PNG image."""
    Image = require_extra("PIL.Image", "plots")
    pixels = np.rint(np.clip(frames, 0, 1) * 255).astype(np.uint8).reshape(-1, frames.shape[2])
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _has_values(output: SeriesPrediction, k: int, regression: bool) -> bool:
    return bool(output.target_mask[:, k].any() or (not regression and output.mask[:, k].any()))


def _points(output: SeriesPrediction, k: int, regression: bool) -> dict[str, Any]:
    """Return the targets of a regression, or the observed and the withheld values of a channel."""
    known = output.target_mask[:, k]
    if regression:
        return {"truth": _sparse(output.targets[:, k], known)}
    withheld = known & output.hidden[:, k]
    return {
        "seen": _sparse(output.values[:, k], output.mask[:, k]),
        "withheld": _sparse(output.targets[:, k], withheld),
    }


def _sparse(values: np.ndarray, mask: np.ndarray) -> dict[str, list[Any]]:
    return {"at": np.flatnonzero(mask).tolist(), "values": numbers(values[mask])}


def _describe_prediction(output: SeriesPrediction, channels: Sequence[int], image_targets: bool) -> dict[str, Any]:
    described: dict[str, Any] = {"gain": None if output.gain is None else numbers(output.gain)}
    if image_targets:
        error = np.sqrt(((output.targets - output.mean) ** 2).mean(axis=(1, 2, 3)))
        return described | {"frames": encode_frames(output.mean[:, 0]), "error": numbers(error)}
    described["mean"] = [numbers(output.mean[:, k]) for k in channels]
    described["std"] = None if output.std is None else [numbers(output.std[:, k], 3) for k in channels]
    return described


CURVES = ("mse", "nll", "mae", "crps")


def describe_tables(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Describe the tables of the paper that have at least one of the runs."""
    return [_table(table) for table in tables(entries) if any(_run(table, column) for column in table.columns)]


def describe_run(entry: Mapping[str, Any], log: Iterable[Mapping[str, Any]], path: str) -> dict[str, Any]:
    """Describe a run: settings, test scores of the best epoch, and learning curve. An unfinished run has no scores.

    Args:
        entry: the entry of the ledger, or the settings of an unfinished run.
        log: the records of the epochs.
        path: the folder of an unfinished run.
    """
    best = entry.get("scores", {}).get("best", {})
    test = best.get("test", {})
    settings = entry.get("settings", {})
    return {
        "id": entry.get("run") or path,
        "preset": entry.get("preset") or "own",
        "model": entry["model"],
        "seed": entry["seed"],
        "changed": list(entry.get("changed", [])),
        "epochs": entry.get("epochs"),
        "best_epoch": best.get("epoch"),
        "parameters": entry.get("parameters"),
        "seconds": number(entry.get("seconds_per_epoch")),
        "device": entry.get("device"),
        "finished": entry.get("finished"),
        "commit": entry.get("commit"),
        "versions": dict(entry.get("versions", {})),
        "series": dict(entry.get("series", {})),
        "settings": settings,
        "scored": test.get("scored"),
        "test": {
            name: number(value, 17) for name, value in test.get(test.get("scored"), {}).items() if name != "count"
        },
        "curve": _curve(list(log)),
    }


def _curve(log: list[Mapping[str, Any]]) -> dict[str, Any]:
    scores = [line["validation"].get(line["validation"]["scored"], {}) for line in log]
    curve = {name: [number(score.get(name)) for score in scores] for name in CURVES}
    kept = {name: values for name, values in curve.items() if any(value is not None for value in values)}
    return {"epoch": [line["epoch"] for line in log], "loss": [number(line["loss"]) for line in log]} | kept


def _run(table: Table, column: str) -> bool:
    return any(cell.ours for cell in table.cells[column].values())


def _table(table: Table) -> dict[str, Any]:
    columns = [{"preset": preset, "name": name} for preset, name in table.columns.items() if _run(table, preset)]
    rows: list[dict[str, Any]] = [
        {"model": model, "cells": {c["preset"]: _cell(table.cells[c["preset"]].get(model)) for c in columns}}
        for model in table.models
    ]
    shown = [row for row in rows if any(row["cells"].values())]
    return {
        "number": table.number,
        "title": table.title,
        "digits": table.digits,
        "columns": columns,
        "rows": shown,
    }


def _cell(cell: TableCell | None) -> dict[str, Any] | None:
    if cell is None:
        return None
    ours = cell.ours if cell.ours and math.isfinite(cell.ours.mean) else None
    return {
        "paper": list(cell.paper[:2]) if cell.paper else None,
        "ours": {"mean": ours.mean, "std": ours.std, "seeds": ours.seeds, "age": ours.age} if ours else None,
        "mark": cell.mark,
        "beaten": cell.beaten,
    }
