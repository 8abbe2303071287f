"""Read a table, frame or file."""

from pathlib import Path
from typing import Any

import narwhals as nw

from cru.data.columns import DataTable, read_frame, require_columns
from cru.data.parsing import written_times
from cru.data.table_files import read_file


def read_table(frame: Any, wanted: list[str], *, time: str, text: list[str], everything: bool) -> DataTable:
    """Read the columns of a frame or of a file, and interpret times that are written as text.

    Args:
        frame: a frame, the path of a file, or a table that has been read.
        wanted: the columns to read.
        time: the column of times.
        text: columns of text. In a CSV file 007 and 7 differ in them, and NA is a name.
        everything: read all columns.

    Raises:
        ValueError: the table lacks a column, cannot be read, or has times that are not clear.
        FileNotFoundError: there is no such file.
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
