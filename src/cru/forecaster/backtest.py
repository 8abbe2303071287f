"""Backtests: series are cut at several times, and predictions are compared with the observations after each cut."""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cru.data import Scaler, SeriesSet
from cru.data.columns import make_frame
from cru.errors import InputError
from cru.forecaster.backtest_cuts import Plan, Predicted, lead_ranges, make_plan, range_names, run
from cru.forecaster.clock import Clock
from cru.forecaster.comparison import MODEL, Comparison, Losses, check_keys, vary
from cru.forecaster.fitting import needs_base
from cru.forecaster.naive_models import NAIVE_MODELS
from cru.forecaster.queries import check_lead_times, drop_empty_rows
from cru.forecaster.table_io import Columns, id_entries

if TYPE_CHECKING:
    from cru.forecaster.estimator import Forecaster


@dataclass(frozen=True, eq=False)
class Backtest:
    """Predictions of a backtest next to the observed values, and their scores.

    Attributes:
        predictions: a frame with one row for each observed value after a cut. Its columns are id, ``cut``, time,
            ``lead`` (time since the cut), ``variable``, ``observed``, ``mean``, ``median``, ``std``, and ``lo-90`` and
            ``hi-90`` for a level of 90. It is a polars frame if the table is.
        comparison: the losses of the model and of the naive models on these values.
        columns: the roles of the columns of the table.
        polars: whether frames are polars frames.
    """

    predictions: Any
    comparison: Comparison
    columns: Columns
    polars: bool

    def _repr_html_(self) -> str:
        from cru.forecaster.notebook import describe_backtest

        return describe_backtest(self)

    def scores(self, by: str | Sequence[str] = ("variable", "lead")) -> Any:
        """Compute the scores of the model and of every naive model.

        Args:
            by: any of "variable", "lead" (a range of lead times) and "series". There is one row for each of their
                combinations and each model. Empty: all values together. With "variable", scores have the unit of the
                variable. Without it, errors of several variables are divided by their standard deviations.

        Returns:
            A frame with the columns of ``by`` and those below. ``difference`` has a 95 % interval by a bootstrap over
            series, or over times if there are fewer than 20 series.

            - ``model``: "model" or the name of a naive model; ``count``: number of values;
            - ``mae``: mean absolute error of the median; ``rmse``: root mean squared error of the mean;
            - ``crps``: continuous ranked probability score, from ten quantiles: twice their mean pinball loss;
            - ``coverage-90``, ``width-90``: share of values inside the 90 % interval, and its mean width;
            - ``difference``: ``mae`` minus that of the best naive model; ``low``, ``high``: its interval;
            - ``better``: "yes", "no", or "unclear" if the interval contains 0. The best naive model has "reference".

        Raises:
            InputError: an entry of ``by`` is unknown.
        """
        keys = check_keys(by)
        if "series" in keys and self.columns.id is None:
            raise InputError("by", "not have 'series' for a table without ids", repr(by))
        table: dict[str, Any] = dict(self.comparison.table(keys))
        if "series" in keys:
            name = str(self.columns.id) if self.columns.id not in table.keys() - {"series"} else "series"
            ids = id_entries(self.columns, table["series"])
            table = {name if key == "series" else key: ids if key == "series" else part for key, part in table.items()}
        return make_frame(table, polars=self.polars, zones={})


def backtest(
    forecaster: "Forecaster",
    table: Any,
    *,
    horizon: Any,
    every: Any,
    cuts: Any,
    refit: bool,
    level: Any,
    n_jobs: int,
) -> Backtest:
    """Backtest a fitted forecaster. The arguments are those of `Forecaster.backtest`."""
    series, polars = forecaster._series(table), forecaster._polars(table)
    plan = make_plan(
        series, forecaster.clock_, forecaster.columns_, horizon=horizon, every=every, cuts=cuts, level=level
    )
    found = run(plan, forecaster, refit=refit, n_jobs=n_jobs)
    if not refit:
        longest = forecaster.model_.spec.longest_gap
        for sentence in check_lead_times(np.array([[found.farthest]]), longest, plan.clock, plan.unit):
            warnings.warn(sentence, stacklevel=3)
    return _result(plan, {MODEL: found}, polars=polars)


