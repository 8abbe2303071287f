"""Tables of any kind, frames and files, as polars frames with the columns that matter."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import narwhals as nw
import polars as pl

_MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None"]


def read_table(frame: Any, keys: list[str], values: list[str] | None, time: str) -> pl.DataFrame:
    """The columns ``keys`` and ``values`` (None: all there are) of a frame or of a file, which must have them."""
    if isinstance(frame, (str, Path)):
        return _read_file(Path(frame), keys, values, time)
    return _read_frame(frame, keys, values)


def _read_frame(frame: Any, keys: list[str], values: list[str] | None) -> pl.DataFrame:
    """The columns that matter of a frame of any kind, as polars."""
    try:
        known = nw.from_native(frame, eager_only=True)
        odd = [name for name in known.columns if not isinstance(name, str)]
    except nw.exceptions.DuplicateError:
        raise ValueError(f"`frame` must not have two columns of one name, got {list(frame.columns)}.") from None
    except TypeError:
        raise ValueError(
            "`frame` must be a pandas or polars frame or the path of a .csv or .parquet file, "
            f"got {type(frame).__name__}."
        ) from None
    if odd:
        raise ValueError(f"`frame` must have columns with text for names, got {odd}.")
    _require([*keys, *(values or [])], known.columns)
    wanted = known.columns if values is None else [*keys, *values]
    try:
        return pl.DataFrame({name: known[name].to_polars() for name in wanted})
    except Exception as error:  # pyarrow's own, for a column of mixed Python objects
        raise ValueError(f"`frame` must hold columns of one kind each: {str(error).splitlines()[0]}.") from None


def _read_file(path: Path, keys: list[str], values: list[str] | None, time: str) -> pl.DataFrame:
    name = path.name.lower()
    if not name.endswith((".csv", ".csv.gz", ".parquet")):
        raise ValueError(f"`frame` must be the path of a .csv, .csv.gz or .parquet file, got {path}.")
    if not path.is_file():
        raise FileNotFoundError(f"`frame` must be a file that exists: there is no {path}.")
    try:
        if name.endswith(".parquet"):
            _require([*keys, *(values or [])], pl.read_parquet_schema(path))
            return pl.read_parquet(path, columns=None if values is None else [*keys, *values])
        header = pl.read_csv(path, n_rows=1000, null_values=_MISSING)
        _require([*keys, *(values or [])], header.columns)
        _check_dates(header[time])
        wanted = header.columns if values is None else [*keys, *values]
        # A column that begins with whole numbers may go on with others.
        whole = [c for c in wanted if c not in keys and header[c].dtype in (pl.Int64, pl.Null)]
        options: dict[str, Any] = {"columns": wanted, "null_values": _MISSING, "try_parse_dates": True}
        try:
            return pl.read_csv(
                path, schema_overrides=dict.fromkeys(whole, pl.Float64), infer_schema_length=1000, **options
            )
        except pl.exceptions.ComputeError:  # a column changes its kind further down: look at all of it first
            return pl.read_csv(path, infer_schema_length=None, **options)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ValueError(f"{path} must be a readable table: {str(error).splitlines()[0]}") from None


def _check_dates(column: pl.Series) -> None:
    """Only dates that mean the same everywhere: is 02/01/2024 in January or in February?"""
    if column.dtype == pl.String:
        other = column.filter(~column.str.contains(r"^\d{4}-\d{2}-\d{2}").fill_null(True))
        if len(other):
            raise ValueError(
                f"column {column.name!r} must hold numbers or dates like 2024-01-31 or 2024-01-31T12:00:00, "
                f"got {other[0]!r}."
            )


def _require(wanted: Sequence[str], columns: Any) -> None:
    missing = [name for name in wanted if name not in columns]
    if missing:
        raise ValueError(
            f"the table must have the columns {', '.join(map(repr, missing))}; "
            f"it has {', '.join(map(repr, list(columns)[:20]))}."
        )
