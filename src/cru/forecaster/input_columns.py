"""The known and static columns of a table and of requested times: their values, roles and checks."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cru.data import SeriesSet
from cru.data.columns import Column, DataTable
from cru.data.table_files import read_table
from cru.data.tables import Groups, average, codes, group
from cru.errors import InputError, literal, some
from cru.forecaster.categories import MAX_CATEGORIES, Entries, sorted_categories
from cru.forecaster.clock import Clock
from cru.forecaster.inputs import KNOWN, STATIC
from cru.shapes import Float

if TYPE_CHECKING:
    from cru.forecaster.table_io import Columns

NUMBERS = "Pass text as {static} if it stays the same in a series, or as one 0/1 column for each category."
MAX_INPUT_SIZE = 1e30  # largest size of a known or static number
KNOWN_WITHOUT_HORIZON, KNOWN_IN_AT = "be given with {horizon} only", "Put the known values into {at}."
PLAUSIBLE_SIZE, CORRECT = f"be at most {MAX_INPUT_SIZE:g} in size", "Correct it."


def find_static_categories(frame: DataTable, names: Iterable[str]) -> dict[str, tuple[str, ...] | None]:
    """Find the categories of each static column of a training table.

    Args:
        frame: the table.
        names: the static columns.

    Returns:
        The categories of each column. None for a column of numbers.

    Raises:
        InputError: a column has no value, more than `MAX_CATEGORIES` categories, or neither numbers nor texts.
    """
    found: dict[str, tuple[str, ...] | None] = {}
    for name in names:
        column = frame[name]
        if column.kind not in ("number", "text"):
            raise InputError(rule="hold numbers or categories, because it is static", found=column.dtype, column=name)
        if column.missing == len(column):
            raise InputError(rule="hold at least one value", hint="Leave it out.", column=name)
        found[name] = sorted_categories(Entries.of(column).texts) if column.kind == "text" else None
        if len(found[name] or ()) > MAX_CATEGORIES:
            rule, hint = (
                f"have at most {MAX_CATEGORIES} categories, because it is static",
                "Group rare categories, or leave it out.",
            )
            raise InputError(rule=rule, found=len(found[name] or ()), hint=hint, column=name)
    return found


@dataclass(frozen=True)
class InputColumnReader:
    """A reader of the known and static columns of a table whose series exist already.

    Args:
        columns: the roles of the columns.
        clock: the clock of the table.
    """

    columns: "Columns"
    clock: Clock

    def attach(self, series: SeriesSet, frame: DataTable) -> SeriesSet:
        """Add the known values of each row and the static values of each series.

        Args:
            series: the series of the table.
            frame: the table.

        Raises:
            InputError: a value is missing, infinite or of another type, or two values of a time or a series differ.
        """
        columns = self.columns
        owner = np.zeros(frame.rows, np.int32) if columns.id is None else codes(frame[columns.id])[1]
        times = self.clock.column(frame[columns.time])
        groups = group(owner, times, len(series))
        known = np.empty((len(series.times), len(columns.known)))
        for k, (name, fill) in enumerate(columns.known.items()):
            known[:, k] = self.one_each_time(frame[name], owner, times, series.ids, groups)
            if fill is None:
                self.check_filled(series, name, np.isnan(known[:, k]))
        static = np.full((len(series), len(columns.static)), np.nan)
        for k, name in enumerate(columns.static):
            static[:, k] = self.one_for_each(frame[name], owner, series.ids)
        return replace(
            series, per_time={**series.per_time, KNOWN: known}, per_series={**series.per_series, STATIC: static}
        )

    def one_each_time(
        self, column: Column, owner: np.ndarray, times: np.ndarray, ids: Sequence[str], groups: Groups
    ) -> Float[np.ndarray, " time"]:
        """Return the value of a known column at each time of each series. NaN: missing.

        Args:
            column: the column.
            owner: the number of the series of each row.
            times: the time of each row.
            ids: the names of the series.
            groups: the time points of the series.

        Raises:
            InputError: a value is infinite, or two values at one time differ.
        """
        values = self.numbers(column, lambda row: (ids[owner[row]], times[row]))[groups.order]
        low, high = (part.reduceat(values, groups.starts) for part in (np.fmin, np.fmax))
        differs = low < high
        if differs.any() and self.columns.duplicates == "refuse":
            place = int(differs.argmax())
            series = ids[owner[groups.order][groups.starts[place]]]
            found = f"{low[place]:g} and {high[place]:g} in series {series!r}"
            rule, time = "have one value at a time, because it is known", self.stamp(groups.times[place])
            raise InputError(rule=rule, found=found, hint=CORRECT, column=column.name, time=time, otherwise=CORRECT)
        return average(values, groups.starts)

    def check_filled(self, series: SeriesSet, name: str, missing: np.ndarray) -> None:
        """Raise InputError if a known column without a fill has a missing value.

        Args:
            series: the series of the table.
            name: the name of the column.
            missing: mask of the time points without a value.
        """
        if missing.any():
            row = int(missing.argmax())
            rule, hint = "have a value in every row, because it is known", "Fill it"
            found = f"none in series {series.ids[series.series_index[row]]!r}"
            more = literal(f", or give a fill: known={{{name!r}: 'last'}}.")
            time = self.stamp(series.times[row])
            raise InputError(rule=rule, found=found, hint=hint + more, column=name, time=time, otherwise=f"{hint}.")

    def stamp(self, time: float) -> Any:
        """Return a time as the user writes it."""
        return self.clock.stamp(float(time))

    def numbers(self, column: Column, place: Callable[[int], tuple[str, float]]) -> Float[np.ndarray, " row"]:
        """Return the numbers of a known column.

        Args:
            column: the column.
            place: the function from a row to its series and time, for errors.

        Raises:
            InputError: the column does not hold numbers, or a number is larger than `MAX_INPUT_SIZE`.
        """
        if column.kind != "number":
            rule = "hold numbers, because it is known"
            raise InputError(rule=rule, found=column.dtype, hint=NUMBERS, column=column.name, otherwise="Convert it.")
        values = column.numbers
        strange = np.abs(values) > MAX_INPUT_SIZE
        if strange.any():
            row = int(strange.argmax())
            series, time = place(row)
            found = f"{values[row]:g} in series {series!r}"
            raise InputError(
                rule=PLAUSIBLE_SIZE,
                found=found,
                hint=CORRECT,
                column=column.name,
                time=self.stamp(time),
                otherwise=CORRECT,
            )
        return values

    def static_values(self, column: Column, ids: Sequence[str], owner: np.ndarray) -> Float[np.ndarray, " row"]:
        """Return the numbers or the indices of the categories of a static column. NaN: missing.

        Args:
            column: the column.
            ids: the names of the series.
            owner: the number of the series of each row.

        Raises:
            InputError: a column of numbers holds text, or a number is larger than `MAX_INPUT_SIZE`.
        """
        name, categories = column.name, self.columns.static[column.name]
        if categories is None:
            if column.kind != "number":
                rule = "hold numbers, as in the training table"
                raise InputError(
                    rule=rule, found=column.dtype, hint="Convert it.", column=name, otherwise="Convert it."
                )
            strange = np.abs(column.numbers) > MAX_INPUT_SIZE
            if strange.any():
                row = int(strange.argmax())
                found = f"{column.numbers[row]:g} in series {ids[owner[row]]!r}"
                raise InputError(rule=PLAUSIBLE_SIZE, found=found, hint=CORRECT, column=name, otherwise=CORRECT)
            return column.numbers
        entries = Entries.of(column)
        number = {text: float(k) for k, text in enumerate(categories)}
        new = [text for k, text in enumerate(entries.texts) if text not in number and (entries.code == k).any()]
        if new:
            warnings.warn(unseen_category(name, new), stacklevel=2)
        codes_of = np.array([*(number.get(text, np.nan) for text in entries.texts), np.nan])
        each: np.ndarray = codes_of[entries.code]
        return each

    def one_for_each(self, column: Column, owner: np.ndarray, ids: Sequence[str]) -> Float[np.ndarray, " series"]:
        """Return the value of each series in a static column. NaN: missing.

        Args:
            column: the column.
            owner: the number of the series of each row.
            ids: the names of the series.

        Raises:
            InputError: a series has two values.
        """
        values = self.static_values(column, ids, owner)
        low, high = np.full(len(ids), np.inf), np.full(len(ids), -np.inf)
        there = ~np.isnan(values)
        np.minimum.at(low, owner[there], values[there])
        np.maximum.at(high, owner[there], values[there])
        if (low < high).any():
            k = int((low < high).argmax())
            raise changed_static(column.name, ids[k], self.shown(column.name, low[k]), self.shown(column.name, high[k]))
        return np.where(np.isfinite(low), low, np.nan)

    def shown(self, name: str, value: float) -> str:
        """Return a static value as the user writes it."""
        categories = self.columns.static[name]
        return f"{value:g}" if categories is None else repr(categories[int(value)])


def unseen_category(name: str, found: Sequence[str]) -> str:
    """Return the warning for categories of a static column that the training table does not have."""
    listed = some([*map(repr, found)], 5)
    return f"{name!r} has {listed}, which the training table does not have. This counts as missing."


def changed_static(name: str, series: str, one: str, other: str) -> InputError:
    """Make the error for a static column with two values in a series.

    Args:
        name: the column.
        series: the series.
        one: the first value, as text.
        other: the second value, as text.
    """
    rule = "have one value for each series, because it is static"
    found = f"{one} and {other} in series {series!r}"
    return InputError(rule=rule, found=found, hint=CORRECT, column=name, otherwise=CORRECT)


class KnownRows(NamedTuple):
    """Known values of a series besides its table."""

    times: Float[np.ndarray, " row"]
    known: Float[np.ndarray, "row known"]  # NaN for missing


@dataclass(frozen=True)
class KnownFrame:
    """Known values, and static values of new series, from a frame of requested times."""

    future: Mapping[str, KnownRows]
    static: Mapping[str, Float[np.ndarray, " static"]]

    def after(self, last: Mapping[str, float]) -> "KnownFrame":
        """Return the frame without the rows before the last row of each series."""
        kept = {
            name: KnownRows._make(part[one.times >= last.get(name, -math.inf)] for part in one)
            for name, one in self.future.items()
        }
        return replace(self, future=kept)

    def with_static(self, series: SeriesSet, reader: InputColumnReader) -> SeriesSet:
        """Add the static values of series that have none in their table.

        Raises:
            InputError: a series has another value in its table.
        """
        found = np.array(
            [self.static.get(name, np.full(series.per_series[STATIC].shape[1], np.nan)) for name in series.ids]
        )
        given = series.per_series[STATIC]
        found = found.reshape(given.shape)
        for row, k in np.argwhere(np.isfinite(given) & np.isfinite(found) & (given != found))[:1]:
            name = list(reader.columns.static)[k]
            values = (reader.shown(name, float(part[row, k])) for part in (given, found))
            raise changed_static(name, series.ids[row], *values)
        filled = np.where(np.isnan(given), found, given)
        return replace(series, per_series={**series.per_series, STATIC: filled})


def read_known_frame(frame: Any, reader: InputColumnReader, argument: str) -> KnownFrame:
    """Read a frame with the columns of id, time and known values.

    Columns with a fill and static columns may be absent.

    Args:
        frame: a frame, or the path of a file.
        reader: the reader of the columns.
        argument: the name of the argument, for errors.

    Raises:
        InputError: a column is missing or wrong, or two values of a time differ.
    """
    columns = reader.columns
    keys = [name for name in (columns.id, columns.time) if name is not None]
    needed = [*keys, *(name for name, fill in columns.known.items() if fill is None)]
    if not (hasattr(frame, "columns") or isinstance(frame, str | Path | DataTable)):
        rule = f"be a frame with the columns {some([*map(repr, needed)], 20)}"
        raise InputError(argument, literal(rule), type(frame).__name__)
    text = [columns.id] if columns.id is not None else []
    try:
        table = read_table(frame, needed, time=columns.time, text=text, everything=True)
        return _known_frame(table, reader) if table.rows else KnownFrame({}, {})
    except InputError as error:
        raise error.replace(argument=error.argument or argument) from None


def _known_frame(table: DataTable, reader: InputColumnReader) -> KnownFrame:
    columns = reader.columns
    names, owner = columns.series_of(table)
    times = reader.clock.column(table[columns.time])
    if not np.isfinite(times).all():
        raise InputError(rule="hold a time in every row", hint="Leave such rows out.", column=columns.time)
    groups = group(owner, times, len(names))
    known = np.full((len(groups.times), len(columns.known)), np.nan)
    for k, name in enumerate(columns.known):
        if name in table:
            known[:, k] = reader.one_each_time(table[name], owner, times, names, groups)
    static = np.full((len(names), len(columns.static)), np.nan)
    for k, name in enumerate(columns.static):
        if name in table:
            static[:, k] = reader.one_for_each(table[name], owner, names)
    parts = zip(*(np.split(part, groups.offsets[1:-1]) for part in (groups.times, known)), strict=True)
    return KnownFrame(dict(zip(names, map(KnownRows._make, parts), strict=True)), dict(zip(names, static, strict=True)))
