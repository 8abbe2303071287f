"""The tables as text, for a terminal and for a Markdown page."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cru.reporting.paper_tables import BETTER, INSIDE, WORSE, OtherResult, OurScore, Table, TableCell

if TYPE_CHECKING:
    from rich.table import Table as RichTable

MARKS = {INSIDE: "≈", BETTER: "▲", WORSE: "▼", "": ""}
SIGNS = {
    "≈": "within two standard deviations of the paper",
    "▲": "better than the paper",
    "▼": "worse than the paper",
    "*": "loses to a naive model on the same data",
    "(n)": "number of seeds, which set weights and order on one split",
    "‡": "runs on an earlier version of the data",
    "§": "runs with earlier settings of the preset",
    "†": "quoted in the paper from Rubanova et al. (2019); a mean over patients and attributes, not compared",
    "→": "one-step-ahead score, which the paper prints for interpolation",
    "† or → before ours": "the same definition; for Rubanova over our 37 attributes, with one scale for all sets",
}
EPOCHS = {"best": "Scores of the epoch that was best on validation.", "last": "Scores of the last epoch, as published."}
_RUNS = (
    "The tables of the paper show only full runs with the settings of the presets. "
    "These are the settings of the paper, or ours where the paper gives none."
)
SOURCES = (
    "## Data and runs",
    "- USHCN is NOAA's current GHCN-Daily. The archive of the paper is no longer available, so stations and values "
    "differ.\n"
    "- All seeds of an experiment share one split or simulation, as published.\n"
    "- Our own experiments include runs on other splits. They name each changed setting.\n"
    "- [reproduction.md](reproduction.md) explains where a result differs from the paper.",
)
_SIDE_BY_SIDE = 2  # number of experiments that fit side by side on a terminal


def headings(table: Table) -> list[str]:
    """Return two columns for each experiment, and more if there are published runs and measured times."""
    return ["model", *(f"{name}: {what}" for key, name in table.columns.items() for what in _columns(table, key))]


def _columns(table: Table, preset: str) -> list[str]:
    cells = table.cells[preset].values()
    published = ["ours, published protocol"] if any(cell.published for cell in cells) else []
    times = ["time ÷ CRU's: paper, ours"] if any(cell.times[1] for cell in cells) else []
    return ["paper", "ours", *published, *times]


def rows(table: Table) -> list[list[str]]:
    """Return a row for each model."""
    found = []
    for model in table.models:
        row = [model]
        for preset in table.columns:
            cell = table.cells[preset].get(model)
            columns = _columns(table, preset)
            texts = _texts(cell, table.digits) if cell else {}
            row += [texts.get(column, "") for column in columns]
        found.append(row)
    return found


def legend(epoch: str) -> str:
    """Explain the signs in the tables, for the terminal."""
    return f"{EPOCHS[epoch]} {'. '.join(f'{sign}: {meaning}' for sign, meaning in SIGNS.items())}. {_RUNS}"


def terminal(table: Table) -> "Iterator[RichTable]":
    """Format a table for the terminal. A wide table is split into parts."""
    names = list(table.columns)
    for start in range(0, len(names), _SIDE_BY_SIDE):
        part = table._replace(columns={name: table.columns[name] for name in names[start : start + _SIDE_BY_SIDE]})
        yield grid([[heading.replace(": ", "\n") for heading in headings(part)], *rows(part)])


def grid(lines: list[list[str]]) -> "RichTable":
    """Format a heading and rows for the terminal, with numbers aligned to the right."""
    from rich.table import Table as RichTable

    shown = RichTable(box=None, pad_edge=False)
    for number, heading in enumerate(lines[0]):
        shown.add_column(heading, justify="left" if number == 0 else "right")
    for row in lines[1:]:
        shown.add_row(*row)
    return shown


def markdown(
    tables: list[Table], left_out: int, others: list[OtherResult] | None = None, *, epoch: str = "best"
) -> str:
    """Format the page docs/reference/results.md.

    Args:
        tables: the tables of the paper.
        left_out: the number of runs that are not shown.
        others: the results outside the paper.
        epoch: the scored epoch, "best" or "last".
    """
    signs = [["sign", "meaning"], *([sign.replace("*", "\\*"), meaning] for sign, meaning in SIGNS.items())]
    parts = ["# Results: the paper beside ours", f"{EPOCHS[epoch]} {_RUNS}", _markdown_grid(signs)]
    for table in tables:
        parts += [f"## Table {table.number}. {table.title}", _markdown_grid([headings(table), *rows(table)])]
        parts += [*beaten(table), *open_cells(table)]
    if others:
        parts += ["## Experiments of ours", _markdown_grid(other_rows(others))]
    parts += SOURCES
    if left_out:
        parts.append(f"{left_out} shortened or changed runs in the ledger are not shown.")
    return "\n\n".join(parts) + "\n"


def open_cells(table: Table) -> list[str]:
    """Return a sentence for each experiment with models that have not been run."""
    sentences = []
    for preset, name in table.columns.items():
        missing = [model for model, cell in table.cells[preset].items() if not cell.ours]
        if missing:
            sentences.append(f"Not run yet on {name}: {', '.join(missing)}.")
    return sentences


def other_rows(found: list[OtherResult]) -> list[list[str]]:
    """Return a heading, and a row for each model in each experiment outside the paper."""
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
    """Return a sentence for each experiment in which a model has a higher error than a naive model."""
    sentences = []
    for preset, name in table.columns.items():
        losers = [model for model, cell in table.cells[preset].items() if cell.beaten]
        if losers:
            sentences.append(f"On {name} these lose to a naive model on the same data: {', '.join(losers)}.")
    return sentences


def _markdown_grid(lines: list[list[str]]) -> str:
    heading, *below = lines
    return "\n".join("| " + " | ".join(line) + " |" for line in (heading, ["---"] * len(heading), *below))


def _texts(cell: TableCell, digits: int) -> dict[str, str]:
    """Format the cell in each column."""
    paper = f"{cell.paper.mean:.{digits}f} ± {cell.paper.std:.{digits}f}" if cell.paper else ""
    kind = _kind(cell)
    paper += kind
    same_way = f"; {kind}{_number(cell.same_way, digits)}" if cell.same_way else ""
    star = "*" if cell.beaten else ""
    ours = f"{_number(cell.ours, digits)}{star}" if cell.ours else "–"
    published = f"{_number(cell.published, digits)} {MARKS[cell.published_mark]}".rstrip() if cell.published else ""
    times = ", ".join("–" if time is None else f"{time:.2f}" for time in cell.times) if any(cell.times) else ""
    return {
        "paper": paper,
        "ours": f"{ours}{same_way} {MARKS[cell.mark]}".rstrip(),
        "ours, published protocol": published,
        "time ÷ CRU's: paper, ours": times,
    }


def _kind(cell: TableCell) -> str:
    if cell.paper is None:
        return ""
    return ("†" if cell.paper.quoted else "") + ("→" if cell.paper.one_step else "")


def _number(ours: OurScore, digits: int) -> str:
    spread = f" ± {ours.std:.{digits}f}" if ours.std is not None else ""
    return f"{ours.mean:.{digits}f}{spread} ({ours.seeds}){ours.age}"
