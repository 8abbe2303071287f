"""The table of a user, and the long frame of predictions."""

import dataclasses
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cru.data import Scaler, SeriesSet, from_table
from cru.data.columns import Column, DataTable, is_polars, make_frame, number_column, text_column
from cru.data.table_files import read_table
from cru.data.tables import TEXT_HINT, check_key, codes
from cru.errors import InputError, some
from cru.forecaster.categories import CellLocation, ObservationColumns, encode, find_categories
from cru.forecaster.clock import Clock
from cru.forecaster.input_columns import MAX_INPUT_SIZE, InputColumnReader, find_static_categories
from cru.forecaster.inputs import KNOWN, LAST, Fill, Known, Static
from cru.forecaster.kinds import Kinds, encoded_names
from cru.shapes import Bool


@dataclass(frozen=True)
class TableConstants:
    """Constants of the checks of a table."""

    min_values: int = 100  # fewest observations of a variable with an outlier
    min_variance_share: float = 0.25  # smallest share of the variance that an outlier causes
    min_log_deviations: float = 6.0  # of an outlier of a variable that is never negative, on a logarithmic scale
    max_deviations: float = 1e12  # largest distance from the mean, in standard deviations: networks overflow beyond it


TABLE = TableConstants()
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")
_PREDICTION_COLUMNS = re.compile(
    r"variable|mean|median|std|sample|value|component|p_value|repeats|anomaly|(lo|hi)-[\d.]+"
)


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Roles of the columns of the training table, and the types of its ids and frame."""

    id: str | None
    time: str
    values: tuple[str, ...] | None = None  # None: all other columns
    variable: str | None = None
    duplicates: str = "refuse"
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of variables of kind "category"
    known: Known = field(default_factory=dict)  # columns with known values, and their fills
    static: Static = field(default_factory=dict)  # columns with one value for each series, and their categories
    whole_ids: bool = False  # ids are integers, and are returned as integers
    polars: bool = False

    def check(self) -> None:
        """Raise InputError if a column has the name of a column of the predictions."""
        check_roles(self)
        for argument in ("id", "time", "variable"):
            name = getattr(self, argument)
            if (
                name is not None
                and _PREDICTION_COLUMNS.fullmatch(name)
                and (argument, name) != ("variable", "variable")
            ):
                raise InputError(argument, "not have the name of a column of predictions", repr(name), "Rename it.")

    def read(self, table: Any) -> DataTable:
        """Read the needed columns of a table. Ids that are integers stored as floats become integers."""
        keys = [name for name in (self.id, self.time, self.variable) if name is not None]
        encoded = [] if self.variable else [n for n in self.categories if n not in keys and n in (self.values or (n,))]
        text = [name for name in (self.id, self.variable, *encoded) if name is not None]
        wanted = list(dict.fromkeys([*keys, *encoded, *self.known, *self.static, *(self.values or ())]))
        frame = read_table(table, wanted, time=self.time, text=text, everything=self.values is None)
        if self.id is not None:
            frame[self.id] = ids_of(frame[self.id])
        return frame

    def series_of(self, frame: DataTable) -> tuple[Sequence[str], np.ndarray]:
        """Return the names of the series in a frame, and the number of the series of each row."""
        if self.id is None:
            return ["0"], np.zeros(frame.rows, np.int32)
        ids = ids_of(frame[self.id])
        check_key(ids)
        return codes(ids)

    def layout(self, frame: DataTable) -> ObservationColumns:
        """Return the columns of observations and of variables."""
        others = (self.id, self.time, self.variable, *self.known, *self.static)
        return ObservationColumns(self.values or [name for name in frame if name not in others], self.variable)

    def encoded(self, frame: DataTable, clock: Clock) -> DataTable:
        """Replace each variable of kind "category" by one column for each category."""

        def place(row: int) -> CellLocation:
            one = np.array([row])
            series = "0" if self.id is None else codes(frame[self.id].filter(one))[0][0]
            return CellLocation(series, clock.stamp(float(clock.column(frame[self.time].filter(one))[0])))

        return encode(frame, self.layout(frame), self.categories, place)

    def series(self, frame: DataTable, clock: Clock) -> SeriesSet:
        """Make series from the columns of `read`, with times as numbers of the clock."""
        if frame.rows:
            check_key(frame[self.time])
        values = self.values[0] if self.variable is not None and self.values else self.values
        if self.categories and frame.rows:
            frame = self.encoded(frame, clock)
            values = values if values is None or self.variable else encoded_names(values, self.categories)
        numbers = number_column(self.time, clock.column(frame[self.time]))
        inputs = (*self.known, *self.static)
        table = {name: column for name, column in frame.items() if name not in inputs}
        try:
            series = from_table(
                DataTable(table | {self.time: numbers}),
                id=self.id,
                time=self.time,
                values=values,
                variable=self.variable,
                duplicates=self.duplicates,  # type: ignore[arg-type]
            )
        except InputError as error:
            if clock.kind == "number" or error.time is None:
                raise
            raise error.replace(time=clock.stamp(float(str(error.time)))) from None
        series = dataclasses.replace(series, time_unit=clock.unit, origin=clock.origin)
        return InputColumnReader(self, clock).attach(series, frame) if inputs else series


def check_known(known: Any) -> dict[str, Fill]:
    """Return the known columns and their fills as a dictionary.

    Raises:
        InputError: ``known`` is neither a list of names nor a mapping to None, "last" or plausible numbers.
    """
    if known is None:
        return {}
    if not isinstance(known, Mapping):
        return dict.fromkeys(_names(known, "known"))
    _names(list(known), "known")
    found: dict[str, Fill] = {}
    for name, fill in known.items():
        number = isinstance(fill, int | float | np.integer | np.floating) and type(fill) is not bool
        number = number and -MAX_INPUT_SIZE <= fill <= MAX_INPUT_SIZE
        if not (fill is None or number or (isinstance(fill, str) and fill == LAST)):
            rule = f"have fills that are None, 'last' or a number from {-MAX_INPUT_SIZE:g} to {MAX_INPUT_SIZE:g}"
            raise InputError("known", rule, f"{name!r}: {fill!r:.50}")
        found[name] = fill if fill is None or isinstance(fill, str) else float(fill)
    return found


def check_static(static: Any) -> dict[str, None]:
    """Return the names of the static columns as keys.

    Raises:
        InputError: ``static`` is not a list of names.
    """
    return {} if static is None else dict.fromkeys(_names(static, "static"))


def _names(names: Any, argument: str) -> list[str]:
    listed = [names] if isinstance(names, str) else list(names) if isinstance(names, Iterable) else None
    if listed is None or not all(isinstance(name, str) for name in listed):
        raise InputError(argument, "be a list of names of columns", f"{names!r:.50}")
    return listed


def check_roles(columns: Columns, kinds: Iterable[str] = ()) -> None:
    """Raise InputError if a known or static column also has another role."""
    keys = [name for name in (columns.id, columns.time, columns.variable) if name is not None]
    others = {"known": [*columns.static], "static": [*columns.known]}
    for argument, names in (("known", columns.known), ("static", columns.static)):
        taken = [*keys, *(columns.values or ()), *kinds, *others[argument]]
        twice = [name for name in names if name in taken]
        if twice:
            rule = "not name a column that has another role"
            raise InputError(argument, rule, repr(twice[0]), "Leave it out of one of the two.")


def name_of(id: object) -> str:  # noqa: A002 - what the column is called everywhere
    """Convert an id to the name of a series. None, for a table without ids, becomes "0".

    >>> from cru.forecaster.table_io import name_of
    >>> name_of(3.0), name_of("03"), name_of(None)
    ('3', '03', '0')
    """
    if isinstance(id, float | np.floating) and float(id).is_integer():
        return str(int(id))
    return "0" if id is None else str(id)


def ids_of(column: Column) -> Column:
    """Convert a column of float ids to integers, or to text by `name_of`. Return other columns unchanged.

    pandas stores integers as floats in a column with a missing value.
    """
    if column.values.dtype.kind != "f" or column.kind != "number" or column.missing or not len(column):
        return column
    if (np.floor(column.values) == column.values).all() and np.abs(column.values).max() < 2**53:
        return number_column(column.name, column.values.astype(np.int64))
    return text_column(column.name, [name_of(number) for number in column.values.tolist()])


def read_training_table(table: Any, columns: Columns) -> tuple[SeriesSet, Clock, Columns]:
    """Read a training table.

    Args:
        table: a frame, or the path of a file.
        columns: the roles of the columns.

    Returns:
        The series, the clock of the times, and the roles of the columns with their types.

    Raises:
        ValueError: the table cannot be used.
    """
    columns.check()
    frame = columns.read(table)
    if columns.categories and frame.rows:
        found = find_categories(frame, columns.layout(frame), columns.categories)
        columns = dataclasses.replace(columns, categories=found)
    if columns.static and frame.rows:
        columns = dataclasses.replace(columns, static=find_static_categories(frame, columns.static))
    clock = Clock.of(frame[columns.time])
    try:
        series = columns.series(frame, clock)
    except InputError as error:
        if not error.hint.startswith(TEXT_HINT):
            raise
        raise error.replace(hint=f"{error.hint} Or declare categories in {{kinds}}.") from None
    finer = clock.in_unit(median_gap(series))
    if finer != clock:  # convert again instead of rescaling, so that a time is always the same number
        series = columns.series(frame, finer)
    if columns.categories:  # those of a long table are sorted by name
        series = _arranged(series, Kinds.infer(series, {}, columns.categories).columns)
    columns = dataclasses.replace(
        columns,
        whole_ids=columns.id is not None and frame[columns.id].is_whole,
        polars=is_polars(table),
    )
    return series, finer, columns


def is_plausible(values: Any, shift: Any, scale: Any) -> Any:
    """Check whether values are not too many standard deviations (``scale``) away from the mean (``shift``)."""
    return abs(values - shift) < TABLE.max_deviations * scale


def check_plausible(series: SeriesSet, scaler: Scaler) -> None:
    """Raise ValueError if an observation is too large for a model, or makes the scaler infinite."""
    shift, scale = np.array(scaler.shift), np.array(scaler.scale)
    with np.errstate(over="ignore", invalid="ignore"):
        strange = series.mask & ~(is_plausible(series.values, shift, scale) & np.isfinite(shift + scale))
    if strange.any():
        size = np.where(strange, np.abs(series.values), -1.0)
        row, column = np.unravel_index(int(size.argmax()), size.shape)
        raise ValueError(
            f"the table must hold numbers less than {TABLE.max_deviations:g} standard deviations from the mean: "
            f"{series.names[column]!r} of series {series.ids[series.series_index[row]]!r} is "
            f"{series.values[row, column]:g}. Correct it, or leave it missing."
        )


def read_new_table(table: Any, columns: Columns, clock: Clock, names: Sequence[str], scaler: Scaler) -> SeriesSet:
    """Read a further table, with the variables of the training table in the same order.

    Args:
        table: a frame, or the path of a file.
        columns: the roles of the columns of the training table.
        clock: the clock of the training table.
        names: the variables of the training table.
        scaler: the scaler of the training table.

    Raises:
        ValueError: the table cannot be read, has other variables, or holds a value that is too large.
    """
    series = _same_variables(table, columns, clock, names)
    check_plausible(series, scaler)
    return series


def _same_variables(table: Any, columns: Columns, clock: Clock, names: Sequence[str]) -> SeriesSet:
    try:
        series = columns.series(columns.read(table), clock)
    except InputError as error:
        raise error.without_arguments() from None  # only `fit` has these arguments
    if tuple(series.names) == tuple(names):
        return series
    strange = [name for name in series.names if name not in names]
    if strange:
        raise ValueError(
            f"the table must have the variables of the training table, {some([*map(repr, names)])}, and no others: "
            f"it also has {some([*map(repr, strange)])}. Leave it out, or fit again with it."
        )
    missing = [name for name in names if name not in series.names]
    if missing and columns.variable is None:
        raise ValueError(f"the table must have the columns {some([*map(repr, missing)])} of the training table.")
    return _arranged(series, names)


def _arranged(series: SeriesSet, names: Sequence[str]) -> SeriesSet:
    """Arrange the variables of series in the order of ``names``, which may have more."""
    wide = np.zeros((len(series.times), len(names)))
    mask = np.zeros(wide.shape, bool)
    place = [list(names).index(name) for name in series.names]
    wide[:, place], mask[:, place] = series.values, series.mask
    return dataclasses.replace(series, values=wide, mask=mask, names=tuple(names))


def long_frame(
    columns: Columns,
    clock: Clock,
    *,
    ids: Sequence[str],
    times: np.ndarray,
    variables: Sequence[str],
    numbers: Mapping[str, np.ndarray],
    before: Mapping[str, Any] | None = None,
    polars: bool,
) -> Any:
    """Make a frame with one row for each prediction.

    Its columns are those of ``before``, id, time and variable, then those of ``numbers``.

    Args:
        columns: the roles of the columns of the training table.
        clock: the clock of the training table.
        ids: the series of each row.
        times: the time of each row, as a number.
        variables: the variable of each row.
        numbers: further columns by name.
        before: first columns by name.
        polars: whether to make a polars frame.
    """
    data: dict[str, Any] = dict(before or {})
    if columns.id is not None:
        data[columns.id] = id_entries(columns, ids)
    data[columns.time] = clock.stamps(times)
    data[columns.variable or "variable"] = list(variables)
    return make_frame(data | dict(numbers), polars=polars, zones={columns.time: clock.zone})


def id_entries(columns: Columns, ids: Sequence[str]) -> list[int] | list[str]:
    """Return the ids of rows, as integers if those of the training table are integers."""
    return [int(name) for name in ids] if columns.whole_ids and _are_whole(ids) else list(ids)


def _are_whole(ids: Sequence[str]) -> bool:
    """Check whether all names are integers in canonical form, unlike "007"."""
    return all(_WHOLE.fullmatch(name) for name in set(ids))


def check_ending(path: Path) -> None:
    """Raise InputError unless the path ends in .csv or .parquet."""
    if not path.name.lower().endswith((".csv", ".parquet")):
        raise InputError("out", "be a .csv or .parquet file", path)


def median_gap(series: SeriesSet) -> float:
    """Return the median positive time between successive rows of a series, or 1 if there is none.

    A row that has only known values does not count.
    """
    if KNOWN in series.per_time:
        series = series.keep(np.asarray(series.mask.any(1)))
    gaps = np.diff(series.times)
    gaps = gaps[(np.diff(series.series_index) == 0) & (gaps > 0)]
    return float(np.median(gaps)) if len(gaps) else 1.0


def find_outliers(series: SeriesSet) -> list[str]:
    """Return a warning for each variable with one observation that causes much of its variance.

    A variable that is never negative may have a long upper tail. Its observation must also be extreme on a logarithmic
    scale.
    """
    found = []
    for k, name in enumerate(series.names):
        rows = np.flatnonzero(series.mask[:, k])
        values = series.values[rows, k].astype(np.float64)
        square = (values - values.mean()) ** 2
        is_outlier = len(rows) >= TABLE.min_values and square.max() > TABLE.min_variance_share * square.sum()
        if is_outlier and values.min() >= 0:
            logs = np.log(values[values > 0])
            is_outlier = logs.max() - logs.mean() > TABLE.min_log_deviations * logs.std()
        if is_outlier:
            row = rows[square.argmax()]
            share = f"{square.max() / square.sum():.0%} of the variance of {len(rows)} observations"
            found.append(
                f"Possible outlier: {series.values[row, k]:g} of {name!r} in series "
                f"{series.ids[series.series_index[row]]!r} is {share}. It widens all intervals. Correct it, or set it "
                "to NaN."
            )
    return found


def find_changed_constants(series: SeriesSet, scaler: Scaler, constant: Bool[np.ndarray, " variable"]) -> list[str]:
    """Return a warning for each variable that is constant in the training table and has other values in ``series``.

    Args:
        series: the observations.
        scaler: the scaler of the training table.
        constant: mask of the constant variables.
    """
    shift = np.array(scaler.shift)
    other = series.mask & constant & ~np.isclose(series.values, shift, rtol=1e-9, atol=0.0)
    return [
        f"{series.names[k]!r} was always {shift[k]:g} in training, and so are its predictions, but the table has "
        f"{int(other[:, k].sum())} other observations of it. Fit again."
        for k in np.flatnonzero(other.any(0))
    ]


def give_warnings(sentences: Iterable[str], *, stacklevel: int) -> None:
    """Give each sentence as a warning."""
    for sentence in sentences:
        warnings.warn(sentence, stacklevel=stacklevel)
