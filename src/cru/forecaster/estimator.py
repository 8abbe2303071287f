"""The class `Forecaster`, which fits a model to a table, and predicts, forecasts, imputes, samples and scores."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from cru.data import Scaler, SeriesSet
from cru.data.columns import is_polars
from cru.errors import InputError
from cru.forecaster.analysis import AnalysisMixin
from cru.forecaster.calibration import Calibration
from cru.forecaster.clock import Clock
from cru.forecaster.input_columns import InputColumnReader, read_known_frame
from cru.forecaster.inputs import Inputs
from cru.forecaster.kinds import Kinds, check_kinds
from cru.forecaster.one_step_errors import OneStepErrorDistribution
from cru.forecaster.predictive_distribution import calibrated
from cru.forecaster.queries import (
    Query,
    check_lead_times,
    check_levels,
    forecast_times,
    insert_query_times,
    lead_times,
    predict_scaled,
    query_known,
    requested_times,
)
from cru.forecaster.table_io import (
    Columns,
    check_known,
    check_roles,
    check_static,
    find_changed_constants,
    give_warnings,
    long_frame,
    read_new_table,
    read_training_table,
)
from cru.models import Model
from cru.training.callbacks import Callback, make_progress_callback

if TYPE_CHECKING:
    from cru.forecaster.stream import Stream

Loaded = TypeVar("Loaded", bound="Forecaster")


class Forecaster(AnalysisMixin):
    """Impute and forecast irregular time series of a table, with calibrated uncertainty.

    The default model has two parts. A structural model is an exact Gaussian model of each variable. An `mlp` network
    corrects its means and standard deviations. This model imputes from the observations on both sides of a time, and
    forecasts from the past. A table with more than 100 variables has the structural model only.

    Every prediction has a mean, a median, a standard deviation and intervals. The mean of a skewed variable differs
    from its median. Predictions are possible values: each variable has a kind, which is inferred or declared in `fit`.

    Args:
        model: a name in `cru.models.MODELS`, or "module:Class" for a class of your own.
        base: "structural" lets the model correct a structural model of each variable. None uses the model alone.
            Naive models and models of your own are always used alone.
        options: options of the model; `cru models NAME` lists them. The default `hidden_size` follows from the number
            of variables.
        epochs: largest number of epochs. None means 24 for the default model, and 100 for recurrent models.
        minutes: limit of the processor time of the training, checked after each epoch. None means no limit.
        patience: number of epochs without a better validation score after which the training stops. None: no limit.
        batch_size: number of series in one optimizer step of a recurrent model. The default model ignores it.
        learning_rate: initial learning rate of a recurrent model; it decays to a tenth. The default model ignores it.
        seed: seed of the split, the initial weights and the choice of withheld values.
        progress: whether to show progress bars on a terminal and in a notebook.
        calendar: whether to use hour, weekday and season if times are dates. False: only periods that the values show.

    >>> from cru import Forecaster
    >>> table = cru.data.sample("weather")
    >>> forecaster = Forecaster("climatology").fit(table, id="station", time="date", values=["TMAX", "TMIN"])
    >>> forecaster.forecast(horizon="2D", level=[50, 90]).columns.tolist()
    ['station', 'date', 'variable', 'mean', 'median', 'std', 'lo-50', 'hi-50', 'lo-90', 'hi-90']
    """

    model_: Model
    name_: str  # name of the fitted model
    scaler_: Scaler
    calibration_: Calibration
    errors_: OneStepErrorDistribution | None  # of one-step-ahead predictions; None if the model uses later observations
    clock_: Clock
    columns_: Columns
    names_: tuple[str, ...]  # with a column for each category
    kinds_: Kinds  # of the variables of the table
    options_: dict[str, Any]  # of the fitted model, defaults included
    gap_: float  # median time between observations, in the unit of the clock
    inputs_: Inputs | None  # encoder of known and static columns
    history_: SeriesSet | None  # the training table; forecasts start at its end
    scores_: dict[str, Any]  # on held-out values

    def __init__(
        self,
        model: str = "mlp",
        *,
        base: str | None = "structural",
        options: Mapping[str, Any] | None = None,
        epochs: int | None = None,
        minutes: float | None = 4.0,
        patience: int | None = 30,
        batch_size: int = 16,
        learning_rate: float = 5e-3,
        seed: int = 0,
        progress: bool = True,
        calendar: bool = True,
    ) -> None:
        self.model, self.base, self.options = model, base, options
        self.epochs, self.minutes, self.patience = epochs, minutes, patience
        self.batch_size, self.learning_rate = batch_size, learning_rate
        self.seed, self.progress, self.calendar = seed, progress, calendar

    def fit(
        self,
        table: Any,
        y: None = None,
        *,
        time: str,
        id: str | None = None,  # noqa: A002 - what the column is called everywhere
        values: Sequence[str] | str | None = None,
        variable: str | None = None,
        kinds: Mapping[str, str] | None = None,
        known: Any = None,
        static: Any = None,
        duplicates: Literal["refuse", "mean"] = "refuse",
    ) -> "Forecaster":
        """Fit the model to a table and calibrate its intervals.

        A wide table has one column for each variable. A long table has one row for each observation. Ctrl-C ends the
        training, and the model has the weights of the best epoch so far. A second Ctrl-C stops `fit` without a result.

        Args:
            table: a pandas or polars frame, or the path of a .csv or .parquet file. Rows may come in any order.
            y: ignored; scikit-learn pipelines pass it.
            time: the column of times, numbers or dates.
            id: the column that names the series of a row. None: the table is one series.
            values: the columns of observations. None: all other columns. A long table has one.
            variable: the column of a long table that names the variable of a row.
            kinds: the kind of some variables, such as ``{"rain": "nonnegative"}``: "number", "nonnegative", "count",
                "binary" or "category". Kinds that are not given are inferred.
            known: columns of numbers that are known at every time, also in the future, such as a plan or a weather
                forecast. It is a list of names, or a mapping from names to fills, which replace missing values. The
                fill "last" is the last known value. A number is the value at all times without an event, such as 0 for
                doses.
            static: columns of numbers or categories with one value for each series.
            duplicates: the handling of two rows of a series at the same time: "refuse" them with an error, or take
                their "mean".

        Returns:
            The forecaster itself.

        Raises:
            ValueError: a parameter is wrong, or the table cannot be used. The message states the broken rule.
        """
        from cru.forecaster.fitting import fit_forecaster

        params = self._plain_params()
        seed = params["seed"]
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise InputError("seed", "be an integer of at least 0", repr(seed))
        if params["options"] is not None and not isinstance(params["options"], Mapping):
            raise InputError("options", "be a mapping from names to values", f"{params['options']!r}")
        declared = check_kinds(kinds)
        chosen = (values,) if isinstance(values, str) else None if values is None else tuple(values)
        categories: dict[str, tuple[str, ...]] = {name: () for name, kind in declared.items() if kind == "category"}
        asked = Columns(
            id=id,
            time=time,
            values=chosen,
            variable=variable,
            duplicates=duplicates,
            categories=categories,
            known=check_known(known),
            static=check_static(static),
        )
        check_roles(asked, declared)
        fit_forecaster(self, *read_training_table(table, asked), declared)
        return self

    def predict(self, table: Any, at: Any, level: Any = (90,)) -> Any:
        """Predict every variable at given times: before, between or after the observations of a table.

        The series need not be in the training table. The prediction of a series without observations is the prior of
        the model.

        Args:
            table: the observations, with the columns of the training table. None: the training table.
            at: a list of times for all series, a dictionary {id: times}, or a frame with the columns of id and time.
                Known columns without a fill need a frame that has them, too.
            level: level of the intervals in per cent, from 1 to 99.8; one number or a list.

        Returns:
            A frame with one row for each series, time and variable. Its columns are id, time, ``variable``, ``mean``,
            ``median``, ``std``, and ``lo-90`` and ``hi-90`` for a level of 90. It is a polars frame if ``table`` is.

        Raises:
            NotFittedError: the forecaster is not fitted.
            ValueError: the table, a time or a level is wrong.
        """
        self._check_fitted()
        levels = check_levels(level)
        query, _ = self._requested(self._series(table), at)
        return self._prediction_frame(query, levels, polars=self._polars(table))

    def forecast(
        self, table: Any = None, *, horizon: Any, every: Any = None, level: Any = (90,), known: Any = None
    ) -> Any:
        """Forecast every variable after the last observation of each series.

        Args:
            table: the observations to start from. None: the training table.
            horizon: the longest lead time. If times are dates, it is a text such as "30D" or a timedelta, otherwise a
                number.
            every: the step between two forecasts, in the same form. None: a round step near the median gap.
            level: level of the intervals in per cent, from 1 to 99.8; one number or a list.
            known: a frame with the columns of id, time and known values after the table. Rows at all times are used.
                Columns without a fill need a value at every forecast time. None: the table has the known values.

        Returns:
            A frame like that of `predict`.

        Raises:
            NotFittedError: the forecaster is not fitted.
            ValueError: the table, the horizon, the step or a level is wrong.
        """
        self._check_fitted()
        levels, series = check_levels(level), self._series(table)
        query, _ = self._ahead(series, horizon, every, known)
        polars, unit = self._polars(table), self.clock_.unit_of(horizon)
        return self._prediction_frame(query, levels, polars=polars, title="forecast", unit=unit)

    def impute(self, table: Any = None, level: Any = (90,)) -> Any:
        """Predict every missing value of a table.

        The default model uses the observations before and after each missing value. A model that runs forward in
        time, such as `cru`, uses no later observations.

        Args:
            table: the table with missing values. None: the training table.
            level: level of the intervals in per cent, from 1 to 99.8; one number or a list.

        Returns:
            A frame like that of `predict`, with one row for each missing value.

        Raises:
            NotFittedError: the forecaster is not fitted.
            ValueError: the table or a level is wrong.
        """
        self._check_fitted()
        levels, series = check_levels(level), self._series(table)
        rows = np.flatnonzero(~series.mask.all(1))
        wanted, polars = ~series.mask[rows], self._polars(table)
        return self._prediction_frame(Query(series, rows), levels, polars=polars, wanted=wanted, title="impute")

    def sample(
        self,
        n: int,
        table: Any = None,
        *,
        at: Any = None,
        horizon: Any = None,
        every: Any = None,
        seed: int = 0,
        known: Any = None,
    ) -> Any:
        """Draw sample trajectories of every series.

        At each time, the samples have the distribution of `predict`. The dependence between the values of a trajectory
        is that of an ensemble. An ensemble draws each value given the observations and the earlier values.

        Args:
            n: number of trajectories of each series.
            table: the observations. None: the training table.
            at: times, as in `predict`. Give either ``at`` or ``horizon``.
            horizon: length of a forecast, as in `forecast`.
            every: step of a forecast, as in `forecast`.
            seed: seed of the draws.
            known: known values of a forecast, as in `forecast`.

        Returns:
            A frame with the columns ``sample``, id, time, ``variable`` and ``value``.

        Raises:
            NotFittedError: the forecaster is not fitted.
            ValueError: ``n``, the table, a time or the horizon is wrong, or both ``at`` and ``horizon`` are given.
        """
        from cru.forecaster.sampling import check_arguments, sample

        self._check_fitted()
        check_arguments(n, at, horizon, known)
        series, polars = self._series(table), self._polars(table)
        return sample(self, n, series, at=at, horizon=horizon, every=every, seed=seed, known=known, polars=polars)

    def stream(self, *, late: str = "refuse", state: Path | str | None = None) -> "Stream":
        """Make a `Stream`, which updates any number of series as their observations arrive.

        Args:
            late: the handling of an observation before the last one of its series: "refuse" it with an error, or
                "drop" it.
            state: a file of `Stream.save` to continue from.

        Returns:
            The stream. It is empty without ``state``.

        Raises:
            NotFittedError: the forecaster is not fitted.
            ValueError: the model does not support streaming, or ``state`` belongs to another model.
        """
        from cru.forecaster.stream import Stream

        self._check_fitted()
        stream = Stream(self, late=late)
        if state is not None:
            stream.restore(state)
        return stream

    def save(self, folder: Path | str, *, history: bool = True) -> None:
        """Write the forecaster to a folder, which `load` reads.

        Args:
            folder: a new or empty folder, or one with an older model, which is replaced.
            history: whether to save the observations of the training table, too. Without them, the loaded forecaster
                needs a table.

        Raises:
            NotFittedError: the forecaster is not fitted.
            ValueError: the folder holds other files, or JSON cannot represent a parameter.
        """
        from cru.forecaster.serialization import save

        self._check_fitted()
        save(self, Path(folder), history=history)

    @classmethod
    def load(cls: type[Loaded], folder: Path | str, *, allow_code: bool = False) -> Loaded:
        """Load a forecaster from a folder of `save`.

        Args:
            folder: the folder.
            allow_code: whether to allow a model outside this library ("module:Class"). The import of its module runs
                its code.

        Returns:
            The fitted forecaster.

        Raises:
            FileNotFoundError: the folder does not exist, or one of its files is missing.
            ValueError: a file is damaged or altered, another version wrote it, or the model needs ``allow_code``.
        """
        from cru.forecaster.serialization import load

        return load(Path(folder), cls, allow_code=allow_code)

    def _callback(self) -> Callback:
        return make_progress_callback("fit", self.minutes) if self.progress else Callback()

    def _series(self, table: Any) -> SeriesSet:
        if table is not None:
            series = read_new_table(table, self.columns_, self.clock_, self.names_, self.scaler_)
            self.kinds_.check(series, self.clock_)
            give_warnings(self.kinds_.warnings(series), stacklevel=4)
            give_warnings(find_changed_constants(series, self.scaler_, self.calibration_.constant), stacklevel=4)
            return self.encoded(series)
        if self.history_ is None:
            raise InputError("table", "be given: this model was saved without the observations of its training table")
        return self.encoded(self.history_)

    def encoded(self, series: SeriesSet) -> SeriesSet:
        """Add the features of known and static values to series, if there are any."""
        return series if self.inputs_ is None else self.inputs_.encode(series)

    def query(
        self,
        series: SeriesSet,
        times: Sequence[np.ndarray],
        *,
        known: Any = None,
        argument: str = "at",
        hold: bool = False,
    ) -> Query:
        """Add requested times to series.

        Args:
            series: the series.
            times: the requested times of each series.
            known: a frame of known values, or None.
            argument: the argument that has the frame, for errors.
            hold: whether a known column without a fill keeps its last value.
        """
        if self.inputs_ is None:
            return insert_query_times(series, times)
        reader = InputColumnReader(self.columns_, self.clock_)
        frame = None if known is None else read_known_frame(known, reader, argument)
        return query_known(series, times, self.inputs_, reader, frame=frame, argument=argument, hold=hold)

    def _requested(self, series: SeriesSet, at: Any) -> tuple[Query, list[np.ndarray]]:
        """Return the query of requested times, and these times. See `predict` for ``at``."""
        wanted, times = requested_times(series, at, self.clock_, self.columns_)
        return self.query(wanted, times, known=at if hasattr(at, "columns") else None), times

    def _ahead(self, series: SeriesSet, horizon: Any, every: Any, known: Any) -> tuple[Query, list[np.ndarray]]:
        """Return the query of forecast times, and these times. See `forecast` for the arguments."""
        times = forecast_times(series, self.clock_, horizon=horizon, every=every, gap=self.gap_)
        if known is not None and not self.columns_.known:
            raise InputError("known", "be left out: the model was fitted without known columns")
        return self.query(series, times, known=known, argument="known"), times

    def _polars(self, table: Any) -> bool:
        return self.columns_.polars if table is None else is_polars(table)

    def _prediction_frame(
        self,
        query: Query,
        levels: tuple[float, ...],
        *,
        polars: bool,
        wanted: np.ndarray | None = None,
        title: str = "predict",
        unit: str | None = None,
    ) -> Any:
        series, rows = query.series.scaled_by(self.scaler_), query.rows
        scaled = predict_scaled(self.model_, series, title=title if self.progress else None).take(rows)
        lead = lead_times(series, causal=self.model_.causal)[rows]
        give_warnings(check_lead_times(lead, self.model_.spec.longest_gap, self.clock_, unit), stacklevel=4)
        predicted = calibrated(scaled, lead, scaler=self.scaler_, calibration=self.calibration_, levels=levels)
        wanted = np.ones(predicted.mean.shape, bool) if wanted is None else wanted
        row, column = np.nonzero(wanted)
        owner = series.series_index[rows]
        return long_frame(
            self.columns_,
            self.clock_,
            ids=[series.ids[i] for i in owner[row]],
            times=series.times[rows][row],
            variables=[self.names_[k] for k in column],
            numbers={name: part[wanted] for name, part in predicted.columns.items()},
            polars=polars,
        )
