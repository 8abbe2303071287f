"""The content of the page of a table for each series: curves, components, anomalies, gaps and errors."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import narwhals as nw
import numpy as np

from cru.data import SeriesSet
from cru.errors import printable
from cru.forecaster.anomalies import ANOMALY, anomalies
from cru.forecaster.components import decompose, group_components
from cru.forecaster.inputs import INPUTS
from cru.forecaster.predictive_distribution import CalibratedPrediction, calibrated
from cru.forecaster.queries import Query, last_observation_times, lead_times, predict_scaled
from cru.forecaster.scoring import errors_of
from cru.models.corrected import CorrectedModel
from cru.models.structural import StructuralModel
from cru.reporting.view_page import Detail, SeriesView, VariableView, choose_curve_times, thin_observations
from cru.shapes import Float

if TYPE_CHECKING:
    from cru.forecaster.estimator import Forecaster


@dataclass(frozen=True)
class SeriesViewConstants:
    """Sizes of the view of a series."""

    long_gap: float = 5.0  # a gap is shaded if it is longer than this many median gaps
    max_gaps: int = 100  # shaded gaps of a variable of a series
    min_component: float = 1e-3  # a component that varies less than this part of the mean is left out
    max_values: int = 2_000_000  # largest number of values predicted at once


SERIES_VIEW = SeriesViewConstants()
_EXPECTED, _P_VALUE, _ANOMALY = "expected", "p_value", "anomaly"  # results for each observation, in `per_time`


def add_anomaly_results(forecaster: "Forecaster", series: SeriesSet, *, polars: bool) -> SeriesSet:
    """Add the results of `Forecaster.anomalies` for every observation: mean, p-value and whether it is an anomaly.

    The series do not change if the model cannot predict from earlier observations alone.

    Args:
        forecaster: the fitted forecaster.
        series: the observations.
        polars: whether to compute with a polars frame.
    """
    if forecaster.errors_ is None:
        return series
    frame = nw.from_native(anomalies(forecaster, series, ANOMALY.level, polars=polars), eager_only=True)
    scored = {_EXPECTED: np.zeros(series.mask.shape), _P_VALUE: np.ones(series.mask.shape)}
    scored[_ANOMALY] = np.zeros(series.mask.shape, bool)
    for name, column in ((_EXPECTED, "mean"), (_P_VALUE, "p_value"), (_ANOMALY, "anomaly")):
        scored[name][np.nonzero(series.mask)] = frame[column].to_numpy()
    return dataclasses.replace(series, per_time={**series.per_time, **scored})


class SeriesMeasures(NamedTuple):
    """The sort keys of the map of gaps, for each series. NaN: unknown."""

    gap: Float[np.ndarray, " series"]  # longest time between two observations
    error: Float[np.ndarray, " series"]  # mean absolute error of withheld values, in standard deviations
    surprisal: Float[np.ndarray, " series"]  # mean of -log10(p-value) of its observations; 0.43 is usual
    anomalies: Float[np.ndarray, " series"]  # number of them

    @property
    def interest(self) -> np.ndarray:
        """The indices of the series, the most interesting first: a series counts by its best rank in any measure."""
        known = [each for each in self if np.isfinite(each).any()] or [np.zeros(len(self.gap))]
        ranks = [np.argsort(np.argsort(-np.nan_to_num(each, nan=-np.inf), kind="stable")) for each in known]
        best: np.ndarray = np.argsort(np.min(ranks, 0), kind="stable")
        return best


def measure_series(forecaster: "Forecaster", series: SeriesSet) -> SeriesMeasures:
    """Compute the measures of each series of `add_anomaly_results`. For errors, values are withheld as in training."""
    size, constant = len(series), forecaster.calibration_.constant
    gap = np.full(size, np.nan)
    same = np.diff(series.series_index) == 0
    np.fmax.at(gap, series.series_index[1:][same], np.diff(series.times)[same])
    scaled, seed = series.scaled_by(forecaster.scaler_), forecaster._plain_params()["seed"]
    inputs = {name: part for name, part in series.per_time.items() if name == INPUTS}
    errors = errors_of(forecaster.model_, dataclasses.replace(scaled, per_time=inputs), constant, seed=seed)

    def total(owner: np.ndarray, values: np.ndarray, counted: np.ndarray) -> np.ndarray:
        return np.bincount(owner, np.where(counted, values, 0).sum(1), minlength=size)

    with np.errstate(invalid="ignore", divide="ignore"):
        error = total(errors.owner, np.abs(errors.values - errors.mean), errors.counted)
        error /= total(errors.owner, errors.counted, errors.counted)
        surprisal = strange = np.full(size, np.nan)
        if _P_VALUE in series.per_time:
            bits = -np.log10(np.maximum(series.per_time[_P_VALUE], 1e-300))
            count = total(series.series_index, series.mask, series.mask)
            surprisal = total(series.series_index, bits, series.mask) / count
            strange = total(series.series_index, series.per_time[_ANOMALY], series.mask)
    return SeriesMeasures(gap, error, surprisal, strange)


def view_series(
    forecaster: "Forecaster",
    series: SeriesSet,
    whole: SeriesSet,
    detail: Detail,
    ahead: float,
    levels: Sequence[float],
) -> Iterator[SeriesView]:
    """Predict the curves of every series, some series at a time.

    Args:
        forecaster: the fitted forecaster.
        series: the series, from `add_anomaly_results`, without empty rows.
        whole: the same series with all rows.
        detail: the numbers of points and observations of a series.
        ahead: length of the forecast.
        levels: the levels of the intervals, in per cent.
    """
    longest = int(series.lengths.max(initial=1)) + detail.points
    size = max(1, SERIES_VIEW.max_values // (len(series.names) * longest))
    for start in range(0, len(series), size):
        chosen = np.arange(start, min(start + size, len(series)))
        some = series.take(chosen)
        at = [
            choose_curve_times(some.times[a:b], ahead, int(detail.curve_points(b - a)), causal=forecaster.model_.causal)
            for a, b in zip(some.offsets[:-1], some.offsets[1:], strict=True)
        ]
        query = forecaster.query(whole.take(chosen), at, hold=True)
        prediction = predict_curves(forecaster, query, levels)
        curves = np.stack([prediction.mean, *prediction.bounds.values()])  # (curve, row, variable)
        parts = decompose(forecaster, query) if has_components(forecaster) else None
        ends = np.cumsum([len(times) for times in at])
        for i, (times, end) in enumerate(zip(at, ends, strict=True)):
            own = slice(end - len(times), end)
            components = (
                {} if parts is None else dict(zip(parts.names, np.moveaxis(parts.mean[own], 2, 0), strict=True))
            )
            yield _view_one(some.take([i]), times, curves[:, own], components, detail, forecaster.gap_)


def predict_curves(forecaster: "Forecaster", query: Query, levels: Sequence[float]) -> CalibratedPrediction:
    """Predict the requested times of a query, with calibrated intervals at ``levels`` in per cent."""
    series = query.series.scaled_by(forecaster.scaler_)
    prediction = predict_scaled(forecaster.model_, series).take(query.rows)
    lead = lead_times(series, causal=forecaster.model_.causal)[query.rows]
    return calibrated(prediction, lead, scaler=forecaster.scaler_, calibration=forecaster.calibration_, levels=levels)


def has_components(forecaster: "Forecaster") -> bool:
    """Return whether `Forecaster.components` can divide a prediction."""
    return isinstance(forecaster.model_, StructuralModel | CorrectedModel)


def count_components(forecaster: "Forecaster") -> int:
    """Return the largest number of components of a prediction, with the seasonal mean and the correction."""
    model = forecaster.model_
    if not isinstance(model, StructuralModel | CorrectedModel):
        return 0
    return len(group_components(model.layer, forecaster.clock_).names) + 2


def _view_one(
    series: SeriesSet,
    times: Float[np.ndarray, " point"],
    curves: Float[np.ndarray, "curve point variable"],
    components: Mapping[str, Float[np.ndarray, "point variable"]],
    detail: Detail,
    gap: float,
) -> SeriesView:
    """Make the view of one series."""
    mask, values = series.mask, series.values.astype(np.float64)
    strange = series.per_time.get(_ANOMALY, np.zeros(mask.shape, bool))
    kept = mask & strange
    for k in range(mask.shape[1]):
        at = np.flatnonzero(mask[:, k])
        kept[at, k] |= thin_observations(values[at, k], detail.observations)
    used = np.flatnonzero(kept.any(1))
    variables = []
    for k in np.flatnonzero(mask.any(0)).tolist():
        at = np.flatnonzero(kept[used, k])
        rows = used[at]
        variables.append(
            VariableView(
                k,
                at,
                values[rows, k],
                curves[:, :, k],
                find_long_gaps(series.times[mask[:, k]], gap),
                {
                    printable(name): part[:, k]
                    for name, part in components.items()
                    if np.ptp(part[:, k]) > SERIES_VIEW.min_component * max(np.ptp(curves[0, :, k]), 1e-300)
                },
                [
                    (n, float(series.per_time[_EXPECTED][rows[n], k]), float(series.per_time[_P_VALUE][rows[n], k]))
                    for n in np.flatnonzero(strange[rows, k]).tolist()
                ],
            )
        )
    return SeriesView(series.ids[0], series.times[used], times, float(last_observation_times(series)[0]), variables)


def find_long_gaps(times: Float[np.ndarray, " n"], gap: float) -> Float[np.ndarray, "gap 2"]:
    """Return the start and end of each gap that is long for the table and for the variable.

    Args:
        times: the times of the observations of a variable of a series.
        gap: typical time between observations of the table.
    """
    gaps = np.diff(times)
    long = np.flatnonzero(gaps > SERIES_VIEW.long_gap * max(gap, float(np.median(gaps)) if len(gaps) else 0.0))
    longest = np.sort(long[np.argsort(-gaps[long], kind="stable")[: SERIES_VIEW.max_gaps]])
    return np.stack([times[longest], times[longest + 1]], 1)
