"""Streaming: a state for each series, its updates as observations arrive, and predictions of later times."""

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cru.errors import InputError, did_you_mean, literal
from cru.forecaster.anomalies import EarlierRows, check_level, compute_p_values, step
from cru.forecaster.inputs import INPUTS, InputState
from cru.forecaster.predictive_distribution import CalibratedPrediction, ScaledPrediction, calibrated
from cru.forecaster.queries import BATCH, check_levels, lead_time_of
from cru.forecaster.serialization import fingerprint
from cru.forecaster.state_store import SeriesState, SeriesStates, rebuilt
from cru.forecaster.stream_rows import PendingRow, RowReader
from cru.forecaster.table_io import long_frame, name_of, read_new_table
from cru.models.base import Prediction
from cru.shapes import Float64

if TYPE_CHECKING:
    from cru.forecaster.estimator import Forecaster


SORT = "Sort the observations, or give {late='drop'}."
LOOK_BACK = "For earlier times, pass the complete table to the forecaster's `predict`."


class Stream:
    """A stream of many independent series, which are updated as their observations arrive, and predicted.

    Use `Forecaster.stream` to make a stream. The memory for a series and the time of an update do not grow with the
    number of observations.

    Predictions equal those of `Forecaster.predict` for all observations so far. This needs one call of `update` for
    each time of a series, because two calls with the same time are two updates. Known values are the exception:
    those of the second call replace those of the first. A stream is not thread-safe.

    Args:
        forecaster: a fitted forecaster whose model supports streaming, as the default model does.
        late: the handling of an observation before the last one of its series: "refuse" it with an error, or "drop" it.

    Raises:
        ValueError: ``late`` is wrong, or the model does not support streaming.
    """

    def __init__(self, forecaster: "Forecaster", *, late: str = "refuse") -> None:
        if late not in ("refuse", "drop"):
            raise InputError("late", "be 'refuse' or 'drop'", repr(late))
        self.forecaster, self.late = forecaster, late
        self.model = copy.deepcopy(forecaster.model_).eval().requires_grad_(False)
        self.model.freeze()
        self.reader = RowReader(forecaster, self.model.dtype)
        self.inputs = self.reader.inputs
        with torch.inference_mode():
            query = self.reader.query_batch(torch.zeros(1, 1, dtype=torch.float64))
            width = 0 if self.inputs is None else self.inputs.encoder.size
            start = self.model.advance(dataclasses.replace(query, extras={INPUTS: query.values.new_zeros(1, 1, width)}))
            nothing, inputs = query.values[:, 0], () if self.inputs is None else self.inputs.blank()
            blank = SeriesState(start, query.times[:, 0], nothing.bool(), nothing, nothing.long(), inputs)
            self.states = SeriesStates(self.model, blank)

    @property
    def names(self) -> list[str]:
        """The names of the series."""
        return self.states.names

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, id: object) -> bool:  # noqa: A002 - what the column is called everywhere
        return name_of(id) in self.states.rows_of

    @torch.inference_mode()
    def update(self, id: object, time: Any, values: Any, *, static: Any = None) -> bool:  # noqa: A002
        """Update a series with one observation.

        Args:
            id: the series. A new id starts a new series. None: the only series of a model that was fitted without ids.
            time: the time of the observation, not before the last one of the series.
            values: a mapping from variables to numbers, or to the text of a category. A variable that is absent, None
                or NaN is missing. Known and static columns of the training table belong here, too.
            static: static values, if they are not in ``values``. They do not change for a series.

        Returns:
            False if the observation is late and dropped, otherwise True.

        Raises:
            ValueError: the id, the time or a value is wrong, or the observation is late and ``late`` is "refuse".

        >>> stream.update("bed 3", 17.5, {"HR": 71, "Temp": 36.9})  # doctest: +SKIP
        True
        """
        row = self._read(id, time, values, static)
        if row is None:
            return False
        if row.batch.mask.any():
            self.states.put_series(row.name, row.after(self.model.advance(row.batch, row.state)))
        else:
            self._put_unobserved(row)
        return True

    @torch.inference_mode()
    def anomalies(
        self,
        id: object,  # noqa: A002
        time: Any,
        values: Any,
        *,
        level: Any = 0.001,
        update: bool = False,
        static: Any = None,
    ) -> dict[str, dict[str, Any]]:
        """Compute the p-values of an observation, given the observations before it.

        The results equal those of `Forecaster.anomalies` for all observations so far. Call this method before `update`.
        Leave out `update` for an observation that you reject. One call with ``update=True`` is faster than both calls.

        Args:
            id: the series. It may be new.
            time: the time of the observation, not before the last one of the series.
            values: a mapping from variables to numbers, as in `update`.
            level: a value with a p-value below this level is an anomaly. So is a value at the end of a run of equal
                values, if runs of this length are rarer than the level in the training table.
            update: whether to update the series with the observation, too.
            static: static values, as in `update`.

        Returns:
            ``p_value``, ``repeats`` and ``anomaly`` for each observed variable. It is empty if nothing is observed, or
            if the observation is late and ``late`` is "drop".

        Raises:
            ValueError: the id, the time, a value or the level is wrong, or the observation is late and ``late`` is
                "refuse".

        >>> stream.anomalies("bed 3", 18.0, {"HR": 171}, update=True)["HR"]  # doctest: +SKIP
        {'p_value': 0.00021, 'repeats': 1, 'anomaly': True}
        """
        chosen, row = check_level(level), self._read(id, time, values, static)
        if row is None:
            return {}
        if not row.batch.mask.any():
            if update:
                self._put_unobserved(row)
            return {}
        batch = row.batch
        prediction, state = step(self.model, batch, row.state)
        after, earlier = row.after(state), EarlierRows(np.array([[row.since]]), row.observed_before)
        runs = (after.runs * batch.mask[:, 0]).numpy()
        scaled = batch.values[:, 0].double().numpy()
        found = compute_p_values(self.forecaster, ScaledPrediction.of(prediction), scaled, earlier, runs, chosen)
        if update:
            self.states.put_series(row.name, after)
        return {
            variable: {
                "p_value": float(found.p_value[0, place]),
                "repeats": int(runs[0, place]),
                "anomaly": bool(found.anomaly[0, place]),
            }
            for variable, place in self.reader.places.items()
            if runs[0, place]
        }

    def repeated(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the values of the known columns without a fill, to repeat them at a later time."""
        if self.inputs is None:
            return None
        needed = [name for name, fill in self.forecaster.columns_.known.items() if fill is None]
        return {name: values[name] for name in needed if name in values}

    def check_known(self, id: object, time: Any, known: Any) -> None:  # noqa: A002
        """Check the known values of a time. The arguments are those of `predict`.

        Raises:
            InputError: a known value is wrong or missing.
        """
        if self.inputs is not None:
            given = self.inputs.check(known, "known")
            self.inputs.known(self.name(id), self.forecaster.clock_.number(time), given, "known")
        elif known is not None:
            raise InputError("known", "be left out: the model was fitted without such columns")

    def _read(self, id: object, time: Any, values: Any, static: Any = None) -> PendingRow | None:  # noqa: A002
        """Read an observation, and find the state of its series. Return None if it is late and dropped."""
        moment, name = self.forecaster.clock_.number(time), self.name(id)
        row, given = self.reader.read(name, self.states.find(name), moment, values, static)
        if row.before is not None and moment < row.before.latest:
            if self.late == "drop":
                return None
            raise self.too_early(name, moment, row.before, SORT)
        return self.reader.add_inputs(row, moment, given, "values")

    def _put_unobserved(self, row: PendingRow) -> None:
        """Store the known and static values of a row without observations."""
        if self.inputs is not None:
            self.states.put_series(row.name, (row.before or self.states.blank)._replace(inputs=row.inputs))

    @torch.inference_mode()
    def predict(
        self,
        id: object,  # noqa: A002
        time: Any,
        *,
        level: Any = (90,),
        known: Any = None,
        static: Any = None,
    ) -> dict[str, dict[str, float]]:
        """Predict every variable of a series at a time.

        The prediction of a series without observations is the prior of the model.

        Args:
            id: the series. It may be new.
            time: the time, not before the last observation of the series.
            level: level of the intervals in per cent, from 1 to 99.8; one number or a list.
            known: a mapping from known columns to their values at the time.
            static: a mapping from static columns to their values, for a new series.

        Returns:
            ``mean``, ``median``, ``std`` and the bounds of the intervals, for each variable.

        Raises:
            ValueError: the id, the time or a level is wrong.

        >>> stream.predict("bed 3", 20.0)["HR"]  # doctest: +SKIP
        {'mean': 72.3, 'median': 72.1, 'std': 6.1, 'lo-90': 61.9, 'hi-90': 83.0}
        """
        levels, moment, name = check_levels(level), self.forecaster.clock_.number(time), self.name(id)
        before = self.states.find(name)
        if before is not None and moment < before.latest:
            raise self.too_early(name, moment, before, LOOK_BACK)
        asked = PendingRow(name, before, self.reader.batch(moment), ())
        if self.inputs is not None:
            given = self.inputs.check(known, "known") | self.inputs.check(static, "static")
            asked = self.reader.add_inputs(asked, moment, given, "known")
        elif known is not None or static is not None:
            argument = "known" if known is not None else "static"
            raise InputError(argument, "be left out: the model was fitted without such columns")
        output = self.model(asked.batch, state=asked.state)
        prediction = self.calibrate(output, lead_time_of(np.array(asked.since), asked.observed_before), levels)
        numbers = prediction.columns
        return {
            variable: {what: float(number[0, place]) for what, number in numbers.items()}
            for variable, place in self.reader.places.items()
        }

    @torch.inference_mode()
    def update_many(self, table: Any) -> int:
        """Update all series of a table.

        This is much faster than one `update` for each row. Use it for the past of all series, or for all observations
        since the last call.

        Args:
            table: the observations, with the columns of the training table.

        Returns:
            The number of used rows.

        Raises:
            ValueError: the table is wrong, or a row is late and ``late`` is "refuse". The stream is then unchanged.
        """
        fitted = self.forecaster
        series = read_new_table(table, fitted.columns_, fitted.clock_, fitted.names_, fitted.scaler_)
        fitted.kinds_.check(series, fitted.clock_)
        rows = self.states.rows(series.ids)
        last = np.full(len(rows), -math.inf)
        last[rows >= 0] = self.states.take(torch.from_numpy(rows[rows >= 0])).latest.numpy()
        late = series.times < np.repeat(last, series.lengths)
        if late.any() and self.late == "refuse":
            name, moment = series.ids[series.series_index[late.argmax()]], float(series.times[late.argmax()])
            raise self.too_early(name, moment, self.states.row(self.states.rows_of[name]), SORT)
        series, used = series.keep(~late), int((~late).sum())
        if self.inputs is None:
            self.states.update_rows(series.scaled_by(fitted.scaler_))
            return used
        for known in (True, False):
            chosen = np.flatnonzero(((rows >= 0) == known) & (series.lengths > 0))
            if not len(chosen):
                continue
            some = series.take(chosen)
            before = self.states.take(torch.from_numpy(rows[chosen])).inputs if known else None
            whole, after = self.inputs.advance(some, before)
            self.states.update_rows(whole.scaled_by(fitted.scaler_))
            self.states.put_inputs(some.ids, after)
        return used

    @torch.inference_mode()
    def predict_many(
        self, at: Any, *, ids: Sequence[object] | None = None, level: Any = (90,), known: Any = None
    ) -> Any:
        """Predict many series at the same times.

        Args:
            at: a list of times, none of them before the last observation of a series.
            ids: the series. None: all series of the stream.
            level: level of the intervals in per cent, from 1 to 99.8; one number or a list.
            known: a frame of known values, as in `Forecaster.forecast`.

        Returns:
            A frame like that of `Forecaster.predict`.

        Raises:
            ValueError: an id is not in the stream, there is no time or no series, or a time or a level is wrong.
        """
        levels = check_levels(level)
        clock, columns, variables = self.forecaster.clock_, self.forecaster.columns_, self.forecaster.names_
        moments = np.unique(clock.numbers(at))
        names = list(self.names) if ids is None else [self.known(name) for name in ids]
        if not len(moments):
            raise InputError("at", "hold at least one time", "none")
        if not names:
            raise InputError("ids", "name at least one series of the stream", "none", "Update the stream first.")
        if self.inputs is None and known is not None:
            raise InputError("known", "be left out: the model was fitted without known columns")
        groups = [names[i : i + BATCH] for i in range(0, len(names), BATCH)]
        parts = [self._predict_batch(group, moments, levels, known) for group in groups]
        numbers = {name: [part.columns[name] for part in parts] for name in parts[0].columns}
        return long_frame(
            columns,
            clock,
            ids=[name for name in names for _ in range(len(moments) * len(variables))],
            times=np.repeat(np.tile(moments, len(names)), len(variables)),
            variables=list(variables) * (len(names) * len(moments)),
            numbers={name: np.concatenate(found).ravel() for name, found in numbers.items()},
            polars=columns.polars,
        )

    def _predict_batch(
        self, names: Sequence[str], moments: Float64[np.ndarray, " asked"], levels: tuple[float, ...], known: Any
    ) -> CalibratedPrediction:
        kept: SeriesState = self.states.take(torch.from_numpy(self.states.rows(names)))
        early = (kept.latest > moments[0]).nonzero()
        if len(early):
            name = names[int(early[0])]
            raise self.too_early(name, float(moments[0]), self.states.row(self.states.rows_of[name]), LOOK_BACK)
        batch = self.reader.query_batch(torch.from_numpy(moments).expand(len(names), -1))
        if self.inputs is not None:
            assert isinstance(kept.inputs, InputState)
            query = self.inputs.query(names, moments, kept.inputs, known)
            features = query.series.per_time[INPUTS][query.rows].reshape(len(names), len(moments), -1)
            batch = dataclasses.replace(batch, extras={INPUTS: torch.from_numpy(features).to(self.model.dtype)})
        predicted = self.model(batch, state=kept.state)
        since = moments[:, None] - np.where(kept.seen, kept.last, -math.inf)[:, None, None]
        lead = lead_time_of(since, kept.observed.numpy()[:, None])  # (series, time, variable)
        return self.calibrate(predicted, lead.reshape(-1, lead.shape[-1]), levels)

    def forget(self, id: object) -> None:  # noqa: A002
        """Remove a series from the stream and free its memory for others.

        Args:
            id: the series.

        Raises:
            ValueError: the stream has no such series.
        """
        self.states.remove_series(self.known(id))

    def save(self, path: Path | str) -> None:
        """Write all states to one file, in the safetensors format with a JSON header.

        Args:
            path: the file. Pass it to ``Forecaster.stream(state=path)`` to continue.
        """
        self.states.save(Path(path), fingerprint(self.forecaster))

    def restore(self, path: Path | str) -> None:
        """Replace all states with those of a file of `save`.

        Args:
            path: the file.

        Raises:
            ValueError: the file is damaged, is not a stream, or belongs to another model.
        """
        single = self.forecaster.columns_.id is None
        names, tensors = self.states.load(path, fingerprint(self.forecaster), single=single)
        if self.inputs is not None:
            restored = rebuilt(self.states.blank, (tensors[name] for name in self.states.as_tensors()))
            assert isinstance(restored.inputs, InputState)
            self.inputs.check_state(restored.inputs, torch.where(restored.seen, restored.last, -math.inf), path)
        self.states.replace(names, tensors)

    def name(self, id: object) -> str:  # noqa: A002
        """Return the name of a series.

        Raises:
            ValueError: the id is invalid, or the model has no ids.
        """
        name, single = name_of(id), self.forecaster.columns_.id is None
        if single and name != "0":
            rule = "be None, because the model was fitted to one series without ids"
            raise InputError("id", rule, f"{id!r:.50}", "Leave it out.")
        if not single and (isinstance(id, bool) or not isinstance(id, str | Real) or id != id):
            raise InputError("id", "be the name of a series, text or a number", f"{id!r:.50}")
        return name

    def known(self, id: object) -> str:  # noqa: A002
        """Return the name of a series.

        Raises:
            ValueError: the id is invalid, or the stream does not have the series.
        """
        name = self.name(id)
        if name not in self.states.rows_of:
            hint = literal(did_you_mean(name, self.names))
            raise InputError("id", "be a series of this stream", repr(name), hint)
        return name

    def calibrate(self, prediction: Prediction, lead: np.ndarray, levels: tuple[float, ...]) -> CalibratedPrediction:
        """Convert a prediction of the model to calibrated values in the user's units, one row for each lead time.

        Args:
            prediction: the prediction.
            lead: the lead times.
            levels: the levels of the intervals, in per cent.
        """
        fitted = self.forecaster
        return calibrated(
            ScaledPrediction.of(prediction), lead, scaler=fitted.scaler_, calibration=fitted.calibration_, levels=levels
        )

    def too_early(self, name: str, moment: float, kept: SeriesState, hint: str) -> InputError:
        """Make the error for a time before the last observation of a series.

        Args:
            name: the series.
            moment: the time.
            kept: the state of the series.
            hint: the advice to the user.
        """
        clock = self.forecaster.clock_
        last, found = clock.stamp(float(kept.latest)), clock.stamp(moment)
        rule = literal(f"not lie before the last observation of {name!r}, {last}")
        return InputError("time", rule, found, hint)
