"""Columns for variables of kind "category": one for each category, 1 where the variable has it, else 0."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cru.data.columns import Column, DataTable, number_column
from cru.data.table_files import MISSING, parse_number
from cru.data.tables import check_key, codes
from cru.errors import InputError, literal, some
from cru.forecaster.kinds import columns_of
from cru.shapes import Bool, Int64

MAX_CATEGORIES = 50  # most categories of a variable, because each is a column
_FLOAT = re.compile(r"(-?\d+)\.0+")
Categories = Mapping[str, tuple[str, ...]]


class CellLocation(NamedTuple):
    """The series and the time of a row, for errors."""

    series: str
    time: object


class ObservationColumns(NamedTuple):
    """Columns of a table that `encode` needs. A wide table has no column of variables."""

    values: Sequence[str]
    variable: str | None


class Entries(NamedTuple):
    """Entries of a column as text."""

    texts: list[str]
    code: Int64[np.ndarray, " row"]  # index of ``texts``, -1 for missing

    @staticmethod
    def of(column: Column) -> "Entries":
        """Read a column of texts or numbers. Integers, booleans and "2.0" become texts such as "2".

        Raises:
            InputError: the column holds neither texts nor numbers.
        """
        if column.kind == "text":
            tidy = [category_name(text) for text in column.texts]
            texts = sorted({text for text in tidy if text is not None})
            place = np.array([-1 if text is None else texts.index(text) for text in tidy] + [-1], np.int64)
            return Entries(texts, place[column.values])
        if column.kind != "number":
            rule = "hold texts or numbers, because its kind is 'category'"
            raise InputError(rule=rule, found=column.dtype, column=column.name)
        there = np.isfinite(column.numbers)
        distinct, inverse = np.unique(column.numbers[there], return_inverse=True)
        code = np.full(len(there), -1)
        code[there] = inverse
        return Entries([str(category_name(float(number))) for number in distinct], code)


def category_name(entry: object) -> str | None:
    """Return the name of a category, None for a missing value.

    >>> from cru.forecaster.categories import category_name
    >>> category_name(2.0), category_name("2.0"), category_name("two"), category_name("NA")
    ('2', '2', 'two', None)
    """
    if isinstance(entry, str):
        whole = _FLOAT.fullmatch(entry)
        return whole[1] if whole else None if entry in MISSING else entry
    number = float(entry)  # type: ignore[arg-type]
    return f"{number:.0f}" if number.is_integer() else None if number != number else str(number)


def find_categories(table: DataTable, layout: ObservationColumns, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Find the categories of some variables in a training table.

    Args:
        table: a wide or a long table.
        layout: its columns.
        names: the variables of kind "category".

    Returns:
        The categories of each variable.

    Raises:
        InputError: a variable has no category or more than `MAX_CATEGORIES`.
    """
    found = {}
    for name, (_, entries) in _occurrences(table, layout, names).items():
        seen = {entries.texts[k] for k in np.unique(entries.code[entries.code >= 0])}
        if not seen:
            raise InputError(rule="hold at least one observation", hint="Leave it out.", column=name)
        if len(seen) > MAX_CATEGORIES:
            rule = f"have at most {MAX_CATEGORIES} categories, because its kind is 'category'"
            raise InputError(rule=rule, found=len(seen), hint="Group rare categories, or leave it out.", column=name)
        found[name] = sorted_categories(seen)
    return found


def sorted_categories(names: Iterable[str]) -> tuple[str, ...]:
    """Sort the names of categories: numbers by size, before other texts."""
    return tuple(sorted(names, key=_order))


def encode(
    table: DataTable, layout: ObservationColumns, categories: Categories, place: Callable[[int], CellLocation]
) -> DataTable:
    """Replace each variable of kind "category" by its columns.

    Args:
        table: a wide or a long table.
        layout: its columns.
        categories: the categories of each variable.
        place: the function from a row to its series and time, for errors.

    Raises:
        InputError: a category is not in ``categories``, or two columns would have one name.
    """
    occurrences = _occurrences(table, layout, categories)
    codes_of = {}
    for name, (rows, entries) in occurrences.items():
        number = {text: k for k, text in enumerate(categories[name])}
        known = np.array([number.get(text, -2) for text in entries.texts] + [-1], np.int64)
        code = known[entries.code]
        if (code == -2).any():
            row = int((code == -2).argmax())
            found = entries.texts[entries.code[row]], place(int(rows[row]))
            raise unseen(name, *found, categories[name])
        codes_of[name] = code
    if layout.variable is not None:
        return _encode_long(table, layout, categories, {n: (occurrences[n][0], c) for n, c in codes_of.items()})
    columns: dict[str, Column] = {}
    for name, column in table.items():
        parts = {name: column} if name not in codes_of else _indicators(name, categories[name], codes_of[name])
        for part, values in parts.items():
            if part in columns or (part in table and part != name):
                raise InputError("kinds", "give columns other names than the table has", repr(part), "Rename it.")
            columns[part] = values
    return DataTable(columns)


