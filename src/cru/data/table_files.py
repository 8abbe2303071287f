"""CSV and Parquet files, read and written by polars."""

import gzip
import re
import warnings
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from cru.data.columns import DataTable, read_frame, require_columns
from cru.data.parsing import check_dates, parse_number
from cru.errors import shorten
from cru.extras import require_extra
from cru.threads import check_fork

MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None"]
_SEPARATORS = (",", ";", "\t")
_DECIMAL_POINT = r"^\s*[-+]?\d*\.\d*\s*$"
_THOUSANDS = r"^\s*[-+]?[1-9]\d{0,2}(\.\d{3})+\s*$"
_DECIMAL_COMMA = r"^\s*([-+]?\d+),(\d+)\s*$"
_FORMULA = re.compile(r"[=+\-@\t\r]")


def read_file(path: Path, wanted: list[str], *, time: str, text: list[str], everything: bool) -> DataTable:
    """Read the columns of a file. The arguments are those of `cru.data.reading.read_table`.

    Raises:
        ValueError: it is not readable, or lacks a column.
        FileNotFoundError: it does not exist.
        MissingExtraError: polars is not installed.
    """
    name = path.name.lower()
    if not name.endswith((".csv", ".csv.gz", ".parquet")):
        found = f"the folder {path}. Name a file in it" if path.is_dir() else str(path)
        raise ValueError(f"the table must be a .csv, .csv.gz or .parquet file, got {found}.")
    if not path.is_file():
        raise FileNotFoundError(f"the table must be a file that exists: there is no {path}.")
    pl = _polars()
    # polars panics on some damaged Parquet files, which is no `Exception`.
    damage = (
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,
        OSError,
        EOFError,
        UnicodeDecodeError,
        zlib.error,
    )
    try:
        if name.endswith(".parquet"):
            require_columns(wanted, pl.read_parquet_schema(path))
            return read_frame(pl.read_parquet(path, columns=None if everything else wanted))
        return read_frame(_read_csv(path, wanted, time=time, text=text, everything=everything))
    except damage as error:
        said = shorten(next(iter(str(error).splitlines()), type(error).__name__), 200)
        said = "it is not written in UTF-8" if "utf-8" in said.lower() else said
        raise ValueError(f"{path} must be a readable table: {said}") from None


def _polars() -> Any:
    polars = require_extra("polars", "files")
    check_fork()
    return polars


def _read_csv(path: Path, wanted: list[str], *, time: str, text: list[str], everything: bool) -> Any:
    pl = _polars()
    dialect: dict[str, Any] = {"separator": _separator(path)}
    start = pl.read_csv(path, n_rows=1000, infer_schema_length=0, null_values=MISSING, **dialect)  # all as text
    _check_header(path, dialect)
    require_columns(wanted, start.columns)
    if dialect["separator"] != "," and any(start[c].str.contains(_DECIMAL_COMMA).any() for c in start.columns):
        dialect["decimal_comma"] = True
        start = start.with_columns(pl.all().str.replace(_DECIMAL_COMMA, "${1}.${2}"))
    check_dates(read_frame(start, [time])[time])
    numbers = [c for c in (start.columns if everything else wanted) if c not in text]
    if dialect.get("decimal_comma"):
        _check_thousands(path, numbers, dialect)
    table = _read_numbers(path, numbers, start, dialect)
    if text:  # apart, because what marks a missing number may be a name
        names = pl.read_csv(path, columns=text, schema_overrides=dict.fromkeys(text, pl.String), **dialect)
        table = table.hstack(names)
    return table.filter(~pl.all_horizontal(pl.all().is_null()))  # blank lines


def _separator(path: Path) -> str:
    """Find the separator of the first line: a comma, or what spreadsheets of other countries write."""
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        return max(_SEPARATORS, key=file.readline().count)


