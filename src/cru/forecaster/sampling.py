"""Sample trajectories, with the marginal distributions of `predict` and realistic dependence between times."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from cru.data import SeriesSet
from cru.data.random import generator
from cru.errors import InputError
from cru.forecaster.input_columns import KNOWN_IN_AT, KNOWN_WITHOUT_HORIZON
from cru.forecaster.predictive_distribution import PredictiveDistribution, ScaledPrediction
from cru.forecaster.queries import Query, check_lead_times, drop_empty_rows, lead_time_of, lead_times, predict_scaled
from cru.forecaster.state_store import SeriesState
from cru.forecaster.table_io import give_warnings, long_frame
from cru.progress import ProgressBar
from cru.shapes import Float, Int64

if TYPE_CHECKING:
    from cru.forecaster.estimator import Forecaster


@dataclass(frozen=True)
class SamplingConstants:
    """Sizes of ensembles."""

    members: int = 50  # fewest members of the ensemble that gives the ranks
    min_members: int = 10  # the same for large tables
    max_values: int = 20_000_000  # most values in memory at once
    state_values: int = 100  # number of values that a state counts as


SAMPLING = SamplingConstants()


class SampledRows(NamedTuple):
    """Sampled values, with one row for each sample, series and time, sorted in this order."""

    sample: Int64[np.ndarray, " row"]
    owner: Int64[np.ndarray, " row"]
    times: Float[np.ndarray, " row"]
    values: Float[np.ndarray, "row variable"]


def check_arguments(n: Any, at: Any, horizon: Any, known: Any) -> None:
    """Check the arguments of `Forecaster.sample`.

    Raises:
        ValueError: ``n`` is not an integer of at least 1, or not exactly one of ``at`` and ``horizon`` is given.
    """
    if not isinstance(n, int | np.integer) or n < 1:
        given = repr(n) if isinstance(n, int | float | str) else type(n).__name__  # probably a table
        raise ValueError(f"`n`, the first argument, must be an integer of at least 1, got {given}.")
    if (at is None) == (horizon is None):
        raise InputError("at", "be given if and only if {horizon} is not", "neither" if at is None else "both")
    if known is not None and horizon is None:
        raise InputError("known", KNOWN_WITHOUT_HORIZON, hint=KNOWN_IN_AT)


def sample(
    forecaster: "Forecaster",
    n: int,
    series: SeriesSet,
    *,
    at: Any,
    horizon: Any,
    every: Any,
    seed: int,
    known: Any,
    polars: bool,
) -> Any:
    """Draw sample trajectories, and return a frame.

    Args:
        forecaster: a fitted forecaster.
        n: the number of trajectories of each series.
        series: the observations.
        at: the times, as in `Forecaster.sample`.
        horizon: the length of a forecast.
        every: the step of a forecast.
        seed: the seed of the draws.
        known: the known values of a forecast.
        polars: whether to return a polars frame.
    """
    query, times = forecaster._ahead(series, horizon, every, known) if at is None else forecaster._requested(series, at)
    lead = lead_times(query.series, causal=forecaster.model_.causal)[query.rows]
    unit = forecaster.clock_.unit_of(horizon)
    give_warnings(check_lead_times(lead, forecaster.model_.spec.longest_gap, forecaster.clock_, unit), stacklevel=4)
    drawn = draw_trajectories(forecaster, query, times, n, seed=seed)
    series, size = query.series, len(forecaster.names_)
    return long_frame(
        forecaster.columns_,
        forecaster.clock_,
        before={"sample": np.repeat(drawn.sample, size)},
        ids=[series.ids[i] for i in np.repeat(drawn.owner, size)],
        times=np.repeat(drawn.times, size),
        variables=list(forecaster.names_) * len(drawn.times),
        numbers={"value": drawn.values.ravel()},
        polars=polars,
    )


def draw_trajectories(
    forecaster: "Forecaster", query: Query, times: Sequence[np.ndarray], n: int, *, seed: int
) -> SampledRows:
    """Draw ``n`` trajectories of each series by ensemble copula coupling (Schefzik et al. 2013).

    An ensemble draws values one time after another. Each drawn value becomes an observation for the next step. Errors
    of the steps accumulate, so the spread of the ensemble differs from that of `predict`. But its ranks describe the
    dependence between times and variables. So the k-th smallest of m draws becomes the k/m-quantile of `predict`.
    Observed values do not change.

    Args:
        forecaster: a fitted forecaster.
        query: the observations, in the user's units, and the times to sample.
        times: the times to sample, for each series.
        n: the number of trajectories of each series.
        seed: the seed of the draws.
    """
    rng, series, size = generator(seed, "trajectories"), drop_empty_rows(query.series), len(forecaster.names_)
    asked = [np.unique(each) for each in times]
    counts = np.array([len(each) for each in asked], np.int64)
    continues = forecaster.model_.streams and _later(series, asked)
    cost = counts * size + SAMPLING.state_values if continues else (series.lengths + counts) * size
    members = max(n, int(np.clip(SAMPLING.max_values // max(1, cost.sum()), SAMPLING.min_members, SAMPLING.members)))
    part = np.cumsum(cost * members) // SAMPLING.max_values
    owner, moments, values = [np.empty(0, np.int64)], [np.empty(0)], [np.empty((n, 0, size))]
    numbers = np.unique(part)
    with ProgressBar("sample", 100 * len(numbers), show=forecaster.progress) as bar:
        for chosen in (np.flatnonzero(part == number) for number in numbers):
            wanted, part_query, before = [asked[i] for i in chosen], _take(query, chosen), bar.done
            report = partial(_report, bar, before)
            drawn = (
                _ensemble_from_state(
                    forecaster, series.take(chosen), part_query, np.stack(wanted), members, rng, report
                )
                if continues
                else _ensemble_from_rows(forecaster, part_query, members, rng, report)
            )
            owner.append(chosen[part_query.series.series_index[part_query.rows]])
            moments.append(part_query.series.times[part_query.rows])
            values.append(_coupled(forecaster, part_query, drawn, n, rng))
            bar.update(before + 100)
    each, every = np.concatenate(owner), np.concatenate(moments)
    sample = np.repeat(np.arange(n), len(each))
    return SampledRows(
        sample, np.tile(each, n), np.tile(every, n), np.concatenate(values, 1).reshape(len(sample), size)
    )


def _take(query: Query, chosen: Int64[np.ndarray, " n"]) -> Query:
    """Return the part of a query for consecutive series."""
    first, end = query.series.offsets[chosen[0]], query.series.offsets[chosen[-1] + 1]
    rows = query.rows[(query.rows >= first) & (query.rows < end)]
    return Query(query.series.take(chosen), rows - first)


def _report(bar: ProgressBar, before: int, share: float) -> None:
    """Move the bar to ``share`` of the current part. A part counts 100."""
    bar.update(before + int(100 * share))


def _coupled(
    forecaster: "Forecaster",
    query: Query,
    drawn: Float[np.ndarray, "member asked variable"],
    n: int,
    rng: np.random.Generator,
) -> Float[np.ndarray, "n asked variable"]:
    """Replace each draw by the quantile of `predict` at its rank, in the user's units."""
    model, rows = forecaster.model_, query.rows
    series = query.series.scaled_by(forecaster.scaler_)
    prediction = predict_scaled(model, series).take(rows)
    found = _distribution(forecaster, prediction, lead_times(series, causal=model.causal)[rows])
    for group in found.kinds.groups:
        drawn[..., group[0]] = -drawn[..., group].argmax(-1)  # ranks in the order of the categories, as in `draw`
    place = np.lexsort((rng.random(drawn.shape), drawn), axis=0).argsort(0)[:n]  # ties in random order
    uniform = (place + rng.random(place.shape)) / len(drawn)
    values = np.stack([found.draw(one) for one in uniform])
    return np.where(query.series.mask[rows], query.series.values[rows], values)


