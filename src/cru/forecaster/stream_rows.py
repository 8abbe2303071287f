"""The rows of a stream: their observations, known and static values as batches, and the state that later rows need."""

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cru.data import Batch, SeriesSet
from cru.errors import InputError, did_you_mean, literal
from cru.forecaster.categories import CellLocation, category_name, unseen
from cru.forecaster.input_columns import InputColumnReader, changed_static, read_known_frame, unseen_category
from cru.forecaster.inputs import INPUT, INPUTS, KNOWN, STATIC, InputState
from cru.forecaster.kinds import columns_of
from cru.forecaster.queries import Query, query_known
from cru.forecaster.state_store import SeriesState
from cru.forecaster.table_io import is_plausible
from cru.models.base import State
from cru.shapes import Bool, Float, Float64

if TYPE_CHECKING:
    from cru.forecaster.estimator import Forecaster


class PendingRow(NamedTuple):
    """A row of a series that is not in its state yet, and the state before it."""

    name: str
    before: SeriesState | None  # None for a new series
    batch: Batch
    inputs: InputState | tuple[()]  # after the row

    @property
    def state(self) -> State | None:
        """State of the model, None before the first observation."""
        return None if self.before is None or not self.before.seen else self.before.state

    @property
    def since(self) -> float:
        """Time since the last observation, infinite before the first one."""
        if self.before is None or not self.before.seen:
            return math.inf
        return float(self.batch.times[0, 0] - self.before.last)

    @property
    def observed_before(self) -> Bool[np.ndarray, "one variable"]:
        """Mask of the variables that have an observation."""
        if self.before is None:
            return np.zeros((1, self.batch.mask.shape[2]), bool)
        return self.before.observed.numpy()

    def after(self, state: State) -> SeriesState:
        """Return the state of the series after the row. ``state`` is that of the model."""
        batch, before = self.batch, self.before
        mask, values = batch.mask[:, 0], batch.values[:, 0]
        if before is None:
            return SeriesState(state, batch.times[:, 0], mask, values, mask.long(), self.inputs)
        runs = torch.where(mask, torch.where(values == before.values, before.runs, 0) + 1, before.runs)
        observed, newest = mask | before.observed, torch.where(mask, values, before.values)
        return SeriesState(state, batch.times[:, 0], observed, newest, runs, self.inputs)


class RowReader:
    """A reader of the rows of a stream.

    Args:
        forecaster: the fitted forecaster.
        dtype: the floating type of the model.
    """

    def __init__(self, forecaster: "Forecaster", dtype: torch.dtype) -> None:
        self.forecaster, self.dtype = forecaster, dtype
        self.places = {name: number for number, name in enumerate(forecaster.names_)}
        self.inputs = None if forecaster.inputs_ is None else StreamInputs(forecaster)
        empty = torch.zeros(1, 1, 0)
        lengths = torch.ones(1, dtype=torch.int64)
        self._rest: Any = {"targets": empty, "target_mask": empty.bool(), "hidden": empty.bool(), "lengths": lengths}

    def read(
        self, name: str, before: SeriesState | None, moment: float, values: Any = None, static: Any = None
    ) -> tuple[PendingRow, dict[str, Any]]:
        """Read an observation.

        Args:
            name: the name of the series.
            before: the state of the series, None for a new one.
            moment: the time of the observation.
            values: a mapping from variables, known and static columns to values. None: no observation.
            static: static values.

        Returns:
            The row without known and static values, and these values.

        Raises:
            InputError: a value is wrong.
        """
        given: dict[str, Any] = {}
        if self.inputs is not None:
            values, given = self.inputs.separate_inputs(values, static)
        elif static is not None:
            raise InputError("static", "be left out: the model was fitted without static columns")
        return PendingRow(name, before, self.batch(moment, values, name), ()), given

    def add_inputs(self, row: PendingRow, moment: float, given: Mapping[str, Any], argument: str) -> PendingRow:
        """Add known and static values to a row.

        Args:
            row: the row.
            moment: its time.
            given: the known and static values.
            argument: the argument that has the known values, for errors.
        """
        if self.inputs is None:
            return row
        before = None if row.before is None else row.before.inputs
        features, after = self.inputs.step(row.name, moment, given, before, argument)
        batch = dataclasses.replace(row.batch, extras={INPUTS: features.to(self.dtype)})
        return row._replace(batch=batch, inputs=after)

    def batch(self, moment: float, values: Any = None, series: str = "") -> Batch:
        """Make a batch with one observation in scaled units, or a query without observations."""
        scaled, mask = read_values(self.forecaster, self.places, values, moment, series)
        return Batch(
            times=torch.tensor([[moment]], dtype=torch.float64),
            values=torch.from_numpy(scaled).to(self.dtype),
            mask=torch.tensor([[mask]]),
            ids=("",),
            **self._rest,
        )

    def query_batch(self, moments: Float64[Tensor, "batch asked"]) -> Batch:
        """Make a batch without observations at the given times."""
        count, asked = moments.shape
        values = torch.zeros(count, asked, len(self.places), dtype=self.dtype)
        nothing = values[..., :0]
        return Batch(
            times=moments,
            values=values,
            mask=values.bool(),
            targets=nothing,
            target_mask=nothing.bool(),
            hidden=nothing.bool(),
            lengths=torch.full((count,), asked),
            ids=("",) * count,
        )


