"""Tables of any kind, frames and files, as polars frames with the columns that matter."""

import datetime
import gzip
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import narwhals as nw
import polars as pl

from cru.errors import shorten
from cru.threads import check_fork

_MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None"]
_SEPARATORS = (",", ";", "\t")
_DECIMAL_POINT = r"^\s*[-+]?\d*\.\d*\s*$"
_THOUSANDS = r"^\s*[-+]?[1-9]\d{0,2}(\.\d{3})+\s*$"
_DECIMAL_COMMA = r"^\s*([-+]?\d+),(\d+)\s*$"

# What polars and gzip raise for a damaged file: polars panics on some Parquet files, which is no `Exception`.
_UNREADABLE = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    OSError,
    EOFError,
    UnicodeDecodeError,
    zlib.error,
)


def read_table(frame: Any, wanted: list[str], *, time: str, text: list[str], everything: bool) -> pl.DataFrame:
    """The columns ``wanted`` of a frame or of a file, which must have them, or ``everything`` there is.

    In a CSV file the columns ``text`` are taken as they are written, so that 007 and 7 differ and NA is a name.
    """
    check_fork()
    if isinstance(frame, (str, Path)):
        table = _read_file(Path(frame), wanted, time=time, text=text, everything=everything)
    else:
        table = _read_frame(frame, wanted, time=time, everything=everything)
    return table.with_columns(written_times(table[time]))


def _read_frame(frame: Any, wanted: list[str], *, time: str, everything: bool) -> pl.DataFrame:
    """The columns that matter of a frame of any kind, as polars."""
    try:
        known = nw.from_native(frame, eager_only=True)
        odd = [name for name in known.columns if not isinstance(name, str)]
    except nw.exceptions.DuplicateError:
        raise ValueError(f"the table must not have two columns of one name, got {list(frame.columns)}.") from None
    except TypeError:
        raise ValueError(
            "the table must be a pandas or polars frame or the path of a .csv or .parquet file, "
            f"got {type(frame).__name__}."
        ) from None
    if odd:
        raise ValueError(f"the table must have columns with text for names, got {odd}.")
    _require(wanted, known.columns)
    if known[time].dtype == nw.Object:
        _check_objects(time, [entry for entry in known[time] if entry is not None and entry == entry])
    columns = known.columns if everything else wanted
    try:
        return pl.DataFrame({name: known[name].to_polars() for name in columns})
    except Exception as error:  # pyarrow's own, for a column of mixed Python objects
        raise ValueError(f"the table must hold columns of one kind each: {str(error).splitlines()[0]}.") from None


def _check_objects(name: str, entries: list[Any]) -> None:
    """Times that are Python objects, of one kind: polars would make all of them what the first is."""
    if len({getattr(entry, "tzinfo", None) is None for entry in entries}) == 2:
        raise ValueError(f"column {name!r} must have a time zone in all rows or in none: only some have one.")
    if len({isinstance(entry, datetime.datetime) for entry in entries if isinstance(entry, datetime.date)}) == 2:
        raise ValueError(f"column {name!r} must have a time of day in all rows or in none: only some have one.")


def written_times(column: pl.Series) -> pl.Series:
    """A column of times; where it is text, the numbers or dates that are written there."""
    if column.dtype in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    _check_digits(column)
    if column.dtype != pl.String or column.null_count() == len(column):
        return column
    _check_dates(column)
    if len(no_numbers(column)) == 0:
        return column.str.strip_chars().cast(pl.Float64)
    try:
        if bool(column.str.contains(r"^\d{4}-\d{2}-\d{2}$").all()):
            return column.str.to_date()
        return column.str.to_datetime(time_unit="us")
    except pl.exceptions.PolarsError:
        first = column.drop_nulls()[0]
        other = next((text for text in column.drop_nulls() if not _same_date_format(first, text)), None)
        found = f"{other!r} is none, or not of the form of {first!r}" if other else "these differ, or are none"
        raise ValueError(
            f"column {column.name!r} must hold dates of one form, like 2024-01-31T12:00:00: {found}."
        ) from None


def _same_date_format(one: str, other: str) -> bool:
    """Whether two texts are dates that can stand in one column."""
    try:
        pl.Series([one, other]).str.to_datetime(time_unit="us")
    except pl.exceptions.PolarsError:
        return False
    return True


