"""The fixed-width lines of NOAA's GHCN-Daily. One line holds one month of one element at one station.

Columns 1-11 are the station, 12-15 the year, 16-17 the month, 18-21 the element. Then each of 31 days has a value (5
characters) and three flags (measurement, quality, source; 1 character each). -9999 is missing. Values with a quality
flag are dropped.
"""

import gzip
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cru.data.raw import members, readable
from cru.shapes import Float32, Int64, UInt8

_WIDTH = 269
_DAYS = 31
_ENDING_FLAGS = 3  # most blanks that can be missing at the end of a line


class Grid(NamedTuple):
    """Stored measurements by station, day and element. NaN: missing or flagged."""

    stations: list[str]
    values: Float32[np.ndarray, "station day element"]


def contents(paths: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Iterate over name and content of each file of lines: in a tar archive, gzipped or plain."""
    for path in paths:
        if path.name.endswith(".tar.gz"):
            yield from members(path, ".dly")
        elif path.suffix == ".gz":
            with readable(path):
                text = gzip.decompress(path.read_bytes())
            yield path.name, text
        else:
            yield path.name, path.read_bytes()


def parse(files: Iterable[tuple[str, bytes]], elements: Sequence[str], years: range) -> Grid:
    """Read the given elements and years of all stations that have them.

    Args:
        files: name and content of each file of lines.
        elements: the elements to read, such as "PRCP".
        years: the years to read.

    Raises:
        ValueError: a line is damaged, or there is no line of these elements and years.
    """
    wanted = np.array(elements, "S4")
    kept, months = [], []
    for name, text in files:
        lines = _lines(name, text)
        number = 1 + np.flatnonzero(np.isin(_field(lines, 17, 21), wanted))
        year = _whole(name, lines, number, 11, 15)
        inside = (year >= years.start) & (year < years.stop)
        year, number = year[inside], number[inside]
        month = _whole(name, lines, number, 15, 17)
        wrong = (month < 1) | (month > 12)
        if wrong.any():
            k = int(wrong.argmax())
            raise ValueError(
                f"{name} must hold .dly lines with a month from 1 to 12 in columns 16-17: line {number[k]} has "
                f"{month[k]}."
            )
        kept.append(lines[number - 1])
        months.append((year - 1970) * 12 + month - 1)
    if not sum(len(lines) for lines in kept):
        raise ValueError(
            f"the .dly files must hold lines of {', '.join(elements)} from {years.start} to {years.stop - 1}: "
            "there is none."
        )
    stations = np.unique(np.concatenate([_field(lines, 0, 11) for lines in kept]))
    start = np.datetime64(f"{years.start}-01-01")
    total = int((np.datetime64(f"{years.stop}-01-01") - start).astype(np.int64))
    values = np.full((len(stations), total, len(elements)), np.nan, np.float32)
    order = np.argsort(wanted)
    for lines, month in zip(kept, months, strict=True):
        station = np.searchsorted(stations, _field(lines, 0, 11))
        element = order[np.searchsorted(wanted, _field(lines, 17, 21), sorter=order)]
        begin = month.astype("datetime64[M]").astype("datetime64[D]")
        length = ((month + 1).astype("datetime64[M]").astype("datetime64[D]") - begin).astype(np.int64)
        measured = _measurements(lines)
        line, day = np.nonzero(~np.isnan(measured) & (np.arange(_DAYS) < length[:, None]))
        values[station[line], (begin - start).astype(np.int64)[line] + day, element[line]] = measured[line, day]
    return Grid([str(s, "ascii") for s in stations], values)


def _lines(name: str, text: bytes) -> UInt8[np.ndarray, "line width"]:
    """Convert lines to a matrix of characters."""
    data = np.frombuffer(text, np.uint8)
    if len(data) % (_WIDTH + 1) == 0:
        matrix = data.reshape(-1, _WIDTH + 1)
        if (matrix[:, _WIDTH] == ord("\n")).all() and (matrix[:, :_WIDTH] >= ord(" ")).all():
            return matrix[:, :_WIDTH]
    rows = text.split(b"\n")
    rows = [row.rstrip(b"\r") for row in (rows[:-1] if rows[-1] == b"" else rows)]
    for number, row in enumerate(rows, 1):
        if not _WIDTH - _ENDING_FLAGS <= len(row) <= _WIDTH:
            raise ValueError(f"{name} must hold .dly lines of {_WIDTH} characters: line {number} has {len(row)}.")
    padded = b"".join(row.ljust(_WIDTH) for row in rows)
    return np.frombuffer(padded, np.uint8).reshape(-1, _WIDTH)


def _field(lines: UInt8[np.ndarray, "line width"], start: int, stop: int) -> np.ndarray:
    """Return columns as byte strings."""
    return np.ascontiguousarray(lines[:, start:stop]).view(f"S{stop - start}").ravel()


def _whole(
    name: str, lines: UInt8[np.ndarray, "line width"], number: Int64[np.ndarray, " chosen"], start: int, stop: int
) -> Int64[np.ndarray, " chosen"]:
    """Parse columns of the lines with these numbers (the first is 1) as integers without a sign."""
    digits = lines[number - 1, start:stop].astype(np.int64) - ord("0")
    wrong = ((digits < 0) | (digits > 9)).any(1)
    if wrong.any():
        line = number[wrong.argmax()]
        found = lines[line - 1, :21].tobytes().decode("latin-1")
        raise ValueError(
            f"{name} must hold .dly lines with a number in columns {start + 1}-{stop}: line {line} begins with "
            f"{found!r}."
        )
    return digits @ 10 ** np.arange(stop - start)[::-1]


def _measurements(lines: UInt8[np.ndarray, "line width"]) -> Float32[np.ndarray, "line 31"]:
    """Parse the 31 values of each line. NaN: missing or flagged."""
    values = np.empty((len(lines), _DAYS), np.float32)
    for start in range(0, len(lines), 20_000):  # a few megabytes at a time
        fields = lines[start : start + 20_000, 21:].reshape(-1, _DAYS, 8)
        text, quality = fields[:, :, :5], fields[:, :, 6]
        digits = text.astype(np.int32) - ord("0")
        is_digit = (digits >= 0) & (digits <= 9)
        wrong = ~(is_digit | (text == ord(" ")) | (text == ord("-")))
        if wrong.any() or not is_digit.any(-1).all():
            line = int((wrong.any(-1) | ~is_digit.any(-1)).any(1).argmax())
            found = lines[start + line, :21].tobytes().decode("latin-1")
            raise ValueError(f"a .dly line must hold 31 integers: the one that begins with {found!r} does not.")
        number = np.where(is_digit, digits, 0) @ np.array([10_000, 1_000, 100, 10, 1], np.int32)
        number = np.where((text == ord("-")).any(-1), -number, number)
        missing = (number == -9999) | (quality != ord(" "))
        values[start : start + 20_000] = np.where(missing, np.nan, number)
    return values
