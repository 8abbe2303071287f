"""Timing and reporting that all benchmarks share: one thread, CPU time, best of several."""

import json
import platform
import sys
from datetime import date
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from cru.reporting.timing import best

__all__ = ["best", "machine", "report"]
RESULTS = Path("build/bench")


def machine() -> dict[str, str]:
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    return {
        "date": date.today().isoformat(),
        "processor": names[0] if names else platform.processor(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def report(name: str, title: str, columns: list[str], rows: list[list[Any]]) -> None:
    """Print a table, and write it to `build/bench/NAME.json` and `NAME.md`. With `--quick`, NAME ends in -quick."""
    name += "-quick" if "--quick" in sys.argv else ""
    cells = [[f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    table = Table(*columns, title=title, title_justify="left")
    for row in cells:
        table.add_row(*row)
    Console(width=140).print(table)
    RESULTS.mkdir(parents=True, exist_ok=True)
    content = machine() | {"title": title, "rows": [dict(zip(columns, row, strict=True)) for row in rows]}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1))
    lines = [columns, ["---"] * len(columns), *cells]
    (RESULTS / f"{name}.md").write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))
