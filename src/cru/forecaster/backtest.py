"""Backtests: series are cut at several times, and predictions are compared with the observations after each cut."""

import copy
import dataclasses
import multiprocessing
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from cru.data import Scaler, SeriesSet
from cru.data.columns import make_frame
from cru.errors import InputError, RunError
from cru.forecaster.baselines import RULES, Baselines, fit_baselines
from cru.forecaster.clock import Clock
from cru.forecaster.comparison import GRID, Comparison, Losses, calibrated_entries, check_keys, vary
from cru.forecaster.cuts import TOLERANCE, cut_times, lead_ranges, range_names
from cru.forecaster.fitting import needs_base
from cru.forecaster.inputs import KNOWN
from cru.forecaster.kinds import Kinds
from cru.forecaster.queries import check_lead_times, check_levels, drop_empty_rows, lead_times, predict_scaled
from cru.forecaster.table_io import Columns, id_entries
from cru.progress import track
from cru.shapes import Float, Int64

if TYPE_CHECKING:
    from cru.forecaster.estimator import Forecaster

CHUNK = 2_000_000  # entries (time points times variables) that are predicted at a time
MODEL = "model"  # name of the forecaster in the scores


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


class Plan(NamedTuple):
    """The series, cuts, horizon and levels of a backtest."""

    series: SeriesSet  # rows with an observation or known values, in the user's units
    clock: Clock
    columns: Columns
    cuts: Float[np.ndarray, "series cut"]  # NaN: a series has no such cut
    horizon: float
    unit: str | None  # in which the user wrote the horizon
    levels: tuple[float, ...]


class Job(NamedTuple):
    """The work at one cut."""

    forecaster: "Forecaster"
    clock: Clock
    columns: Columns
    series: SeriesSet  # up to the horizon after the cut
    number: Int64[np.ndarray, " series"]  # index of each series in the table
    cut: Float[np.ndarray, " series"]
    scored: np.ndarray  # whether a series is predicted, or only used for fitting
    levels: tuple[float, ...]
    refit: bool
    baselines: bool  # whether the naive models are scored, too


class Predicted(NamedTuple):
    """Observed values after a cut, their predictions and the losses, one entry for each value."""

    series: Int64[np.ndarray, " value"]
    cut: Float[np.ndarray, " value"]
    times: Float[np.ndarray, " value"]
    variable: Int64[np.ndarray, " value"]
    observed: Float[np.ndarray, " value"]
    prediction: dict[str, Float[np.ndarray, " value"]]
    losses: dict[str, Losses]
    farthest: float  # longest lead time

    @staticmethod
    def join(parts: "Sequence[Predicted]") -> "Predicted":
        """Concatenate several parts."""
        arrays = [np.concatenate(column) for column in zip(*(part[:5] for part in parts), strict=True)]
        prediction = {name: np.concatenate([part.prediction[name] for part in parts]) for name in parts[0].prediction}
        losses = {name: Losses.join([part.losses[name] for part in parts]) for name in parts[0].losses}
        return Predicted._make([*arrays, prediction, losses, max(part.farthest for part in parts)])


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
        found[name] = run(one, forecaster, refit=True, n_jobs=n_jobs, baselines=not found, title=name)
    return _result(plan, found, polars=columns.polars)


def _without_inputs(plan: Plan) -> Plan:
    """Remove known and static values from a plan, for a model that cannot use them."""
    series = dataclasses.replace(plan.series, per_time={}, per_series={})
    columns = dataclasses.replace(plan.columns, known={}, static={})
    return plan._replace(series=drop_empty_rows(series), columns=columns)