class StreamInputs:
    """An encoder of the known and static values of a stream.

    Args:
        forecaster: a fitted forecaster with known or static columns.
    """

    def __init__(self, forecaster: "Forecaster") -> None:
        assert forecaster.inputs_ is not None
        self.encoder, self.columns = forecaster.inputs_, forecaster.columns_
        self.reader = InputColumnReader(forecaster.columns_, forecaster.clock_)

    def blank(self, count: int = 1) -> InputState:
        """Return the state of series without rows."""
        known, static = len(self.columns.known), len(self.columns.static)
        sizes = (count,), (count, known), (count, known, len(INPUT.time_constants)), (count, static)
        zeros = [torch.zeros(size, dtype=torch.float64) for size in sizes]
        return InputState._make([*zeros, zeros[-1].bool()])

    def separate_inputs(self, values: Any, static: Any) -> tuple[Any, dict[str, Any]]:
        """Separate the observations of a row from its known and static values."""
        if not isinstance(values, Mapping):
            return values, self.check(static, "static")
        roles = {*self.columns.known, *self.columns.static}
        given = {name: value for name, value in values.items() if name in roles}
        return {n: v for n, v in values.items() if n not in roles}, given | self.check(static, "static")

    def check(self, values: Any, argument: str) -> dict[str, Any]:
        """Return a mapping of known or static values as a dictionary.

        Raises:
            InputError: ``values`` is not a mapping, or has the name of another column.
        """
        if values is None:
            return {}
        if not isinstance(values, Mapping):
            raise InputError(argument, "be a mapping from columns to values", f"{values!r:.50}")
        names = self.columns.known if argument == "known" else self.columns.static
        for name in values:
            if name not in names:
                hint = literal(did_you_mean(str(name), names)) if names else "There are none."
                raise InputError(argument, f"have {argument} columns of the training table", f"{name!r:.50}", hint)
        return dict(values)

    def step(
        self, name: str, moment: float, given: Mapping[str, Any], before: Any, argument: str
    ) -> tuple[Float[Tensor, "one one feature"], InputState]:
        """Encode one row.

        Args:
            name: the name of the series.
            moment: the time of the row.
            given: known and static values.
            before: the state of the series. None: a new series.
            argument: the argument that has the known values, for errors.

        Returns:
            The features, and the state after the row.

        Raises:
            InputError: a value is missing or wrong, or a static value differs from the earlier one.
        """
        known = self.known(name, moment, given, argument)
        static = np.full((1, len(self.columns.static)), np.nan)
        for k, column in enumerate(self.columns.static):
            static[0, k] = self._static(column, given.get(column), name, moment)
        row = self._series([name], np.array([moment]), known, np.array([0, 1]), static)
        whole, after = self.advance(row, before)
        return torch.from_numpy(whole.per_time[INPUTS])[None], after

    def known(
        self, name: str, moment: float, given: Mapping[str, Any], argument: str
    ) -> Float[np.ndarray, "one known"]:
        """Read the known values of one row. NaN: missing. The arguments are those of `step`."""
        known = np.full((1, len(self.columns.known)), np.nan)
        for k, (column, fill) in enumerate(self.columns.known.items()):
            known[0, k] = self._number(column, given.get(column), name, moment, argument)
            if fill is None and np.isnan(known[0, k]):
                rule, found = "have a value at every time, because it is known", f"none in series {name!r}"
                raise InputError(argument, rule, found, column=column, time=self.reader.stamp(moment))
        return known

    def check_state(self, state: InputState, last: Float64[Tensor, " batch"], where: Path | str) -> None:
        """Raise ValueError if a state from a file is impossible.

        Args:
            state: the state of series, with finite numbers.
            last: the time of the last observation of each series, -inf for none.
            where: the path of the file.
        """
        if bool((state.time < last).any()):
            raise ValueError(f"the last row of a series in {where} must not lie before its last observation.")
        for k, (column, categories) in enumerate(self.columns.static.items()):
            codes = state.static[state.given[:, k], k]
            if categories is not None and not bool(torch.isin(codes, torch.arange(len(categories)).double()).all()):
                rule = f"be integers from 0 to {len(categories) - 1}"
                raise ValueError(f"the categories of {column!r:.100} in {where} must {rule}.")

    def advance(self, series: SeriesSet, before: InputState | None) -> tuple[SeriesSet, InputState]:
        """Encode the rows of series. The arguments are those of `Inputs.advance`.

        Raises:
            InputError: a static value differs from the earlier one.
        """
        if before is not None:
            static, earlier = series.per_series[STATIC], before.static.numpy()
            differs = before.given.numpy() & np.isfinite(static) & (static != earlier)
            if differs.any():
                row, k = (int(part[0]) for part in np.nonzero(differs))
                column = [*self.columns.static][k]
                shown = (self.reader.shown(column, float(part[row, k])) for part in (earlier, static))
                raise changed_static(column, series.ids[row], *shown)
        return self.encoder.advance(series, before)

    def query(self, names: Sequence[str], moments: np.ndarray, before: InputState, known: Any) -> Query:
        """Return a query of the requested times, without observations.

        Args:
            names: the names of the series.
            moments: the requested times, the same for all series.
            before: the states of the series.
            known: a frame of known values, or None.
        """
        size = len(names)
        frame = None if known is None else read_known_frame(known, self.reader, "known")
        if frame is not None:
            last = dict(zip(names, before.time.tolist(), strict=True))
            frame = frame.after(last)
        blank = np.empty((0, len(self.columns.known)))
        offsets, static = np.zeros(size + 1, np.int64), np.full((size, len(self.columns.static)), np.nan)
        series = self._series(names, np.empty(0), blank, offsets, static)
        asked = [moments] * size
        return query_known(series, asked, self.encoder, self.reader, frame=frame, argument="known", before=before)

    def _series(
        self, names: Sequence[str], times: np.ndarray, known: np.ndarray, offsets: np.ndarray, static: np.ndarray
    ) -> SeriesSet:
        """Make series without variables."""
        return SeriesSet(
            times=times,
            values=np.empty((len(times), 0)),
            mask=np.empty((len(times), 0), bool),
            offsets=offsets.astype(np.int64),
            ids=tuple(names),
            names=(),
            per_time={KNOWN: known},
            per_series={STATIC: static},
        )

    def _number(self, column: str, value: Any, series: str, moment: float, argument: str) -> float:
        """Return a known value, NaN for missing."""
        if value is None:
            return np.nan
        try:
            number = float(value) if isinstance(value, Real | np.bool_) else np.inf
        except OverflowError:
            number = np.inf
        if np.isinf(number):
            found = f"{value!r:.50} in series {series!r}"
            raise InputError(argument, "be finite numbers", found, column=column, time=self.reader.stamp(moment))
        return number

    def _static(self, column: str, value: Any, series: str, moment: float) -> float:
        """Return a static number or the index of a category, NaN for missing."""
        categories = self.columns.static[column]
        if categories is None:
            return self._number(column, value, series, moment, "static")
        if value is None:
            return np.nan
        if not isinstance(value, str | Real | np.bool_):
            found = f"{value!r:.50} in series {series!r}"
            raise InputError("static", "be a text or a number", found, column=column)
        text = category_name(value)
        if text is None or text in categories:
            return np.nan if text is None else float(categories.index(text))
        warnings.warn(unseen_category(column, [text]), stacklevel=2)
        return np.nan