def compare_models(
    series: SeriesSet,
    clock: Clock,
    columns: Columns,
    forecasters: "Mapping[str, Forecaster]",
    *,
    horizon: Any,
    every: Any = None,
    cuts: Any = 1,
    level: Any = (50, 90),
    n_jobs: int = 1,
) -> Backtest:
    """Fit several forecasters to the observations before each cut, and compare their predictions of the rest.

    A model that cannot use known and static columns is fitted without them.

    Args:
        series: the table, from `read_training_table`.
        clock: the clock of its times.
        columns: the roles of its columns.
        forecasters: the forecasters, by their names in the scores. They need not be fitted.
        horizon: the longest lead time of a prediction, as in `Forecaster.backtest`.
        every: the time between two cuts.
        cuts: the number of cuts, or times of cuts.
        level: the level of the intervals in per cent; one number or a list.
        n_jobs: the number of processes.

    Returns:
        The scores of all models. The predictions have the additional column ``model``.
    """
    plan = make_plan(series, clock, columns, horizon=horizon, every=every, cuts=cuts, level=level)
    found: dict[str, Predicted] = {}
    for name, forecaster in forecasters.items():
        one = plan if needs_base(forecaster.model, forecaster.base) else _without_inputs(plan)
        found[name] = run(one, forecaster, refit=True, n_jobs=n_jobs, naive=not found, title=name)
    return _result(plan, found, polars=columns.polars)


def _without_inputs(plan: Plan) -> Plan:
    """Remove known and static values from a plan, for a model that cannot use them."""
    series = dataclasses.replace(plan.series, per_time={}, per_series={})
    columns = dataclasses.replace(plan.columns, known={}, static={})
    return plan._replace(series=drop_empty_rows(series), columns=columns)


def _result(plan: Plan, found: Mapping[str, Predicted], *, polars: bool) -> Backtest:
    """Sort the predictions of the models, which have the same values, and make the frame and the comparison."""
    values = next(iter(found.values()))
    order = np.lexsort((values.variable, values.times, values.cut, values.series))
    lead = (values.times - values.cut)[order]
    variable, series = values.variable[order], values.series[order]
    losses = {name: one.losses[MODEL] for name, one in found.items()}
    losses |= {name: values.losses[name] for name in NAIVE_MODELS}
    comparison = Comparison(
        names=plan.series.names,
        leads=range_names(plan.clock, plan.horizon, plan.unit),
        series=plan.series.ids,
        levels=plan.levels,
        variable_of=variable,
        lead_of=lead_ranges(lead, plan.horizon),
        series_of=series,
        block_of=((values.cut - values.cut.min())[order] / plan.horizon).astype(np.int64),
        unit=np.array(Scaler.fit(plan.series.values, plan.series.mask).scale),
        varies=vary(plan.series),
        losses={name: Losses._make(part[order] for part in each) for name, each in losses.items()},
        naive=NAIVE_MODELS,
    )
    cut, times = (plan.clock.stamps(part[order]) for part in (values.cut, values.times))
    columns, dates = plan.columns, plan.clock.kind != "number"
    copies = len(found)
    data: dict[str, Any] = {} if MODEL in found else {"model": np.repeat(list(found), len(order)).tolist()}
    if columns.id is not None:
        data[columns.id] = id_entries(columns, [plan.series.ids[i] for i in series]) * copies
    data["cut"], data[columns.time] = np.tile(cut, copies), np.tile(times, copies)
    data["lead"] = np.tile((times - cut).astype("timedelta64[us]") if dates else lead, copies)
    data[columns.variable or "variable"] = [plan.series.names[k] for k in variable] * copies
    data["observed"] = np.tile(values.observed[order], copies)
    for name in values.prediction:
        data[name] = np.concatenate([one.prediction[name][order] for one in found.values()])
    zones = {"cut": plan.clock.zone, columns.time: plan.clock.zone}
    return Backtest(make_frame(data, polars=polars, zones=zones), comparison, columns, polars)