def make_plan(
    series: SeriesSet, clock: Clock, columns: Columns, *, horizon: Any, every: Any, cuts: Any, level: Any
) -> Plan:
    """Check the arguments of a backtest, and choose the cuts.

    Raises:
        InputError: an argument is wrong, or no observation follows a cut within the horizon.
    """
    for name in (columns.id, columns.time, columns.variable):
        if name in ("cut", "lead", "observed"):
            raise InputError(rule="not have the name of a column of a backtest", hint="Rename it.", column=name)
    length = clock.duration(horizon, "horizon")
    step = None if every is None else clock.duration(every, "every")
    series = series if KNOWN in series.per_time else drop_empty_rows(series)
    times = cut_times(series, clock, horizon=length, every=step, cuts=cuts)
    owner, observed = series.series_index, np.asarray(series.mask.any(1))
    follows = [
        observed & (times[owner, k] < series.times) & (series.times <= times[owner, k] + (1 + TOLERANCE) * length)
        for k in range(times.shape[1])
    ]
    used = [k for k, rows in enumerate(follows) if rows.any()]
    if not used:
        if isinstance(cuts, int | np.integer):
            rule = "be so short that each cut has observations before and after it"
            raise InputError("horizon", rule, repr(horizon))
        raise InputError("cuts", "have a time with observations before it, and within {horizon} after it")
    return Plan(series, clock, columns, times[:, used], length, clock.unit_of(horizon), check_levels(level))


def run(
    plan: Plan,
    forecaster: "Forecaster",
    *,
    refit: bool,
    n_jobs: int = 1,
    baselines: bool = True,
    title: str = "backtest",
) -> Predicted:
    """Predict the observations after each cut.

    Args:
        plan: the series, cuts and horizon.
        forecaster: the forecaster. It need not be fitted if ``refit``.
        refit: whether to fit a new forecaster before each cut.
        n_jobs: the number of processes.
        baselines: whether to score the naive models, too.
        title: the title of the progress bar.

    Raises:
        InputError: ``n_jobs`` is not an integer of at least 1.
    """
    if not isinstance(n_jobs, int | np.integer) or isinstance(n_jobs, bool) or n_jobs < 1:
        raise InputError("n_jobs", "be an integer of at least 1", repr(n_jobs))
    light = copy.copy(forecaster)  # without the training table, which other processes do not need
    light.history_ = None
    jobs = _jobs(plan, light, refit=refit, baselines=baselines)
    results = map(run_job, jobs) if n_jobs == 1 else _in_processes(jobs, int(n_jobs))
    return Predicted.join(list(track(results, title, plan.cuts.shape[1], show=forecaster.progress)))


def run_job(job: Job) -> Predicted:
    """Predict the observations after one cut."""
    owner = job.series.series_index
    known = job.series.times <= job.cut[owner]
    past = job.series.keep(known)
    forecaster = _fitted(job, past) if job.refit else job.forecaster
    rivals = None
    if job.baselines:
        plain, seed = Scaler.fit(past.values, past.mask), forecaster._plain_params()["seed"]
        rivals = fit_baselines(drop_empty_rows(past), plain, job.clock, seed=seed, levels=job.levels)
    return Predicted.join([_predict(job, forecaster, rivals, some) for some in _chunks(job)])


def _predict(job: Job, forecaster: "Forecaster", rivals: Baselines | None, some: np.ndarray) -> Predicted:
    """Predict some of the series after their cuts."""
    series, cut = drop_empty_rows(forecaster.encoded(job.series.take(some))), job.cut[some]
    owner = series.series_index
    later = (series.times > cut[owner])[:, None]
    wanted, shown = series.mask & later, series.hide(later)
    scaled = shown.scaled_by(forecaster.scaler_)
    lead = lead_times(scaled, causal=forecaster.model_.causal)
    prediction = calibrated_entries(
        predict_scaled(forecaster.model_, scaled),
        lead,
        wanted,
        scaler=forecaster.scaler_,
        calibration=forecaster.calibration_,
        levels=tuple(dict.fromkeys((*job.levels, *GRID))),
    )
    observed = series.values[wanted].astype(np.float64)
    losses = {
        MODEL: Losses.of(
            observed, mean=prediction["mean"], median=prediction["median"], bounds=prediction, levels=job.levels
        )
    }
    if rivals is not None:
        plain = shown.scaled_by(rivals.scaler)
        losses |= rivals.losses(rivals.predict(plain), plain, wanted, observed, job.levels)
    row, variable = np.nonzero(wanted)
    bounds = [f"{side}-{level:g}" for level in job.levels for side in ("lo", "hi")]
    farthest = lead[wanted][np.isfinite(lead[wanted])]
    return Predicted(
        series=job.number[some][owner[row]],
        cut=cut[owner[row]],
        times=series.times[row],
        variable=variable,
        observed=observed,
        prediction={name: prediction[name] for name in ("mean", "median", "std", *bounds)},
        losses=losses,
        farthest=float(farthest.max(initial=0.0)),
    )