def read_values(
    forecaster: "Forecaster", places: Mapping[str, int], values: Any, moment: float, series: str
) -> tuple[Float[np.ndarray, "1 1 variable"], list[bool]]:
    """Convert the values of an observation to scaled units.

    Args:
        forecaster: the fitted forecaster of the stream.
        places: the index of each variable.
        values: a mapping from variables to numbers or to names of categories. None and NaN are missing.
        moment: the time of the observation, for errors.
        series: the name of the series, for errors.

    Returns:
        The values, 0 where nothing is observed, and which variables are observed.

    Raises:
        InputError: a variable is unknown, or a value is impossible.
    """
    width, scaler = len(places), forecaster.scaler_
    row, mask = [0.0] * width, [False] * width
    if values is not None and not isinstance(values, Mapping):
        raise InputError("values", "be a mapping from variables to numbers", f"{values!r:.50}")
    for name in values or {}:
        if name not in forecaster.kinds_:
            hint = literal(did_you_mean(name, forecaster.kinds_))
            raise InputError("values", "be variables of the training table", repr(name), hint)
    for name, value in _encoded(forecaster, values or {}, moment, series).items():
        place = places[name]
        number = isinstance(value, Real | np.bool_)
        if value is None or (number and value != value):
            continue
        try:
            fine = number and is_plausible(value, scaler.shift[place], scaler.scale[place])
        except OverflowError:  # an integer too large for a float
            fine = False
        if not fine:
            rule = "be numbers near those of the training table, or None (null) for missing"
            raise InputError("values", rule, f"{name!r}: {value!r:.50}")
        row[place], mask[place] = float(value), True
    _check_kinds(forecaster, row, mask, moment, series)
    return np.where(mask, scaler.transform(np.array([[row]])), 0.0), mask


