"""The tables as text: for a terminal and for a Markdown page."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cru.evaluation.tables import BETTER, INSIDE, WORSE, Cell, Other, Table

if TYPE_CHECKING:
    from rich.table import Table as RichTable

_SIGN = {INSIDE: "≈", BETTER: "▲", WORSE: "▼", "": ""}
LEGEND = (
    "≈ inside two of the paper's standard deviations, ▲ better, ▼ worse; * loses to a naive model on the same data; "
    "(n) seeds, of weights and order, on one split; ‡ on an earlier version of the data, to be run again; "
    "† quoted by the paper from Rubanova et al. (2019). The paper's tables hold only full runs with the "
    "settings of the presets: the paper's, and our own for what it leaves open and for models that it does not have; "
    "among our own experiments a changed setting is named."
)
EPOCHS = {"best": "Scores of the epoch that was best on validation.", "last": "Scores of the last epoch, as published."}


SOURCES = (
    "USHCN here is NOAA's GHCN-Daily of today; the archive that the paper read is gone, so stations and values differ. "
    "All seeds of an experiment share one split or simulation, as published. Runs on other splits are among our own. "
    "[reproduction.md](reproduction.md) says where a result differs from the paper, and why."
)
_SIDE_BY_SIDE = 2  # experiments that fit beside each other on a screen


def headings(table: Table) -> list[str]:
    """Two columns for each experiment."""
    return ["model", *(f"{name}: {what}" for name in table.columns.values() for what in ("paper", "ours"))]


def rows(table: Table) -> list[list[str]]:
    """A row for each model."""
    found = []
    for model in table.models:
        row = [model]
        for preset in table.columns:
            cell = table.cells[preset].get(model)
            row += _texts(cell, table.digits) if cell else ["", ""]
        found.append(row)
    return found


def terminal(table: Table) -> "Iterator[RichTable]":
    """For the screen: a wide table in parts."""
    names = list(table.columns)
    for start in range(0, len(names), _SIDE_BY_SIDE):
        part = table._replace(columns={name: table.columns[name] for name in names[start : start + _SIDE_BY_SIDE]})
        yield grid([[heading.replace(": ", "\n") for heading in headings(part)], *rows(part)])


def grid(lines: list[list[str]]) -> "RichTable":
    """A heading and rows, numbers to the right, for the screen."""
    from rich.table import Table as RichTable

    shown = RichTable(box=None, pad_edge=False)
    for number, heading in enumerate(lines[0]):
        shown.add_column(heading, justify="left" if number == 0 else "right")
    for row in lines[1:]:
        shown.add_row(*row)
    return shown


def markdown(tables: list[Table], left_out: int, others: list[Other] | None = None, *, epoch: str = "best") -> str:
    """For docs/results.md."""
    parts = ["# Results: the paper beside ours", f"{EPOCHS[epoch]} {LEGEND}"]
    for table in tables:
        parts += [f"## Table {table.number}. {table.title}", _markdown_grid([headings(table), *rows(table)])]
        parts += [*beaten(table), *open_cells(table)]
    if others:
        parts += ["## Experiments of ours", _markdown_grid(other_rows(others))]
    parts.append(SOURCES)
    if left_out:
        parts.append(f"{left_out} shortened or changed runs in the ledger are not shown.")
    return "\n\n".join(parts) + "\n"


def open_cells(table: Table) -> list[str]:
    """A sentence for each experiment with what has not been run."""
    sentences = []
    for preset, name in table.columns.items():
        missing = [model for model, cell in table.cells[preset].items() if not cell.ours]
        if missing:
            sentences.append(f"Not run yet on {name}: {', '.join(missing)}.")
    return sentences


def other_rows(found: list[Other]) -> list[list[str]]:
    """A heading, and a row for each model on each experiment of ours."""
    heading = ["experiment", "model", "seeds", "MSE × 1e-3", "where hidden", "NLL", "inside 90 %"]
    return [heading] + [
        [
            one.experiment,
            one.model,
            str(one.seeds),
            "" if one.mse is None else f"{1e3 * one.mse:.3f}",
            "" if one.hidden is None else f"{1e3 * one.hidden:.3f}",
            "" if one.nll is None else f"{one.nll:.2f}",
            "" if one.coverage is None else f"{100 * one.coverage:.0f} %",
        ]
        for one in found
    ]


def beaten(table: Table) -> list[str]:
    """One sentence for each experiment on which a model loses to a naive one."""
    sentences = []
    for preset, name in table.columns.items():
        losers = [model for model, cell in table.cells[preset].items() if cell.beaten]
        if losers:
            sentences.append(f"On {name} these lose to a naive model on the same data: {', '.join(losers)}.")
    return sentences


def _markdown_grid(lines: list[list[str]]) -> str:
    heading, *below = lines
    return "\n".join("| " + " | ".join(line) + " |" for line in (heading, ["---"] * len(heading), *below))


def _texts(cell: Cell, digits: int) -> list[str]:
    paper = f"{cell.paper.mean:.{digits}f} ± {cell.paper.std:.{digits}f}" if cell.paper else ""
    paper += "†" if cell.paper and cell.paper.quoted else ""
    if cell.ours is None:
        return [paper, "–"]
    spread = f" ± {cell.ours.std:.{digits}f}" if cell.ours.std is not None else ""
    star = ("*" if cell.beaten else "") + ("‡" if cell.ours.outdated else "")
    ours = f"{cell.ours.mean:.{digits}f}{spread} ({cell.ours.seeds}){star} {_SIGN[cell.mark]}".rstrip()
    return [paper, ours]