def _fitted(job: Job, past: SeriesSet) -> "Forecaster":
    """Fit a new forecaster with the same parameters to the observations before the cut."""
    new = copy.copy(job.forecaster).set_params(progress=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the fit to the complete table has warned already
            kinds = getattr(job.forecaster, "kinds_", Kinds({}))  # `compare_models` has forecasters that are not fitted
            return new._fit(past, job.clock, job.columns, {name: kinds[name] for name in kinds.declared})
    except ValueError as error:
        when = job.clock.stamp(float(job.cut.min()))
        error.add_note(f"This is about the observations up to the cut at {when}.")
        raise


def _jobs(plan: Plan, forecaster: "Forecaster", *, refit: bool, baselines: bool) -> Iterator[Job]:
    """Make the job of each cut. A series without that cut is in the training set up to its earliest cut."""
    filled = ~np.isnan(plan.cuts).all(1)
    earliest = np.full(len(plan.cuts), np.nan)
    earliest[filled] = np.nanmin(plan.cuts[filled], 1)
    for cut in plan.cuts.T:
        number = np.flatnonzero(filled)
        at = np.where(np.isnan(cut), earliest, cut)[number]
        series = plan.series.take(number)
        within = series.times <= at[series.series_index] + (1 + TOLERANCE) * plan.horizon
        series = series.keep(within)
        after = series.mask.any(1) & (series.times > at[series.series_index])
        later = np.add.reduceat(after, series.offsets[:-1]) > 0
        scored = later & ~np.isnan(cut[number])
        yield Job(forecaster, plan.clock, plan.columns, series, number, at, scored, plan.levels, refit, baselines)


def _chunks(job: Job) -> list[np.ndarray]:
    """Divide the scored series into groups of about `CHUNK` entries, so that memory is bounded."""
    scored = np.flatnonzero(job.scored)
    entries = np.cumsum(job.series.lengths[scored] * len(job.series.names))
    return np.split(scored, np.flatnonzero(np.diff(entries // CHUNK)) + 1)


def _in_processes(jobs: Iterable[Job], count: int) -> Iterator[Predicted]:
    """Run jobs in new processes, which do not inherit the threads of this one."""
    remaining = iter(jobs)
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        try:
            while group := list(islice(remaining, count)):  # a few at a time, because each holds a part of the table
                yield from pool.map(run_job, group)
        except BrokenProcessPool:
            raise RunError(
                "a process of `n_jobs` ended early. In a script, call `backtest` under `if __name__ == '__main__':`, "
                "or use n_jobs=1."
            ) from None


def _result(plan: Plan, found: Mapping[str, Predicted], *, polars: bool) -> Backtest:
    """Sort the predictions of the models, which have the same values, and make the frame and the comparison."""
    values = next(iter(found.values()))
    order = np.lexsort((values.variable, values.times, values.cut, values.series))
    lead = (values.times - values.cut)[order]
    variable, series = values.variable[order], values.series[order]
    losses = {name: one.losses[MODEL] for name, one in found.items()}
    losses |= {name: values.losses[name] for name in RULES}
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
        baselines=RULES,
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