def _read_file(path: Path, wanted: list[str], *, time: str, text: list[str], everything: bool) -> pl.DataFrame:
    name = path.name.lower()
    if not name.endswith((".csv", ".csv.gz", ".parquet")):
        raise ValueError(f"the table must be a .csv, .csv.gz or .parquet file, got {path}.")
    if not path.is_file():
        raise FileNotFoundError(f"the table must be a file that exists: there is no {path}.")
    try:
        if name.endswith(".parquet"):
            _require(wanted, pl.read_parquet_schema(path))
            return pl.read_parquet(path, columns=None if everything else wanted)
        dialect: dict[str, Any] = {"separator": _separator(path)}
        start = pl.read_csv(path, n_rows=1000, infer_schema_length=0, null_values=_MISSING, **dialect)  # all as text
        _check_header(path, dialect)
        _require(wanted, start.columns)
        if dialect["separator"] != "," and any(start[c].str.contains(_DECIMAL_COMMA).any() for c in start.columns):
            dialect["decimal_comma"] = True
            start = start.with_columns(pl.all().str.replace(_DECIMAL_COMMA, "${1}.${2}"))
        _check_dates(start[time])
        numbers = [c for c in (start.columns if everything else wanted) if c not in text]
        if dialect.get("decimal_comma"):
            _check_thousands(path, numbers, dialect)
        table = _read_numbers(path, numbers, start, dialect)
        if text:  # apart, because what marks a missing number may be a name
            names = pl.read_csv(path, columns=text, schema_overrides=dict.fromkeys(text, pl.String), **dialect)
            table = table.hstack(names)
        return table.filter(~pl.all_horizontal(pl.all().is_null()))  # blank lines
    except _UNREADABLE as error:
        said = shorten(next(iter(str(error).splitlines()), type(error).__name__), 200)
        said = "it is not written in UTF-8" if "utf-8" in said.lower() else said
        raise ValueError(f"{path} must be a readable table: {said}") from None


def _separator(path: Path) -> str:
    """What stands between the names in the first line: a comma, or what spreadsheets of other countries write."""
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        return max(_SEPARATORS, key=file.readline().count)


def _check_header(path: Path, dialect: dict[str, Any]) -> None:
    """No two columns of one name, of which polars would rename one."""
    names = pl.read_csv(path, n_rows=1, has_header=False, infer_schema_length=0, **dialect).row(0)
    twice = sorted(name for name, count in Counter(names).items() if name and count > 1)
    if twice:
        raise ValueError(
            f"the table must not have two columns of one name: {', '.join(map(repr, twice))} is there twice."
        )


def _check_thousands(path: Path, columns: list[str], dialect: dict[str, Any]) -> None:
    """Refuse 10.098 where numbers have decimal commas: ten, or ten thousand?

    It is ten in a column without commas in which other numbers, 9.5 say, have decimal points.
    """
    for name in columns:
        cells = pl.read_csv(path, columns=[name], infer_schema_length=0, null_values=_MISSING, **dialect)[name]
        unclear = cells.str.contains(_THOUSANDS).fill_null(value=False)
        points = bool((cells.str.contains(_DECIMAL_POINT) & ~unclear).any())
        if unclear.any() and not (points and not cells.str.contains(_DECIMAL_COMMA).any()):
            row = int(unclear.arg_max() or 0)
            raise ValueError(
                f"column {name!r} must have no points in its numbers, because the table has decimal commas: "
                f"line {row + 2} has {cells[row]!r}. Write it without points between thousands, or with a comma."
            )


def _read_numbers(path: Path, columns: list[str], start: pl.DataFrame, dialect: dict[str, Any]) -> pl.DataFrame:
    """Columns of a CSV file whose kinds, numbers or dates, are those of its ``start`` if they can be."""
    # A column that begins empty or with whole numbers may go on with others.
    likely = {c: pl.Float64 for c in columns if len(no_numbers(start[c])) == 0}
    options = dialect | {"columns": columns, "null_values": _MISSING, "try_parse_dates": True}
    try:
        return pl.read_csv(path, schema_overrides=likely, infer_schema_length=1000, **options)
    except pl.exceptions.ComputeError:  # a column changes its kind further down: look at all of it first
        table = pl.read_csv(path, infer_schema_length=None, **options)
        return table.with_columns(c.cast(pl.Float64) for c in table if c.null_count() == len(c))


def no_numbers(column: pl.Series) -> pl.Series:
    """The entries of a column of text that are there but are no numbers."""
    return column.filter(column.is_not_null() & column.str.strip_chars().cast(pl.Float64, strict=False).is_null())


def _check_dates(column: pl.Series) -> None:
    """Only dates that mean the same everywhere: is 02/01/2024 in January or in February?"""
    other = no_numbers(column)
    other = other.filter(~other.str.contains(r"^\d{4}-\d{2}-\d{2}"))
    if len(other):
        raise ValueError(
            f"column {column.name!r} must hold numbers or dates like 2024-01-31 or 2024-01-31T12:00:00, "
            f"got {other[0]!r}."
        )


def _check_digits(column: pl.Series) -> None:
    """20240131 is a date, not a number of days."""
    numbers = column.cast(pl.Float64, strict=False) if column.dtype == pl.String else column
    if not numbers.dtype.is_numeric() or numbers.null_count() or not len(numbers):
        return
    if not 18000101 <= numbers.min() <= numbers.max() <= 21001231 or bool((numbers != numbers.floor()).any()):  # type: ignore[operator]
        return
    if numbers.cast(pl.Int64).cast(pl.String).str.to_date("%Y%m%d", strict=False).null_count() == 0:
        raise ValueError(
            f"column {column.name!r} must hold dates like 2024-01-31: {int(numbers[0])} would count as a number, "
            "and the last day of a month would be 70 away from the next."
        )


def _require(wanted: Sequence[str], columns: Any) -> None:
    there = set(columns)
    missing = [name for name in wanted if name not in there]
    if missing:
        raise ValueError(
            f"the table must have the columns {', '.join(map(repr, missing))}; "
            f"it has {', '.join(map(repr, list(columns)[:20]))}."
        )
