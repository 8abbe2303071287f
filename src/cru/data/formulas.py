"""Texts in a CSV file that a spreadsheet takes for formulas."""

import warnings
from pathlib import Path

import polars as pl

from cru.data.reading import no_numbers

_BEGINS = r"^[=+\-@\t\r]"


def warn_of_formulas(table: pl.DataFrame, path: Path) -> None:
    """Warn of ids and names that a spreadsheet runs when it opens the file.

    They are written as they are. A CSV file cannot mark them as text, and with another character in front of them they
    would be other ids when the file is read again.
    """
    for column in table.select(pl.col(pl.String)):
        found = no_numbers(column.filter(column.str.contains(_BEGINS)))
        if len(found):
            warnings.warn(
                f"column {column.name!r} of {path} holds {found[0]!r}, which a spreadsheet runs as a formula: "
                "import the column as text, or write a .parquet file.",
                stacklevel=3,
            )
