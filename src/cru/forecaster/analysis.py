"""Methods of `Forecaster` that evaluate or explain a fitted model."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cru.forecaster.sklearn_api import Estimator

if TYPE_CHECKING:
    from cru.forecaster.backtest import Backtest
    from cru.forecaster.estimator import Forecaster


class AnalysisMixin(Estimator):
    """Base class of `Forecaster` with the methods that evaluate or explain it."""

    def backtest(
        self,
        table: Any = None,
        *,
        horizon: Any,
        every: Any = None,
        cuts: Any = 5,
        refit: bool = False,
        level: Any = (50, 90),
        n_jobs: int = 1,
    ) -> "Backtest":
        """Forecast the past: cut every series at several times, and compare predictions with the later observations.

        A prediction uses only the observations up to its cut. It is made at the times of the observations after the
        cut, up to the horizon. The naive models are fitted to the observations up to the cut.

        Without ``refit``, the fitted model predicts. If the table is the training table, this model has seen the values
        after the cut, so the scores can be too good. Pass a table with new series or later times, or use ``refit``.

        Args:
            table: the observations. None: the training table.
            horizon: the longest lead time of a prediction. If times are dates, it is a text such as "30D" or a
                timedelta, otherwise a number.
            every: the time between two cuts, in the same form. None: the horizon, or less so that all cuts are in the
                second half of a series.
            cuts: the number of cuts of each series, or a list of times for all series. The last cut is a horizon before
                the end of the series. Each cut is moved to the next observation.
            refit: whether to fit a new forecaster with the same parameters to the observations before each cut.
            level: the level of the intervals in per cent, from 1 to 99.8; one number or a list.
            n_jobs: the number of processes. Each works on other cuts.

        Returns:
            The predictions, the observed values, and the scores.

        Raises:
            NotFittedError: the forecaster is not fitted.
            ValueError: the table, the horizon, the step, the cuts or a level is wrong, or no observation follows a cut.

        >>> import pandas as pd
        >>> frame = pd.DataFrame({"id": np.repeat([*"abcde"], 20), "day": np.tile(np.arange(20.0), 5)})
        >>> frame["x"] = frame["day"] % 7
        >>> forecaster = cru.Forecaster("last-value").fit(frame, id="id", time="day")
        >>> test = forecaster.backtest(horizon=3, cuts=2)
        >>> test.predictions.shape
        (30, 13)
        >>> test.scores(by="variable").query("model == 'model'")[["variable", "count"]].values.tolist()
        [['x', 30]]
        """
        from cru.forecaster.backtest import backtest

        self._check_fitted()
        return backtest(
            cast("Forecaster", self),
            table,
            horizon=horizon,
            every=every,
            cuts=cuts,
            refit=refit,
            level=level,
            n_jobs=n_jobs,
        )

    def score(self, table: Any, y: None = None) -> float:
        """Return R² of observations that are withheld from the model as in training.

        All variables count together, each in units of its standard deviation.

        Args:
            table: the observations. Some are withheld and predicted from the others. None: the training table.
            y: ignored; scikit-learn pipelines pass it.

        Returns:
            R²: 1 is perfect, and 0 is as good as the mean of each variable.

        Raises:
            NotFittedError: the forecaster is not fitted.
            ValueError: the table is wrong.
        """
        from cru.forecaster.scoring import errors_of, r_squared

        self._check_fitted()
        forecaster = cast("Forecaster", self)
        series, seed = forecaster._series(table).scaled_by(forecaster.scaler_), self._plain_params()["seed"]
        return r_squared(errors_of(forecaster.model_, series, forecaster.calibration_.constant, seed=seed))

    def view(self, table: Any = None, *, out: Path | str, horizon: Any = None, level: Any = (50, 90)) -> Path:
        """Write one self-contained HTML page of a table and the model.

        The page shows each series with its observations, mean, intervals, filled gaps and forecast. A map shows the
        times of the observations. The page lists the scores of the model and of the naive models. It needs no network.

        A large page has fewer points and, above some thousand series, fewer series. It states what it leaves out.

        Args:
            table: the observations to show. None: the training table.
            out: path of the page, which ends in .html.
            horizon: length of the forecast, as in `Forecaster.forecast`. None: a tenth of the typical time span.
            level: level of the intervals in per cent, from 1 to 99.8; one number or a list.

        Returns:
            The path of the page.

        Raises:
            NotFittedError: the forecaster is not fitted.
            ValueError: the table, the path, the horizon or a level is wrong.
        """
        from cru.forecaster.view_data import write_view

        self._check_fitted()
        return write_view(cast("Forecaster", self), table, Path(out), horizon=horizon, level=level)

    def _repr_html_(self) -> str:
        """Return a figure of one series and the scores, for notebooks."""
        from cru.forecaster.notebook import describe

        return describe(cast("Forecaster", self))

    def components(
        self, table: Any = None, at: Any = None, *, horizon: Any = None, every: Any = None, known: Any = None
    ) -> Any:
        """Divide every prediction into its components.

        The components of the structural model are ``level`` and up to three processes from ``slow`` to ``fast``. There
        is one season for each calendar period (``day``, ``week``, ``year``), and a ``seasonal mean`` that all series
        share. The last component is the ``correction`` by the network. The means add up to the mean of `predict`.

        A variable on a logarithmic scale has components that multiply. Each is converted to the user's units as its
        share of the difference to the level, so that the means add up, too.

        Args:
            table: the observations. None: the training table.
            at: times, as in `predict`. None: the times of the observations, if there is no ``horizon``.
            horizon: length of a forecast, as in `forecast`.
            every: step of a forecast, as in `forecast`.
            known: known values of a forecast, as in `forecast`.

        Returns:
            A frame with the columns id, time, ``variable``, ``component``, ``mean`` and ``std``.

        Raises:
            NotFittedError: the forecaster is not fitted.
            ValueError: the model has no structural base, both ``at`` and ``horizon`` are given, or an argument is
                wrong.

        >>> import pandas as pd
        >>> dates = list(pd.date_range("2024-01-01", periods=30)) * 2
        >>> frame = pd.DataFrame({"station": ["a"] * 30 + ["b"] * 30, "date": dates, "tmax": np.arange(60.0)})
        >>> model = cru.Forecaster("structural", progress=False).fit(frame, id="station", time="date")
        >>> model.components(frame, at=["2024-02-01"])["component"].unique().tolist()
        ['level', 'slow', 'medium', 'fast', 'week', 'seasonal mean', 'correction']
        """
        from cru.forecaster.components import components

        self._check_fitted()
        return components(cast("Forecaster", self), table, at=at, horizon=horizon, every=every, known=known)

    def anomalies(self, table: Any = None, level: Any = 0.001) -> Any:
        """Compute the p-value of each observation, given the observations before it.

        Every observation is predicted from all variables of its series at earlier times. The p-value is the
        probability of a prediction error that is at least as unusual. For series like those of training, it is
        uniformly distributed between 0 and 1.

        Args:
            table: the observations. None: the training table.
            level: an observation with a p-value below this level is an anomaly. So is an observation at the end of a
                run of equal values, if runs of this length are rarer than the level in the training table.

        Returns:
            A frame with the columns id, time, ``variable``, ``value``, ``mean``, ``p_value``, ``repeats`` and
            ``anomaly``. It has one row for each observation. ``mean`` is the prediction, and ``repeats`` is the number
            of equal values in a row.

        Raises:
            NotFittedError: the forecaster is not fitted.
            ValueError: the model uses later observations, or the table or the level is wrong.

        >>> import cru
        >>> table = cru.data.sample("weather")
        >>> table = table[table["station"] == "USC00344766"].reset_index(drop=True)
        >>> model = cru.Forecaster("structural", progress=False).fit(table, time="date", values=["TMAX"])
        >>> table.loc[200, "TMAX"] = 55.0
        >>> found = model.anomalies(table)
        >>> found[found["anomaly"]]["value"].max()
        np.float64(55.0)
        """
        from cru.forecaster.anomalies import anomalies, check_level

        self._check_fitted()
        forecaster = cast("Forecaster", self)
        chosen = check_level(level)
        return anomalies(forecaster, forecaster._series(table), chosen, polars=forecaster._polars(table))