def _check_header(path: Path, dialect: dict[str, Any]) -> None:
    """Check that no two columns have one name. polars would rename one of them.

    Raises:
        ValueError: two have.
    """
    names = _polars().read_csv(path, n_rows=1, has_header=False, infer_schema_length=0, **dialect).row(0)
    twice = sorted(name for name, count in Counter(names).items() if name and count > 1)
    if twice:
        raise ValueError(
            f"the table must not have two columns of one name: {', '.join(map(repr, twice))} is there twice."
        )


def _check_thousands(path: Path, columns: list[str], dialect: dict[str, Any]) -> None:
    """Check for 10.098 where numbers have decimal commas: ten, or ten thousand?

    It is ten in a column without commas in which other numbers, 9.5 for example, have decimal points.

    Raises:
        ValueError: it is not clear.
    """
    for name in columns:
        cells = _polars().read_csv(path, columns=[name], infer_schema_length=0, null_values=MISSING, **dialect)[name]
        unclear = cells.str.contains(_THOUSANDS).fill_null(value=False)
        points = bool((cells.str.contains(_DECIMAL_POINT) & ~unclear).any())
        if unclear.any() and not (points and not cells.str.contains(_DECIMAL_COMMA).any()):
            row = int(unclear.arg_max() or 0)
            raise ValueError(
                f"column {name!r} must have no points in its numbers, because the table has decimal commas: "
                f"line {row + 2} has {cells[row]!r}. Write it without points between thousands, or with a comma."
            )


def _read_numbers(path: Path, columns: list[str], start: Any, dialect: dict[str, Any]) -> Any:
    """Read columns of a CSV file. Their kinds, numbers or dates, are those of its ``start`` if possible."""
    pl = _polars()
    # A column that begins empty or with whole numbers may go on with others.
    cells = start.select(columns)
    parsed = cells.select(pl.all().str.strip_chars().cast(pl.Float64, strict=False))
    likely = {c: pl.Float64 for c in columns if parsed[c].null_count() == cells[c].null_count()}
    options = dialect | {"columns": columns, "null_values": MISSING, "try_parse_dates": True}
    try:
        return pl.read_csv(path, schema_overrides=likely, infer_schema_length=1000, **options)
    except pl.exceptions.ComputeError:  # a column changes its kind further down: look at all of it first
        table = pl.read_csv(path, infer_schema_length=None, **options)
        return table.with_columns(c.cast(pl.Float64) for c in table if c.null_count() == len(c))


def write_file(frame: Any, path: Path) -> None:
    """Write a frame to a .csv or .parquet file.

    Times that are all at midnight are written as dates. NaN is a missing value, which is an empty field in CSV.

    Raises:
        MissingExtraError: polars is not installed.
    """
    pl, table = _polars(), read_frame(frame)
    columns = {}
    for name, column in table.items():
        values: Any = column.values
        if column.kind == "text":
            values = pl.Series(column.texts, dtype=pl.String).gather(pl.Series(values).replace(-1, None))
        elif column.kind == "datetime" and column.zone is None and bool((values == values.astype("M8[D]")).all()):
            values = values.astype("M8[D]")
        columns[name] = pl.Series(name, values)
        if column.zone is not None:
            columns[name] = columns[name].dt.replace_time_zone("UTC").dt.convert_time_zone(column.zone)
    path.parent.mkdir(parents=True, exist_ok=True)
    written = pl.DataFrame(columns).fill_nan(None)
    if path.suffix.lower() == ".parquet":
        written.write_parquet(path)
    else:
        _warn_of_formulas(table, path)
        written.write_csv(path)


def _warn_of_formulas(table: DataTable, path: Path) -> None:
    """Warn of ids and names that a spreadsheet runs as formulas when it opens the file.

    They are written as they are. A CSV file cannot mark them as text, and with another character in front of them they
    would be other ids when the file is read again.
    """
    for column in table.values():
        found = [text for text in column.texts if _FORMULA.match(text) and parse_number(text) is None]
        if found:
            warnings.warn(
                f"column {column.name!r} of {path} holds {found[0]!r}, which a spreadsheet runs as a formula: "
                "import the column as text, or write a .parquet file.",
                stacklevel=4,
            )
