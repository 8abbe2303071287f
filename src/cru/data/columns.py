"""Tables inside the library: columns of numpy arrays, from any frame or file."""

import datetime
import decimal
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Literal

import narwhals as nw
import numpy as np

from cru.compute import check_fork
from cru.errors import InputError, MissingExtraError, literal

ColumnType = Literal["number", "text", "date", "datetime", "other"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        name: the name.
        kind: the kind of its entries. A column without entries that are not missing holds numbers.
        values: numbers (NaN: missing), indices of ``texts`` (-1: missing), or ``datetime64`` in UTC (NaT: missing).
        dtype: its type in the frame, for errors.
        texts: the distinct texts of a column of text, sorted.
        zone: the time zone of a column of times, or None.
    """

    name: str
    kind: ColumnType
    values: np.ndarray
    dtype: str
    texts: tuple[str, ...] = ()
    zone: str | None = None

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def missing(self) -> int:
        """Number of missing entries."""
        if self.kind == "text":
            return int((self.values < 0).sum())
        return int(np.isnan(self.values).sum()) if self.values.dtype.kind == "f" else self._not_times()

    def _not_times(self) -> int:
        return int(np.isnat(self.values).sum()) if self.values.dtype.kind == "M" else 0

    @property
    def numbers(self) -> np.ndarray:
        """The numbers of a column of numbers in double precision."""
        return self.values.astype(np.float64, copy=False)

    @property
    def is_whole(self) -> bool:
        """Whether it is a column of integers."""
        return self.kind == "number" and self.values.dtype.kind in "iu"

    def entry(self, row: int) -> str:
        """Return one entry of a column of text."""
        return self.texts[int(self.values[row])]

    def filter(self, rows: np.ndarray) -> "Column":
        """Return the column with some of its rows."""
        return replace(self, values=self.values[rows])


class DataTable(dict[str, Column]):
    """Columns of equal length by their names."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.values()))) if self else 0

    def filter(self, rows: np.ndarray) -> "DataTable":
        """Return the table with some of its rows."""
        return DataTable({name: column.filter(rows) for name, column in self.items()})


def number_column(name: str, values: np.ndarray) -> Column:
    """Make a column of numbers."""
    return Column(name=name, kind="number", values=values, dtype=str(values.dtype))


def text_column(name: str, entries: Sequence[str | None]) -> Column:
    """Make a column of text."""
    texts = tuple(sorted({entry for entry in entries if entry is not None}))
    place: dict[str | None, int] = {text: k for k, text in enumerate(texts)} | {None: -1}
    codes = np.fromiter((place[entry] for entry in entries), np.int32, len(entries))
    return Column(name=name, kind="text", values=codes, dtype="String", texts=texts)


def read_frame(frame: Any, wanted: Sequence[str] | None = None) -> DataTable:
    """Read a frame of any library that narwhals knows.

    Args:
        frame: a pandas frame, a polars frame, or another one.
        wanted: the columns to read, which must exist. None: all columns.

    Raises:
        TypeError: ``frame`` is not a frame.
        narwhals.exceptions.DuplicateError: two columns have one name.
    """
    known = nw.from_native(frame, eager_only=True)
    if known.implementation.is_polars():
        check_fork()
    return DataTable({name: _column(known[name]) for name in (known.columns if wanted is None else wanted)})


def require_columns(wanted: Sequence[str], columns: Any) -> None:
    """Check that a table has the columns ``wanted``.

    Raises:
        InputError: a column is missing.
    """
    there = set(columns)
    missing = [name for name in wanted if name not in there]
    if missing:
        has = ", ".join(map(repr, list(columns)[:20]))
        raise InputError(rule=literal(f"have the columns {', '.join(map(repr, missing))}; it has {has}"))


def _column(series: nw.Series[Any]) -> Column:
    name, dtype = series.name, series.dtype
    made: dict[str, Any] = {"name": name, "dtype": str(dtype)}
    if len(series) and series.null_count() == len(series):
        return Column(kind="number", values=np.full(len(series), np.nan), **made)
    if dtype.is_numeric() or dtype == nw.Boolean:
        return Column(kind="number", values=_numbers(series), **made)
    if dtype in (nw.String, nw.Categorical, nw.Enum):
        series = series.cast(nw.String)
        texts = sorted(series.drop_nulls().unique().to_list())
        if not texts:
            return text_column(name, [None] * len(series))
        codes = series.replace_strict(texts, range(len(texts)), default=-1, return_dtype=nw.Int32)
        return Column(kind="text", values=codes.to_numpy(), texts=tuple(texts), **made)
    if dtype == nw.Date:
        return Column(kind="date", values=np.asarray(series.to_numpy(), "datetime64[D]"), **made)
    if dtype == nw.Datetime:
        zone = getattr(dtype, "time_zone", None)
        if zone is not None:
            series = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        return Column(kind="datetime", values=series.to_numpy(), zone=zone, **made)
    if dtype == nw.Object:
        return _objects(series, made)
    return Column(kind="other", values=np.zeros(len(series)), **made)


def _numbers(series: nw.Series[Any]) -> np.ndarray:
    """Return integers and booleans without missing entries as they are, and other numbers as floats."""
    if (series.dtype.is_integer() or series.dtype == nw.Boolean) and series.null_count() == 0:
        values = series.to_numpy()
        if values.dtype.kind in "biu":
            return values
    return np.asarray(series.cast(nw.Float64).to_numpy(), np.float64)


def _objects(series: nw.Series[Any], made: dict[str, Any]) -> Column:
    """Make a column of Python objects. Objects of several kinds make a column of kind "other"."""
    there, objects = ~series.is_null().to_numpy().astype(bool), series.to_numpy()
    entries = objects[there].tolist()
    if all(isinstance(entry, str) for entry in entries):
        return text_column(series.name, [entry if known else None for entry, known in zip(objects, there, strict=True)])
    if all(isinstance(entry, numbers.Real | decimal.Decimal | np.bool_) for entry in entries):
        values = np.full(len(objects), np.nan)
        values[there] = [float(entry) for entry in entries]
        return Column(kind="number", values=values, **made)
    if not all(isinstance(entry, datetime.date) for entry in entries):
        odd = next(entry for entry in entries if not isinstance(entry, datetime.date))
        return Column(kind="other", values=np.zeros(len(objects)), **made | {"dtype": type(odd).__name__})
    if len({getattr(entry, "tzinfo", None) is None for entry in entries}) == 2:
        raise InputError(rule="have a time zone in all rows or in none", column=series.name)
    if len({isinstance(entry, datetime.datetime) for entry in entries}) == 2:
        raise InputError(rule="have a time of day in all rows or in none", column=series.name)
    moments = np.full(len(objects), np.datetime64("NaT", "us"))
    moments[there] = [utc(entry) for entry in entries]
    if not isinstance(entries[0], datetime.datetime):
        return Column(kind="date", values=moments.astype("datetime64[D]"), **made)
    return Column(kind="datetime", values=moments, zone=zone_name(entries[0]), **made)


def utc(moment: datetime.date) -> np.datetime64:
    """Convert a date or a time to ``datetime64``. A time with a time zone is converted to UTC."""
    if isinstance(moment, datetime.datetime) and moment.tzinfo is not None:
        moment = moment.astimezone(datetime.UTC).replace(tzinfo=None)
    return np.datetime64(moment, "us")


def zone_name(moment: datetime.date) -> str | None:
    """Return the name of a time's zone, UTC for a fixed offset, or None."""
    zone = getattr(moment, "tzinfo", None)
    return None if zone is None else getattr(zone, "key", "UTC")


def make_frame(columns: Mapping[str, Any], *, polars: bool, zones: Mapping[str, str | None]) -> Any:
    """Make a frame.

    Args:
        columns: arrays or lists of equal length. Times are ``datetime64``.
        polars: whether to make a polars frame, and not a pandas frame, if both libraries are installed.
        zones: the time zones of columns of times in UTC.

    Raises:
        MissingExtraError: neither pandas nor polars is installed.
    """
    libraries: tuple[Literal["pandas", "polars"], ...] = ("pandas", "polars")
    backend = next((name for name in (reversed(libraries) if polars else libraries) if find_spec(name)), None)
    if backend is None:
        raise MissingExtraError("predictions are frames: pip install pandas, or pip install polars.")
    if backend == "polars":
        check_fork()
    frame = nw.from_dict(columns, backend=backend)
    for name, zone in zones.items():
        if zone is not None:
            frame = frame.with_columns(nw.col(name).dt.replace_time_zone("UTC").dt.convert_time_zone(zone))
    return frame.to_native()


def is_polars(table: Any) -> bool:
    """Return whether predictions about this table are polars frames. Those about a file are pandas frames."""
    known = nw.from_native(table, eager_only=True, pass_through=True)
    return isinstance(known, nw.DataFrame) and known.implementation.is_polars()
