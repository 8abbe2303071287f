"""Known and static values in a stream: their reading from mappings, and the state that later rows need."""

import warnings
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cru.data import SeriesSet
from cru.errors import InputError, did_you_mean, literal
from cru.forecaster.categories import category_name
from cru.forecaster.input_columns import Reader, changed_static, unseen_category
from cru.forecaster.inputs import INPUTS, KNOWN, SCALES, STATIC, InputState
from cru.forecaster.known_values import query_known, read_known_frame
from cru.forecaster.queries import Query
from cru.shapes import Float, Float64

if TYPE_CHECKING:
    from cru.forecaster.estimator import Forecaster


class StreamInputs:
    """An encoder of the known and static values of a stream.

    Args:
        forecaster: a fitted forecaster with known or static columns.
    """

    def __init__(self, forecaster: "Forecaster") -> None:
        assert forecaster.inputs_ is not None
        self.encoder, self.columns = forecaster.inputs_, forecaster.columns_
        self.reader = Reader(forecaster.columns_, forecaster.clock_)

    def blank(self, count: int = 1) -> InputState:
        """Return the state of series without rows."""
        known, static = len(self.columns.known), len(self.columns.static)
        sizes = (count,), (count, known), (count, known, len(SCALES)), (count, static)
        zeros = [torch.zeros(size, dtype=torch.float64) for size in sizes]
        return InputState._make([*zeros, zeros[-1].bool()])

    def divide(self, values: Any, static: Any) -> tuple[Any, dict[str, Any]]:
        """Divide the values of a row into observations, and known and static values."""
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
