"""Parse numbers and times that a table holds as text."""

import datetime
import re
from dataclasses import replace
from typing import Any

import numpy as np

from cru.data.columns import Column, number_column, utc, zone_name
from cru.errors import InputError

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_MONTH_DAYS = np.array([31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


def written_times(column: Column) -> Column:
    """Convert a column of times that is text to the numbers or dates that are written there.

    Raises:
        ValueError: they are neither, or of several forms.
    """
    if column.kind == "text":
        check_dates(column)
        column = _numbers_in(column) or _dates_in(column)
    if column.kind == "number":
        _check_digits(column)
    return column


def parse_number(text: str) -> float | None:
    """Return the number that a text is, or None.

    >>> from cru.data.parsing import parse_number
    >>> parse_number(" 1e3"), parse_number("1_000"), parse_number("one")
    (1000.0, None, None)
    """
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None


def check_dates(column: Column) -> None:
    """Check that a column of text holds numbers, or dates that mean the same everywhere.

    Is 02/01/2024 in January or in February?

    Raises:
        InputError: it holds something else.
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
    """Return what was parsed from the distinct texts for every row."""
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
    """Check that times are not dates like 20240131, whose differences are no numbers of days.

    Raises:
        ValueError: they are.
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