def _ensemble_from_rows(
    forecaster: "Forecaster", query: Query, members: int, rng: np.random.Generator, report: Callable[[float], None]
) -> Float[np.ndarray, "member asked variable"]:
    """Draw an ensemble from any model.

    Every step applies the model to the complete series, with the earlier draws as observations.
    """
    series = query.series.scaled_by(forecaster.scaler_)
    together = max(1, SAMPLING.max_values // max(1, series.values.size))
    found = []
    for first in range(0, members, together):
        count = min(together, members - first)

        def report_part(share: float, first: int = first, count: int = count) -> None:
            report((first + share * count) / members)

        found.append(_members(forecaster, series, query.rows, count, rng, report_part))
    return np.concatenate(found)


def _members(
    forecaster: "Forecaster",
    series: SeriesSet,
    asked: np.ndarray,
    count: int,
    rng: np.random.Generator,
    report: Callable[[float], None],
) -> Float[np.ndarray, "member asked variable"]:
    model = forecaster.model_
    state = series.take(np.tile(np.arange(len(series)), count))
    rows = (asked + len(series.times) * np.arange(count)[:, None]).ravel()
    values, mask = state.values.copy(), state.mask.copy()
    owner = state.series_index[rows]
    step = np.arange(len(rows)) - np.searchsorted(owner, owner)
    steps = int(step.max(initial=-1)) + 1
    for now in range(steps):
        report(now / steps)
        chosen = rows[step == now]
        current = dataclasses.replace(state, values=values, mask=mask)
        prediction = predict_scaled(model, current).take(chosen)
        lead = lead_times(current, causal=model.causal)[chosen]
        drawn = _draw(forecaster, prediction, lead, rng)
        values[chosen] = np.where(mask[chosen], values[chosen], drawn)
        mask[chosen] = True
    return values[rows].reshape(count, len(asked), values.shape[1])


def _later(series: SeriesSet, times: Sequence[np.ndarray]) -> bool:
    """Check whether every series has observations, and the same number of query times, all after the last one."""
    if len({len(asked) for asked in times}) != 1 or not len(times[0]) or not series.lengths.all():
        return False
    first = np.array([asked[0] for asked in times])
    return bool((first > series.times[series.offsets[1:] - 1]).all())


@torch.inference_mode()
def _ensemble_from_state(
    forecaster: "Forecaster",
    series: SeriesSet,
    query: Query,
    times: Float[np.ndarray, "series step"],
    members: int,
    rng: np.random.Generator,
    report: Callable[[float], None],
) -> Float[np.ndarray, "member asked variable"]:
    """Draw an ensemble from a model that supports streaming.

    The model processes the observations once. Each member continues from the state after them, one step at a time.
    """
    stream, size = forecaster.stream(), len(forecaster.names_)
    stream.states.update_rows(series.scaled_by(forecaster.scaler_))
    kept: SeriesState = stream.states.take(torch.from_numpy(stream.states.rows(series.ids)).repeat(members))
    moments = torch.from_numpy(times).repeat(members, 1)
    given = {
        name: torch.from_numpy(part[query.rows].reshape(*times.shape, *part.shape[1:])).to(stream.model.dtype)
        for name, part in query.series.per_time.items()
    }
    drawn = np.empty((len(moments), times.shape[1], size))
    for step, now in enumerate(moments.T):
        report(step / times.shape[1])
        extras = {name: part[:, step : step + 1].repeat(members, 1, 1) for name, part in given.items()}
        asked = dataclasses.replace(stream.reader.query_batch(now[:, None]), extras=extras)
        prediction = ScaledPrediction.of(stream.model(asked, state=kept.state))
        lead = lead_time_of((now - kept.last).numpy()[:, None], kept.observed.numpy())
        drawn[:, step] = _draw(forecaster, prediction, lead, rng)
        made = torch.from_numpy(drawn[:, step : step + 1]).to(asked.values.dtype)
        observation = dataclasses.replace(asked, values=made, mask=torch.ones_like(asked.mask))
        state = stream.model.advance(observation, kept.state)
        kept = kept._replace(state=state, last=now, observed=torch.ones_like(kept.observed))
    return drawn.reshape(members, times.size, size)


def _draw(
    forecaster: "Forecaster", prediction: ScaledPrediction, lead: np.ndarray, rng: np.random.Generator
) -> Float[np.ndarray, "n variable"]:
    """Draw the values of one time. The errors of the variables in a row are correlated."""
    drawn = _distribution(forecaster, prediction, lead).draw(forecaster.calibration_.uniform(rng, len(lead)))
    return forecaster.scaler_.transform(drawn)


def _distribution(forecaster: "Forecaster", prediction: ScaledPrediction, lead: np.ndarray) -> PredictiveDistribution:
    return PredictiveDistribution(prediction, lead, scaler=forecaster.scaler_, calibration=forecaster.calibration_)
