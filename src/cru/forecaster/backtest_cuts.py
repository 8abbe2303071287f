"""The cuts of a backtest: their times, the predictions after each cut, and the ranges of lead times."""

import copy
import multiprocessing
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from cru.data import Scaler, SeriesSet
from cru.errors import InputError, RunError
from cru.forecaster.clock import Clock
from cru.forecaster.comparison import GRID, MODEL, Losses, calibrated_entries
from cru.forecaster.fitting import fit_forecaster
from cru.forecaster.inputs import KNOWN
from cru.forecaster.kinds import Kinds
from cru.forecaster.naive_models import FittedNaiveModels, fit_naive_models
from cru.forecaster.queries import check_levels, drop_empty_rows, lead_times, predict_scaled
from cru.forecaster.table_io import Columns
from cru.progress import track
from cru.shapes import Float, Int64

if TYPE_CHECKING:
    from cru.forecaster.estimator import Forecaster


@dataclass(frozen=True)
class CutConstants:
    """Constants of the cuts of a backtest."""

    tolerance: float = 1e-9  # rounding of times, as a share of the horizon
    later_part: float = 0.5  # without a given step, all cuts are in this part of a series
    range_ends: tuple[float, ...] = (1 / 8, 1 / 4, 1 / 2, 1.0)  # of the ranges of lead times, as shares of the horizon
    max_cuts: int = 1000
    entries_at_once: int = 2_000_000  # entries (time points times variables) that are predicted at a time


CUTS = CutConstants()


def cut_times(
    series: SeriesSet, clock: Clock, *, horizon: float, every: float | None, cuts: Any
) -> Float[np.ndarray, "series cut"]:
    """Return the times at which each series is cut. A series without an observation before a cut has NaN.

    Args:
        series: the table.
        clock: the clock of the table.
        horizon: the longest lead time.
        every: the time between two cuts. None: the horizon or less.
        cuts: the number of cuts, or the times of cuts.

    Raises:
        InputError: ``cuts`` is neither an integer from 1 to `CutConstants.max_cuts` nor a list of times.
    """
    series = drop_empty_rows(series)
    if isinstance(cuts, int | np.integer) and not isinstance(cuts, bool):
        if not 1 <= cuts <= CUTS.max_cuts:
            raise InputError("cuts", f"be from 1 to {CUTS.max_cuts}, or a list of times", repr(cuts))
        return _spaced(series, horizon, every, int(cuts))
    if isinstance(cuts, str | bytes | bool | float) or not hasattr(cuts, "__iter__"):
        raise InputError("cuts", "be an integer, or a list of times", repr(cuts))
    if every is not None:
        raise InputError("every", "be left out if {cuts} is a list of times")
    times = np.unique(clock.numbers(cuts, "cuts"))
    if not 1 <= len(times) <= CUTS.max_cuts:
        raise InputError("cuts", f"have from 1 to {CUTS.max_cuts} times", f"{len(times)}")
    first = np.full(len(series), np.inf)
    some = series.lengths > 0
    first[some] = series.times[series.offsets[:-1][some]]
    return np.where(first[:, None] <= times, times, np.nan)


def _spaced(series: SeriesSet, horizon: float, every: float | None, count: int) -> Float[np.ndarray, "series cut"]:
    """Return cuts with equal steps, each moved to the next observation. The last is a horizon before the end."""
    found = np.full((len(series), count), np.nan)
    back = np.arange(count)[::-1]
    for number, (begin, end) in enumerate(zip(series.offsets[:-1], series.offsets[1:], strict=True)):
        times = series.times[begin:end]
        if len(times) < 2:
            continue
        latest = times[-1] - horizon
        middle = times[-1] - CUTS.later_part * (times[-1] - times[0])
        step = every if every is not None else min(horizon, max(latest - middle, 0.0) / max(count - 1, 1))
        wanted = latest - step * back
        place = np.searchsorted(times, wanted - CUTS.tolerance * horizon)
        place = np.minimum(place, len(times) - 2)  # an observation follows
        new = wanted >= times[0] - CUTS.tolerance * horizon
        new &= np.append(place[1:], -1) != place  # equal cuts count once
        found[number, new] = times[place[new]]
    return found


def lead_ranges(lead: Float[np.ndarray, " value"], horizon: float) -> Int64[np.ndarray, " value"]:
    """Return the index of the range of each lead time. The ranges end at `CutConstants.range_ends` of the horizon."""
    return np.searchsorted(np.array(CUTS.range_ends[:-1]) * (1 + CUTS.tolerance), lead / horizon).astype(np.int64)