def _encoded(forecaster: "Forecaster", values: Mapping[str, Any], moment: float, series: str) -> Mapping[str, Any]:
    """Replace each variable of kind "category" by its columns."""
    kinds, clock = forecaster.kinds_, forecaster.clock_
    if not kinds.categories:
        return values
    columns: dict[str, Any] = {}
    for name, value in values.items():
        if name not in kinds.categories:
            columns[name] = value
            continue
        known = kinds.categories[name]
        if value is None or (isinstance(value, Real) and value != value):
            continue
        if not isinstance(value, str | Real | np.bool_):
            raise InputError("values", "be texts or numbers for a category", f"{name!r}: {value!r:.50}")
        text = category_name(value)
        if text is not None and text not in known:
            raise unseen(name, text, CellLocation(series, clock.stamp(moment)), known).replace(argument="values")
        if text is not None:
            columns |= dict(zip(columns_of(name, known), (float(text == one) for one in known), strict=True))
    return columns


def _check_kinds(forecaster: "Forecaster", row: list[float], mask: list[bool], moment: float, series: str) -> None:
    """Raise InputError if an observation is impossible for a kind that the user declared."""
    kinds = forecaster.kinds_
    if any(mask) and kinds.declared:
        wrong = kinds.forbidden(np.array([row]), np.array([mask]))[0]
        if wrong.any():
            k, stamp = int(wrong.argmax()), forecaster.clock_.stamp(moment)
            raise kinds.error(kinds.owners[k], row[k], series, stamp).replace(argument="values")
