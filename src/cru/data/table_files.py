"""Tables in frames, CSV files and Parquet files, with times that are written as text."""

import datetime
import gzip
import re
import warnings
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np

from cru.compute import check_fork
from cru.data.columns import Column, DataTable, number_column, read_frame, require_columns, utc, zone_name
from cru.errors import InputError, require_extra, shorten

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_MONTH_DAYS = np.array([31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None"]
_SEPARATORS = (",", ";", "\t")
_DECIMAL_POINT = r"^\s*[-+]?\d*\.\d*\s*$"
_THOUSANDS = r"^\s*[-+]?[1-9]\d{0,2}(\.\d{3})+\s*$"
_DECIMAL_COMMA = r"^\s*([-+]?\d+),(\d+)\s*$"
_FORMULA = re.compile(r"[=+\-@\t\r]")


def read_table(frame: Any, wanted: list[str], *, time: str, text: list[str], everything: bool) -> DataTable:
    """Read the columns of a frame or of a file, and interpret times that are written as text.

    Args:
        frame: a frame, the path of a file, or a table that has been read.
        wanted: the columns to read.
        time: the column of times.
        text: columns of text. In a CSV file 007 and 7 differ in them, and NA is a name.
        everything: whether to read all columns.

    Raises:
        ValueError: the table cannot be read, a column is missing, or its times are ambiguous.
        FileNotFoundError: the file does not exist.
    """
    if isinstance(frame, (str, Path)):
        table = read_file(Path(frame), wanted, text=text, everything=everything, time=time)
    elif isinstance(frame, DataTable):
        require_columns(wanted, frame)
        table = DataTable(frame if everything else {name: frame[name] for name in wanted})
    else:
        table = _read_frame(frame, wanted, everything=everything)
    table[time] = written_times(table[time])
    return table


def _read_frame(frame: Any, wanted: list[str], *, everything: bool) -> DataTable:
    try:
        columns = nw.from_native(frame, eager_only=True).columns
    except nw.exceptions.DuplicateError:
        raise ValueError(f"the table must not have two columns of one name, got {list(frame.columns)}.") from None
    except TypeError:
        raise ValueError(
            "the table must be a pandas or polars frame or the path of a .csv or .parquet file, "
            f"got {type(frame).__name__}."
        ) from None
    odd = [name for name in columns if not isinstance(name, str)]
    if odd:
        raise ValueError(f"the table must have columns with text for names, got {odd}.")
    require_columns(wanted, columns)
    return read_frame(frame, None if everything else wanted)


def read_file(path: Path, wanted: list[str], *, time: str, text: list[str], everything: bool) -> DataTable:
    """Read the columns of a file. The arguments are those of `cru.data.table_files.read_table`.

    Raises:
        ValueError: the file cannot be read, or a column is missing.
        FileNotFoundError: the file does not exist.
        MissingExtraError: polars is not installed.
    """
    name = path.name.lower()
    if not name.endswith((".csv", ".csv.gz", ".parquet")):
        found = f"the folder {path}. Name a file in it" if path.is_dir() else str(path)
        raise ValueError(f"the table must be a .csv, .csv.gz or .parquet file, got {found}.")
    if not path.is_file():
        raise FileNotFoundError(f"the table must be a file that exists: there is no {path}.")
    pl = _polars()
    # Some damaged Parquet files raise a panic of polars, which is not an `Exception`.
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
        reason = shorten(next(iter(str(error).splitlines()), type(error).__name__), 200)
        reason = "it is not written in UTF-8" if "utf-8" in reason.lower() else reason
        raise ValueError(f"{path} must be a readable table: {reason}") from None


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


def written_times(column: Column) -> Column:
    """Convert a column of times that is text to the numbers or dates that are written there.

    Raises:
        ValueError: the texts are neither, or have several forms.
    """
    if column.kind == "text":
        check_dates(column)
        column = _numbers_in(column) or _dates_in(column)
    if column.kind == "number":
        _check_digits(column)
    return column


def parse_number(text: str) -> float | None:
    """Return the number that a text is, or None.

    >>> from cru.data.table_files import parse_number
    >>> parse_number(" 1e3"), parse_number("1_000"), parse_number("one")
    (1000.0, None, None)
    """
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None


def check_dates(column: Column) -> None:
    """Check that a column of text holds numbers, or dates that mean the same everywhere.

    A date such as 02/01/2024 is ambiguous: it can be in January or in February.

    Raises:
        InputError: the column holds other text.
    """
    wrong = np.array([parse_number(text) is None and not _DATE.match(text) for text in column.texts], bool)
    if wrong.any():
        row = int(np.append(wrong, False)[column.values].argmax())
        raise InputError(
            rule="hold numbers or dates like 2024-01-31 or 2024-01-31T12:00:00",
            found=repr(column.entry(row)),
            column=column.name,
        )


def _spread(column: Column, parsed: np.ndarray, missing: Any) -> np.ndarray:
    """Return for every row what its text was parsed to."""
    spread: np.ndarray = np.append(parsed, np.array([missing], parsed.dtype))[column.values]
    return spread


def _numbers_in(column: Column) -> Column | None:
    found = [parse_number(text) for text in column.texts]
    if any(number is None for number in found):
        return None
    return number_column(column.name, _spread(column, np.array(found, np.float64), np.nan))


def _dates_in(column: Column) -> Column:
    first = column.entry(int((column.values >= 0).argmax()))
    whole = _DATE.fullmatch(first) is not None
    moments: list[datetime.datetime] = []
    for text in (first, *column.texts):
        try:
            moments.append(datetime.datetime.fromisoformat(text.strip()))
            one_form = (moments[-1].tzinfo is None) == (moments[0].tzinfo is None)
            one_form &= (_DATE.fullmatch(text) is not None) == whole
        except ValueError:
            one_form = False
        if not one_form:
            raise ValueError(
                f"column {column.name!r} must hold dates of one form, like 2024-01-31T12:00:00: "
                f"{text!r} is none, or not of the form of {first!r}."
            )
    values = _spread(column, np.array([utc(moment) for moment in moments[1:]], "datetime64[us]"), "NaT")
    if whole:
        return replace(column, kind="date", values=values.astype("datetime64[D]"), dtype="Date", texts=())
    zone = "UTC" if zone_name(moments[0]) else None
    return replace(column, kind="datetime", values=values, dtype="Datetime", texts=(), zone=zone)


def _check_digits(column: Column) -> None:
    """Check that times are not dates like 20240131, because their differences are not numbers of days.

    Raises:
        ValueError: the times are such dates.
    """
    times = column.numbers
    if not len(times) or not (times.min() >= 18000101 and times.max() <= 21001231) or (times != np.floor(times)).any():
        return  # NaN, too
    day, month = times.astype(np.int64) % 100, times.astype(np.int64) // 100 % 100
    if ((month >= 1) & (month <= 12) & (day >= 1)).all() and (day <= _MONTH_DAYS[month - 1]).all():
        raise ValueError(
            f"column {column.name!r} must hold dates like 2024-01-31: {int(times[0])} would count as a number, "
            "and the last day of a month would be 70 away from the next."
        )


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
    if text:  # read separately, because a mark of a missing number may be a name
        names = pl.read_csv(path, columns=text, schema_overrides=dict.fromkeys(text, pl.String), **dialect)
        table = table.hstack(names)
    return table.filter(~pl.all_horizontal(pl.all().is_null()))  # blank lines


def _separator(path: Path) -> str:
    """Find the separator of the first line: a comma, a semicolon or a tab."""
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        return max(_SEPARATORS, key=file.readline().count)


def _check_header(path: Path, dialect: dict[str, Any]) -> None:
    """Check that no two columns have the same name. polars would rename one of them.

    Raises:
        ValueError: two columns have the same name.
    """
    names = _polars().read_csv(path, n_rows=1, has_header=False, infer_schema_length=0, **dialect).row(0)
    twice = sorted(name for name, count in Counter(names).items() if name and count > 1)
    if twice:
        raise ValueError(
            f"the table must not have two columns of one name: {', '.join(map(repr, twice))} is there twice."
        )


def _check_thousands(path: Path, columns: list[str], dialect: dict[str, Any]) -> None:
    """Check for ambiguous numbers in a table with decimal commas: 10.098 can be about ten or about ten thousand.

    It is about ten in a column without commas in which other numbers, such as 9.5, have decimal points.

    Raises:
        ValueError: a number is ambiguous.
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
    # A column that begins with empty entries or integers can have other numbers in later rows.
    cells = start.select(columns)
    parsed = cells.select(pl.all().str.strip_chars().cast(pl.Float64, strict=False))
    likely = {c: pl.Float64 for c in columns if parsed[c].null_count() == cells[c].null_count()}
    options = dialect | {"columns": columns, "null_values": MISSING, "try_parse_dates": True}
    try:
        return pl.read_csv(path, schema_overrides=likely, infer_schema_length=1000, **options)
    except pl.exceptions.ComputeError:  # the kind of a column changes in a later row: infer kinds from all rows
        table = pl.read_csv(path, infer_schema_length=None, **options)
        return table.with_columns(c.cast(pl.Float64) for c in table if c.null_count() == len(c))


def _warn_of_formulas(table: DataTable, path: Path) -> None:
    """Warn of ids and names that a spreadsheet runs as formulas when it opens the file.

    They are written unchanged, because a CSV file cannot mark them as text. With another character in front, they would
    be other ids when the file is read again.
    """
    for column in table.values():
        found = [text for text in column.texts if _FORMULA.match(text) and parse_number(text) is None]
        if found:
            warnings.warn(
                f"column {column.name!r} of {path} holds {found[0]!r}, which a spreadsheet runs as a formula: "
                "import the column as text, or write a .parquet file.",
                stacklevel=4,
            )