def range_names(clock: Clock, horizon: float, unit: str | None) -> tuple[str, ...]:
    """Return the names of the ranges of lead times, such as "6h to 12h".

    Args:
        clock: the clock of the table.
        horizon: the horizon in the unit of the clock.
        unit: the unit in which the user wrote the horizon. A range that ends before one such unit has a smaller unit.
    """
    one = 0.0 if unit is None else clock.duration(f"1{unit}") * (1 - CUTS.tolerance)
    ends = [clock.written(end, unit if end >= one else None) for end in (share * horizon for share in CUTS.range_ends)]
    return (f"up to {ends[0]}", *(f"{start} to {end}" for start, end in pairwise(ends)))


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
    naive: bool  # whether the naive models are scored, too


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
        observed & (times[owner, k] < series.times) & (series.times <= times[owner, k] + (1 + CUTS.tolerance) * length)
        for k in range(times.shape[1])
    ]
    used = [k for k, rows in enumerate(follows) if rows.any()]
    if not used:
        if isinstance(cuts, int | np.integer):
            rule = "be so short that each cut has observations before and after it"
            raise InputError("horizon", rule, repr(horizon), "Choose a shorter horizon, or a longer table.")
        rule = "have a time with observations before it, and within {horizon} after it"
        raise InputError("cuts", rule, f"{cuts!r:.60}", "Choose earlier times.")
    return Plan(series, clock, columns, times[:, used], length, clock.unit_of(horizon), check_levels(level))


def run(
    plan: Plan,
    forecaster: "Forecaster",
    *,
    refit: bool,
    n_jobs: int = 1,
    naive: bool = True,
    title: str = "backtest",
) -> Predicted:
    """Predict the observations after each cut.

    Args:
        plan: the series, cuts and horizon.
        forecaster: the forecaster. It need not be fitted if ``refit``.
        refit: whether to fit a new forecaster before each cut.
        n_jobs: the number of processes.
        naive: whether to score the naive models, too.
        title: the title of the progress bar.

    Raises:
        InputError: ``n_jobs`` is not an integer of at least 1.
    """
    if not isinstance(n_jobs, int | np.integer) or isinstance(n_jobs, bool) or n_jobs < 1:
        raise InputError("n_jobs", "be an integer of at least 1", repr(n_jobs))
    light = copy.copy(forecaster)  # without the training table, which other processes do not need
    light.history_ = None
    jobs = _jobs(plan, light, refit=refit, naive=naive)
    results = map(run_job, jobs) if n_jobs == 1 else _in_processes(jobs, int(n_jobs))
    return Predicted.join(list(track(results, title, plan.cuts.shape[1], show=forecaster.progress)))


def run_job(job: Job) -> Predicted:
    """Predict the observations after one cut."""
    owner = job.series.series_index
    known = job.series.times <= job.cut[owner]
    past = job.series.keep(known)
    forecaster = _fitted(job, past) if job.refit else job.forecaster
    naive_models = None
    if job.naive:
        plain, seed = Scaler.fit(past.values, past.mask), forecaster._plain_params()["seed"]
        naive_models = fit_naive_models(drop_empty_rows(past), plain, job.clock, seed=seed, levels=job.levels)
    return Predicted.join([_predict(job, forecaster, naive_models, some) for some in _chunks(job)])


def _predict(job: Job, forecaster: "Forecaster", naive_models: FittedNaiveModels | None, some: np.ndarray) -> Predicted:
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
    if naive_models is not None:
        plain = shown.scaled_by(naive_models.scaler)
        losses |= naive_models.losses(naive_models.predict(plain), plain, wanted, observed, job.levels)
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
            declared = {name: kinds[name] for name in kinds.declared}
            fit_forecaster(new, past, job.clock, job.columns, declared)
            return new
    except ValueError as error:
        when = job.clock.stamp(float(job.cut.min()))
        error.add_note(f"This is about the observations up to the cut at {when}.")
        raise


def _jobs(plan: Plan, forecaster: "Forecaster", *, refit: bool, naive: bool) -> Iterator[Job]:
    """Make the job of each cut. A series without that cut is in the training set up to its earliest cut."""
    filled = ~np.isnan(plan.cuts).all(1)
    earliest = np.full(len(plan.cuts), np.nan)
    earliest[filled] = np.nanmin(plan.cuts[filled], 1)
    for cut in plan.cuts.T:
        number = np.flatnonzero(filled)
        at = np.where(np.isnan(cut), earliest, cut)[number]
        series = plan.series.take(number)
        within = series.times <= at[series.series_index] + (1 + CUTS.tolerance) * plan.horizon
        series = series.keep(within)
        after = series.mask.any(1) & (series.times > at[series.series_index])
        later = np.add.reduceat(after, series.offsets[:-1]) > 0
        scored = later & ~np.isnan(cut[number])
        yield Job(forecaster, plan.clock, plan.columns, series, number, at, scored, plan.levels, refit, naive)


def _chunks(job: Job) -> list[np.ndarray]:
    """Divide the scored series into groups of about `CutConstants.entries_at_once` entries, to bound the memory."""
    scored = np.flatnonzero(job.scored)
    entries = np.cumsum(job.series.lengths[scored] * len(job.series.names))
    return np.split(scored, np.flatnonzero(np.diff(entries // CUTS.entries_at_once)) + 1)


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