def unseen(name: str, found: str, place: CellLocation, categories: Sequence[str]) -> InputError:
    """Make the error for a category that the training table does not have.

    Args:
        name: the variable.
        found: the category.
        place: the series and the time of the category.
        categories: the categories of the variable in the training table.
    """
    rule = literal(f"hold a category of the training table, {some([*map(repr, categories)])}")
    where = f"{found!r} in series {place.series!r}"
    hint = "Correct it or leave it missing, or fit again with it."
    return InputError(rule=rule, found=where, hint=hint, column=name, time=place.time, otherwise=hint)


def _order(text: str) -> tuple[bool, float, str]:
    """Sort numbers by size, before other texts."""
    number = parse_number(text)
    return number is None, 0.0 if number is None else number, text


def _occurrences(
    table: DataTable, layout: ObservationColumns, names: Iterable[str]
) -> dict[str, tuple[np.ndarray, Entries]]:
    """Return the rows and the entries of each variable in a table."""
    if layout.variable is None:
        return {
            name: (np.arange(table.rows), Entries.of(table[name]))
            for name in names
            if name in table and name in layout.values
        }
    check_key(table[layout.variable])
    variables, code = codes(table[layout.variable])
    values = table[layout.values[0]]
    found = {}
    for name in names:
        if name in variables:
            rows = np.flatnonzero(code == variables.index(name))
            found[name] = rows, Entries.of(values.filter(rows))
    return found


def _indicators(name: str, categories: Sequence[str], code: Int64[np.ndarray, " row"]) -> dict[str, Column]:
    """Make the columns of a variable: 1 for its category, 0 for the others, NaN where it is missing."""
    missing = code < 0
    return {
        column: number_column(column, np.where(missing, np.nan, code == k))
        for k, column in enumerate(columns_of(name, categories))
    }


def _encode_long(
    table: DataTable,
    layout: ObservationColumns,
    categories: Categories,
    found: Mapping[str, tuple[np.ndarray, np.ndarray]],
) -> DataTable:
    """Replace each row of a variable of kind "category" by one row for each category."""
    assert layout.variable is not None
    value = layout.values[0]
    variables, code = codes(table[layout.variable])
    numbers = _numbers(table[value], ~np.isin(np.arange(table.rows), [r for rows, _ in found.values() for r in rows]))
    names = [*variables, *(column for name in found for column in columns_of(name, categories[name]))]
    rows, number, values = [np.arange(table.rows)], [code.astype(np.int64)], [numbers]
    for name, (among, category) in found.items():
        number[0][among] = -1  # replaced by the rows below
        for k, column in enumerate(columns_of(name, categories[name])):
            rows.append(among)
            number.append(np.full(len(among), names.index(column)))
            values.append(np.where(category < 0, np.nan, category == k))
    kept = np.concatenate(number) >= 0
    order = np.argsort(names)
    place = np.empty(len(names), np.int32)
    place[order] = np.arange(len(names), dtype=np.int32)
    every = np.concatenate(rows)[kept]
    texts = tuple(names[k] for k in order)
    variable = Column(
        name=layout.variable,
        kind="text",
        values=place[np.concatenate(number)[kept]],
        dtype="String",
        texts=texts,
    )
    replaced = {layout.variable: variable, value: number_column(value, np.concatenate(values)[kept])}
    return DataTable({name: replaced.get(name, column.filter(every)) for name, column in table.items()})


def _numbers(column: Column, wanted: Bool[np.ndarray, " row"]) -> np.ndarray:
    """Return the numbers of a column, in which the rows of categories may hold text."""
    if column.kind == "number":
        return column.numbers
    if column.kind != "text":
        rule = "hold numbers, or texts for categories"
        raise InputError(rule=rule, found=column.dtype, column=column.name)
    parsed = [parse_number(text) for text in column.texts]
    wrong = wanted & np.array([number is None for number in parsed] + [False])[column.values]
    if wrong.any():
        rule = "hold numbers in the rows of variables that are not of kind 'category'"
        raise InputError(rule=rule, found=repr(column.entry(int(wrong.argmax()))), column=column.name)
    numbers: np.ndarray = np.array([np.nan if number is None else number for number in parsed] + [np.nan])[
        column.values
    ]
    return numbers
