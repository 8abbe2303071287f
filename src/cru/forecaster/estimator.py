"""`Forecaster`: fit, predict, forecast, impute, sample, score, save and load on a user's own table."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from cru.data import Scaler, SeriesSet
from cru.data.columns import is_polars
from cru.errors import InputError
from cru.forecaster.calibration import Calibration
from cru.forecaster.clock import Clock
from cru.forecaster.queries import (
    Predict,
    Query,
    calibrated,
    check_lead_times,
    check_levels,
    forecast_times,
    insert_query_times,
    lead_times,
    predict_scaled,
    requested_times,
)
from cru.forecaster.scoring import compare, constant, errors_of, judge, r_squared
from cru.forecaster.sklearn_api import Estimator
from cru.forecaster.table_io import (
    Columns,
    check_sensible,
    find_changed_constants,
    find_outliers,
    long_frame,
    median_gap,
    read_new_table,
    read_training_table,
)
from cru.models import NAIVE, Model
from cru.models.corrected import CorrectedModel
from cru.training.callbacks import Callback, make_stderr_progress_callback
from cru.training.settings import TrainingSettings, build

if TYPE_CHECKING:
    from cru.forecaster.stream import Stream

Fitted = TypeVar("Fitted", bound="Forecaster")


class Forecaster(Estimator):
    """Learns from a table of irregular readings, then fills in and forecasts, each value with its uncertainty.

    Args:
        model: any of `cru.models.MODELS`, or "module:Class".
        base: "structural" puts the model on top of an exact Gaussian model of each variable, which it corrects; None
            takes the model alone. Rules, and models of your own, always stand alone.
        options: of the model, see `cru models NAME`; its `hidden_size` follows from the number of variables.
        epochs: at most so many; None for 16 of the default model, 100 of a model with a memory.
        minutes: stop after the epoch in which this time is over, processor time for the default model and time on the
            clock for one with a memory; None for no limit.
        patience: stop after so many epochs without a better score on the validation series.
        batch_size: series in one step of the optimizer.
        learning_rate: at the start; it falls to a tenth.
        seed: of the split, the initial weights and what is withheld in training.
        progress: a bar on a terminal, else a line an epoch, on standard error.

    >>> dates = list(pd.date_range("2024-01-01", periods=3)) * 5
    >>> frame = pd.DataFrame({"station": [*"aaabbbcccdddeee"], "date": dates, "tmax": np.arange(15.0)})
    >>> forecaster = Forecaster("mean").fit(frame, id="station", time="date", values=["tmax"])
    >>> forecaster.forecast(horizon="2D", level=[50, 90]).columns.tolist()
    ['station', 'date', 'variable', 'mean', 'median', 'std', 'lo-50', 'hi-50', 'lo-90', 'hi-90']
    """

    model_: Model
    name_: str  # of the model, as it was when fitted
    scaler_: Scaler
    calibration_: Calibration
    clock_: Clock
    columns_: Columns
    names_: tuple[str, ...]
    options_: dict[str, Any]  # of the model, with what was chosen for it
    gap_: float  # the typical time between readings, in the unit of the clock
    history_: SeriesSet | None  # the training table, from whose end forecasts start
    scores_: dict[str, Any]  # on the validation series

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
    ) -> None:
        self.model, self.base, self.options = model, base, options
        self.epochs, self.minutes, self.patience = epochs, minutes, patience
        self.batch_size, self.learning_rate = batch_size, learning_rate
        self.seed, self.progress = seed, progress

    def fit(
        self,
        table: Any,
        y: None = None,
        *,
        time: str,
        id: str | None = None,  # noqa: A002 - what the column is called everywhere
        values: Sequence[str] | str | None = None,
        variable: str | None = None,
        duplicates: Literal["refuse", "mean"] = "refuse",
    ) -> "Forecaster":
        """Learn from a pandas or polars frame, or a .csv or .parquet file; the arguments are those of `from_table`.

        ``y`` is there for scikit-learn's pipelines and not looked at.
        """
        from cru.forecaster.fitting import default_options, divide, fit_model, fit_rules, needs_base

        params = self._plain_params()
        name, seed = params["model"], params["seed"]
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise InputError("seed", "be a whole number of at least 0", repr(seed))
        if params["options"] is not None and not isinstance(params["options"], Mapping):
            raise InputError("options", "be a mapping from names to values", f"{params['options']!r}")
        chosen = (values,) if isinstance(values, str) else None if values is None else tuple(values)
        asked = Columns(id=id, time=time, values=chosen, variable=variable, duplicates=duplicates)
        series, clock, columns = read_training_table(table, asked)
        empty = [name for k, name in enumerate(series.names) if not series.mask[:, k].any()]
        if empty:
            raise InputError(rule="hold at least one reading", hint="Leave it out.", column=empty[0])
        if params["base"] not in (None, "structural"):
            raise InputError("base", "be 'structural' or None", f"{params['base']!r}")
        given = params["options"] or {}
        alone = not needs_base(name, params["base"])
        own = {key: params[key] for key in ("batch_size", "learning_rate", "patience", "minutes")}
        own["epochs"] = 100 if params["epochs"] is None else params["epochs"]
        training = build(TrainingSettings, own | {"schedule": "cosine", "clip": 1.0, "monitor": "nll"})
        parts = divide(series, seed)
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused next
            scaler = Scaler.fit(parts.train.values, parts.train.mask)
        check_sensible(series, scaler)
        _warn(find_outliers(series), stacklevel=3)
        fitted = fit_model(
            series,
            clock,
            parts,
            scaler,
            model=name,
            base=params["base"],
            options=default_options(name, len(series.names), given) if alone else given,
            training=training,
            epochs=params["epochs"],
            seed=seed,
            callback=self._callback(),
        )
        scaler, never = fitted.scaler, constant(series)
        errors = errors_of(fitted.model, fitted.judged, never, seed=seed, predict=fitted.predict)
        self.name_, self.model_, self.scaler_ = fitted.name, fitted.model, scaler
        self.clock_, self.columns_ = clock, columns
        self.names_, self.options_, self.history_ = series.names, fitted.options, series
        self.gap_ = median_gap(series)
        self.calibration_ = errors.with_mean_weight(errors.calibration().widened(len(series)), scaler, series)
        rules = fit_rules(parts.train.scaled_by(scaler), [name for name in NAIVE if name != "mean"], seed)
        rivals: dict[str, tuple[Model, Predict | None]] = {name: (rule, None) for name, rule in rules.items()}
        if isinstance(fitted.model, CorrectedModel):
            rivals = {"structural": (fitted.model, fitted.model.uncorrected), **rivals}
        found = {"model": errors_of(fitted.model, fitted.judged, never, seed=seed, predict=fitted.predict, most=1)}
        for rival, (one, predict) in rivals.items():
            found[rival] = errors_of(one, fitted.judged, never, seed=seed, predict=predict, most=1)
        self.scores_ = judge(errors, len(series)) | {
            "r2_last_value": r_squared(errors_of(rules["last-value"], fitted.judged, never, seed=seed)),
            "table": compare(found, series.names, self.gap_),
        }
        return self

    def predict(self, table: Any, at: Any, level: Any = (90,)) -> Any:
        """Every variable at the times ``at``, given the readings of ``table``: between, before or after them.

        None stands for the training table.
        ``at`` is a list of times for all series, a dictionary {id: times}, or a frame with the columns of id and time.
        A series that was not in training is filtered from the prior; one without any readings gets the prior itself.
        """
        self._check_fitted()
        levels = check_levels(level)
        series, times = requested_times(self._series(table), at, self.clock_, self.columns_)
        return self._answer(insert_query_times(series, times), levels, polars=self._polars(table))

    def forecast(self, table: Any = None, *, horizon: Any, every: Any = None, level: Any = (90,)) -> Any:
        """Every variable after the last reading of each series, up to ``horizon`` ("30D", or a number) later.

        The times lie ``every`` so much; without it, a round step of about the typical gap. Forecasts start from
        ``table``, or from the training table.
        """
        self._check_fitted()
        levels, series = check_levels(level), self._series(table)
        times = forecast_times(series, self.clock_, horizon=horizon, every=every, gap=self.gap_)
        return self._answer(insert_query_times(series, times), levels, polars=self._polars(table))

    def impute(self, table: Any = None, level: Any = (90,)) -> Any:
        """Every missing value of a table, or of the training table, one row each.

        A filter, as the default `cru` is, goes by earlier readings only; `paired-smoother` by those on both sides.
        """
        self._check_fitted()
        levels, series = check_levels(level), self._series(table)
        rows = np.flatnonzero(~series.mask.all(1))
        return self._answer(Query(series, rows), levels, polars=self._polars(table), wanted=~series.mask[rows])

    def sample(
        self, n: int, table: Any = None, *, at: Any = None, horizon: Any = None, every: Any = None, seed: int = 0
    ) -> Any:
        """``n`` trajectories of every series, at the times of `predict` (``at``) or of `forecast` (``horizon``).

        At each time they are spread as `predict` says, and the values of one hang together as they do in an ensemble in
        which each is drawn given the readings and all before it.
        """
        from cru.forecaster.sampling import trajectories

        self._check_fitted()
        if not isinstance(n, int | np.integer) or n < 1:
            given = repr(n) if isinstance(n, int | float | str) else type(n).__name__  # a table, most likely
            raise ValueError(f"`n`, which comes first, must be a whole number of at least 1, got {given}.")
        if (at is None) == (horizon is None):
            raise InputError("at", "be given, or {horizon}, and not both")
        series = self._series(table)
        if at is None:
            times = forecast_times(series, self.clock_, horizon=horizon, every=every, gap=self.gap_)
        else:
            series, times = requested_times(series, at, self.clock_, self.columns_)
        query = insert_query_times(series, times)
        lead = lead_times(query.series, causal=self.model_.causal)[query.rows]
        _warn(check_lead_times(lead, self.model_.spec.longest_gap, self.clock_), stacklevel=3)
        drawn = trajectories(self, series, times, n, seed=seed)
        size = len(self.names_)
        return long_frame(
            self.columns_,
            self.clock_,
            before={"sample": np.repeat(drawn.sample, size)},
            ids=[series.ids[i] for i in np.repeat(drawn.owner, size)],
            times=np.repeat(drawn.times, size),
            variables=list(self.names_) * len(drawn.times),
            numbers={"value": drawn.values.ravel()},
            polars=self._polars(table),
        )

    def score(self, table: Any, y: None = None) -> float:
        """R² of values that are withheld from the table's own series as in training: 1 is perfect, 0 the mean.

        All variables count together, each in its standard deviations. ``y`` is not looked at.
        """
        self._check_fitted()
        series, seed = self._series(table).scaled_by(self.scaler_), self._plain_params()["seed"]
        return r_squared(errors_of(self.model_, series, self.calibration_.constant, seed=seed))

    def stream(self, *, late: str = "refuse", state: Path | str | None = None) -> "Stream":
        """For readings of any number of series as they arrive: see `Stream`. ``state`` is a file that one has saved."""
        from cru.forecaster.stream import Stream

        self._check_fitted()
        stream = Stream(self, late=late)
        if state is not None:
            stream.restore(state)
        return stream

    def save(self, folder: Path | str, *, history: bool = True) -> None:
        """Write the model folder. Without ``history`` it holds no readings, and `forecast` needs a table."""
        from cru.forecaster.serialization import save

        self._check_fitted()
        save(self, Path(folder), history=history)

    @classmethod
    def load(cls: type[Fitted], folder: Path | str, *, allow_code: bool = False) -> Fitted:
        """Load the forecaster that `save` wrote.

        A model outside this library, "module:Class", is refused unless ``allow_code`` is True: to import it is to run
        it.
        """
        from cru.forecaster.serialization import load

        return load(Path(folder), cls, allow_code=allow_code)

    def _callback(self) -> Callback:
        return make_stderr_progress_callback(self.model, self.minutes) if self.progress else Callback()

    def _series(self, table: Any) -> SeriesSet:
        if table is not None:
            series = read_new_table(table, self.columns_, self.clock_, self.names_, self.scaler_)
            _warn(find_changed_constants(series, self.scaler_, self.calibration_.constant), stacklevel=4)
            return series
        if self.history_ is None:
            raise InputError("table", "be given: this model was saved without the readings of its training table")
        return self.history_

    def _polars(self, table: Any) -> bool:
        return self.columns_.polars if table is None else is_polars(table)

    def _answer(
        self, query: Query, levels: tuple[float, ...], *, polars: bool, wanted: np.ndarray | None = None
    ) -> Any:
        series, rows = query.series.scaled_by(self.scaler_), query.rows
        said = predict_scaled(self.model_, series).take(rows)
        lead = lead_times(series, causal=self.model_.causal)[rows]
        _warn(check_lead_times(lead, self.model_.spec.longest_gap, self.clock_), stacklevel=4)
        answer = calibrated(said, lead, scaler=self.scaler_, calibration=self.calibration_, levels=levels)
        wanted = np.ones(answer.mean.shape, bool) if wanted is None else wanted
        row, column = np.nonzero(wanted)
        owner = series.series_index[rows]
        return long_frame(
            self.columns_,
            self.clock_,
            ids=[series.ids[i] for i in owner[row]],
            times=series.times[rows][row],
            variables=[self.names_[k] for k in column],
            numbers={name: part[wanted] for name, part in answer.columns.items()},
            polars=polars,
        )


def _warn(sentences: list[str], *, stacklevel: int) -> None:
    for sentence in sentences:
        warnings.warn(sentence, stacklevel=stacklevel)
