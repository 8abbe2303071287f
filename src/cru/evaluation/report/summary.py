"""Scores and runs as plain data for the page: only what the ledger and the logs say, nothing computed anew."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from cru.evaluation.tables import Cell, Table, tables

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


def number(value: float | None, digits: int = 5) -> float | int | None:
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


def _cell(cell: Cell | None) -> dict[str, Any] | None:
    if cell is None:
        return None
    ours = cell.ours if cell.ours and math.isfinite(cell.ours.mean) else None
    return {
        "paper": list(cell.paper[:2]) if cell.paper else None,
        "ours": {"mean": ours.mean, "std": ours.std, "seeds": ours.seeds} if ours else None,
        "mark": cell.mark,
        "beaten": cell.beaten,
    }
