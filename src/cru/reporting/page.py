"""Write the report page: runs, tables and test series as plain data in one HTML file that loads nothing else."""

import base64
import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from cru.evaluation.evaluate import SeriesPrediction
from cru.extras import require_extra
from cru.reporting.tables import Table, TableCell, tables
from cru.shapes import Float

SCRIPTS = ("dom.js", "scale.js", "chart.js", "charts.js", "scores.js", "frames.js", "browser.js", "main.js")


def render(data: Mapping[str, Any]) -> str:
    """The page that shows ``data``, which `cru.reporting.report.collect` makes."""
    parts = {
        "title": escape(str(data["title"])),
        "style": _read("style.css"),
        "data": embed(data),
        "script": "\n".join(_read(name) for name in SCRIPTS),
    }
    parts |= {f"{name}_hash": _hash(parts[name]) for name in ("style", "script")}
    page = _read("page.html")
    before, *rest = page.split("{{")  # one pass: what was put in is never looked at again
    return before + "".join(parts[name] + after for name, after in (part.split("}}", 1) for part in rest))


def embed(data: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever the texts in it are.

    >>> embed("</script><!--")
    '"\\\\u003c/script\\\\u003e\\\\u003c!--"'
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _hash(text: str) -> str:
    """The source expression with which a content security policy allows one inline element."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _read(name: str) -> str:
    return (files("cru") / "reporting" / "assets" / name).read_text(encoding="utf-8")


def describe_series(
    said: Mapping[str, SeriesPrediction], *, names: Sequence[str], units: Sequence[str], regression: bool
) -> dict[str, Any]:
    """One series: its times, its readings or frames, and for each run what the model says, how sure it is, its gain.

    ``said`` has the id of a run for each output; all are of the same series. Channels without any reading or target
    are left out.
    """
    first = next(iter(said.values()))
    series: dict[str, Any] = {"id": first.id, "times": numbers(first.times, 7), "channels": [], "frames": None}
    if first.is_image:
        truth = None if regression else strip(first.targets[:, 0])
        series["frames"] = {
            "height": first.values.shape[2],
            "width": first.values.shape[3],
            "seen": strip(first.values[:, 0]),
            "observed": "".join("1" if seen else "0" for seen in first.observed),
            "truth": truth,
        }
    if first.noise is not None and first.noise.any():
        series["noise"] = numbers(first.noise, 3)
    image_targets = first.targets.ndim > 2
    kept = [] if image_targets else [k for k in range(first.targets.shape[1]) if _anything(first, k, regression)]
    series["channels"] = [
        {"name": names[k], "unit": units[k] if units else "", **_points(first, k, regression)} for k in kept
    ]
    series["said"] = {run: _said(output, kept, image_targets) for run, output in said.items()}
    return series


def fitting(series: Iterable[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    """As many of the series, from the first on, as fit into ``size`` bytes of JSON; the first in any case."""
    kept: list[dict[str, Any]] = []
    for one in series:
        size -= len(json.dumps(one, separators=(",", ":")))
        if kept and size < 0:
            break
        kept.append(one)
    return kept


def numbers(values: Float[np.ndarray, " n"], digits: int = 4) -> list[float | int | None]:
    """Short numbers for JSON."""
    return [number(value, digits) for value in values.tolist()]


def strip(frames: Float[np.ndarray, "time height width"]) -> str:
    """Frames of brightness 0 to 1, one above another, as the address of a PNG."""
    Image = require_extra("PIL.Image", "plots")
    pixels = np.rint(np.clip(frames, 0, 1) * 255).astype(np.uint8).reshape(-1, frames.shape[2])
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _anything(output: SeriesPrediction, k: int, regression: bool) -> bool:
    return bool(output.target_mask[:, k].any() or (not regression and output.mask[:, k].any()))


def _points(output: SeriesPrediction, k: int, regression: bool) -> dict[str, Any]:
    """What is known of a channel: the truth of a regression, or readings seen and readings withheld."""
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


def _said(output: SeriesPrediction, channels: Sequence[int], image_targets: bool) -> dict[str, Any]:
    said: dict[str, Any] = {"gain": None if output.gain is None else numbers(output.gain)}
    if image_targets:
        error = np.sqrt(((output.targets - output.mean) ** 2).mean(axis=(1, 2, 3)))
        return said | {"frames": strip(output.mean[:, 0]), "error": numbers(error)}
    said["mean"] = [numbers(output.mean[:, k]) for k in channels]
    said["std"] = None if output.std is None else [numbers(output.std[:, k], 3) for k in channels]
    return said


CURVES = ("mse", "nll", "mae", "crps")


def describe_tables(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The paper's tables that any of the runs belongs to."""
    return [_table(table) for table in tables(entries) if any(_run(table, column) for column in table.columns)]


def describe_run(entry: Mapping[str, Any], log: Iterable[Mapping[str, Any]], path: str) -> dict[str, Any]:
    """A run: what it was, its scores on the test set at the best epoch, and its curve. Unfinished: no scores."""
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


def number(value: float | int | None, digits: int = 5) -> float | int | None:
    """A number as short as ``digits`` significant ones allow; None where there is none, as JSON has no NaN.

    >>> number(0.123456), number(3.0), number(float("nan"))
    (0.12346, 3, None)
    """
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


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
