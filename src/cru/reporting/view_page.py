"""The page of a table and its model: observations, curves, gaps and scores in one self-contained HTML file.

The script of the page decodes one series at a time. So a page of 1 000 series opens and changes series quickly.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from cru.models.registry import NAIVE
from cru.reporting.html_page import make_page, number
from cru.shapes import Bool, Float, Float64, Int64

VIEW_SCRIPTS = (
    "dom.js",
    "scale.js",
    "chart.js",
    "dates.js",
    "decode.js",
    "explorer.js",
    "gap_map.js",
    "quality.js",
    "view.js",
)


@dataclass(frozen=True)
class ViewSettings:
    """Sizes of the page of a table."""

    map_columns: tuple[int, int] = (24, 160)  # fewest and most columns of a series in the map of gaps
    curve_points: tuple[int, int] = (48, 4000)  # fewest and most points of a curve
    series_bytes: int = 15_000_000  # size of all series, so that a page stays below 20 MB
    map_series: int = 10_000  # largest number of series in the map of gaps
    short_curve: int = 300  # points of a curve that are enough for a short series
    time_ticks: int = 2**32 - 1  # a time is stored as a 32-bit number of ticks
    missing: int = 2**16 - 1  # a missing value of a curve; the other 16-bit numbers divide its range
    overhead_bytes: int = 300  # names and brackets of a series or a variable
    exact_decimals: int = (
        4  # observations with at most so many decimals are stored exactly in 16 bits, if their range allows it
    )


SETTINGS = ViewSettings()


class Detail(NamedTuple):
    """The numbers of points and observations of a series on the page."""

    points: int  # largest number of points of a curve
    observations: int  # largest number of observations of a variable

    @staticmethod
    def of(points: int) -> "Detail":
        """Return the detail of curves with at most ``points`` points."""
        return Detail(points, 3 * points)

    def curve_points(self, rows: Any) -> Any:
        """Return the number of points of the curves of series with ``rows`` time points, a number or an array."""
        return np.minimum(self.points, np.maximum(SETTINGS.short_curve, 2 * rows))


@dataclass(frozen=True)
class VariableView:
    """One variable of a series: observations, and curves at the times of `SeriesView.curve_times`."""

    variable: int
    at: Int64[np.ndarray, " observation"]  # rows of the observations in `SeriesView.times`
    values: Float[np.ndarray, " observation"]
    curves: Float[np.ndarray, "curve point"]  # mean, then the lower and upper bound of each level
    gaps: Float[np.ndarray, "gap 2"]  # start and end of each long gap
    components: Mapping[str, Float[np.ndarray, " point"]] = field(default_factory=dict)  # mean of each, by name
    anomalies: Sequence[tuple[int, float, float]] = ()  # position in `at`, expected mean, p-value


@dataclass(frozen=True)
class SeriesView:
    """One series of the page: its id, the times of observations and curves, and its variables."""

    id: str
    times: Float64[np.ndarray, " row"]  # of the shown observations
    curve_times: Float64[np.ndarray, " point"]
    last: float  # time of the last observation, where the forecast starts
    variables: Sequence[VariableView] = field(default_factory=tuple)


class TimeAxis(NamedTuple):
    """The encoding of times as 32-bit numbers of ticks after the first one."""

    first: float
    tick: float

    @staticmethod
    def of(first: float, last: float) -> "TimeAxis":
        """Make an axis from ``first`` to ``last``."""
        return TimeAxis(first, max(last - first, 1e-9) / SETTINGS.time_ticks)

    def ticks(self, times: Float[np.ndarray, " n"]) -> str:
        """Encode times."""
        return _base64(np.clip(np.rint((times - self.first) / self.tick), 0, SETTINGS.time_ticks).astype("<u4"))


def render_view(data: Mapping[str, Any]) -> str:
    """Make the HTML page of ``data`` from `cru.forecaster.view_data.collect`."""
    constants = {"missing": SETTINGS.missing, "naive": list(NAIVE)}
    return make_page(str(data["title"]), {**data, **constants}, VIEW_SCRIPTS)


def encode_series(series: SeriesView, axis: TimeAxis) -> dict[str, Any]:
    """Encode the details of a series for the page."""
    return {
        "times": axis.ticks(series.times),
        "points": axis.ticks(series.curve_times),
        "last": number(series.last, 12),
        "variables": [_encode_variable(one, len(series.times), axis) for one in series.variables],
    }


def _encode_variable(one: VariableView, rows: int, axis: TimeAxis) -> dict[str, Any]:
    everywhere = len(one.at) == rows
    return {
        "variable": one.variable,
        "at": None if everywhere else _base64(one.at.astype("<u4" if rows > 2**16 else "<u2")),
        "wide": rows > 2**16,
        "values": encode_values(one.values),
        "curves": encode_curves(one.curves),
        "gaps": axis.ticks(one.gaps.ravel()),
        "components": [{"name": name, **encode_curves(curve[None])} for name, curve in one.components.items()],
        "anomalies": [[at, number(mean), number(p, 3)] for at, mean, p in one.anomalies],
    }


def encode_values(values: Float[np.ndarray, " n"]) -> dict[str, Any]:
    """Encode observations: exactly in 16 bits if they have few decimals, otherwise as 32-bit floats.

    >>> from cru.reporting.view_page import encode_values
    >>> encode_values(np.array([20.1, 20.3]))
    {'low': 20.1, 'step': 0.1, 'code': 'AAACAA=='}
    """
    low = float(values.min(initial=np.inf))
    for decimals in range(SETTINGS.exact_decimals + 1):
        scaled = (values - low) * 10**decimals
        exact = np.rint(scaled)
        if len(values) and exact.max() < SETTINGS.missing and (np.abs(scaled - exact) < 1e-6).all():
            step = float(f"1e-{decimals}")
            return {"low": number(low, 15), "step": number(step), "code": _base64(exact.astype("<u2"))}
    return {"code": _base64(values.astype("<f4"))}


def encode_curves(curves: Float[np.ndarray, "curve point"]) -> dict[str, Any]:
    """Encode curves in 16 bits each, as parts of their common range. NaN means missing."""
    known = np.isfinite(curves)
    low, high = (float(edge) for edge in (curves[known].min(), curves[known].max())) if known.any() else (0.0, 0.0)
    step = (high - low) / (SETTINGS.missing - 1)
    parts = np.rint((np.where(known, curves, low) - low) / (step or 1.0))
    code = _base64(np.where(known, parts, SETTINGS.missing).astype("<u2"))
    return {"low": number(low, 9), "step": number(step, 9), "code": code}


def encode_bins(times: Float[np.ndarray, " row"], bins: int, full: float) -> str:
    """Encode the density of the observations in equal parts of the time span of a series, as bytes from 0 to 255.

    Args:
        times: the times of the observations, one entry for each observed value.
        bins: number of parts.
        full: number of values in a part that counts as dense.
    """
    count = np.histogram(times, bins)[0] if len(times) else np.zeros(bins)
    density = np.where(
        count > 0, np.clip(75 + 60 * np.rint(3 * count / full), 75, 255), 0
    )  # few steps, which draws fast
    return _base64(density.astype(np.uint8))


def choose_detail(
    rows: Int64[np.ndarray, " series"],
    counts: Int64[np.ndarray, "series variable"],
    *,
    curves: int,
    size: int,
) -> tuple[Detail, int]:
    """Choose the numbers of points and observations of a series that fit into a page.

    Args:
        rows: number of time points of each series.
        counts: number of observations of each series and variable.
        curves: number of curves of a variable, with components.
        size: the largest size in bytes.

    Returns:
        The finest detail that fits, and the number of series that fit.
    """
    observed = (counts > 0).sum(1)

    def sizes(detail: Detail) -> np.ndarray:
        kept, points = np.minimum(counts, detail.observations).sum(1), detail.curve_points(rows)
        numbers = 4 * np.minimum(rows, kept) + 4 * points + 4 * kept + 2 * points * curves * observed
        found: np.ndarray = 4 / 3 * numbers + SETTINGS.overhead_bytes * (1 + observed)
        return found

    least, most = SETTINGS.curve_points
    if sizes(Detail.of(least)).sum() > size:
        return Detail.of(least), max(1, int(np.searchsorted(np.cumsum(sizes(Detail.of(least))), size)))
    while most > least:  # bisection
        middle = (least + most + 1) // 2
        least, most = (middle, most) if sizes(Detail.of(middle)).sum() <= size else (least, middle - 1)
    return Detail.of(least), len(rows)


def thin_observations(values: Float[np.ndarray, " n"], most: int) -> Bool[np.ndarray, " n"]:
    """Choose at most ``most`` observations: the smallest and the largest value of equal parts, the first and the last.

    >>> from cru.reporting.view_page import thin_observations
    >>> thin_observations(np.array([1.0, 9.0, 2.0, 3.0, -5.0, 4.0, 4.0, 4.0]), 6).tolist()
    [True, True, False, False, True, True, False, True]
    """
    if len(values) <= most:
        return np.ones(len(values), bool)
    kept = np.zeros(len(values), bool)
    for part in np.array_split(np.arange(len(values)), max(1, most // 2 - 1)):
        kept[[part[values[part].argmin()], part[values[part].argmax()]]] = True
    kept[[0, -1]] = True
    return kept


def choose_curve_times(
    times: Float64[np.ndarray, " row"], ahead: float, points: int, *, causal: bool
) -> Float64[np.ndarray, " point"]:
    """Choose the times of the curves: times of observations, the inside of long gaps, and a forecast.

    Args:
        times: the times of the observations of a series, sorted.
        ahead: length of the forecast.
        points: largest number of times.
        causal: whether the model runs forward. Its curve jumps at an observation, so times just before it are added.
    """
    seen = np.unique(times)
    if not len(seen):
        return seen
    forecast = min(max(8, points // 5), points // 2)
    history = points - forecast
    seen = _thin_times(seen, max(2, 2 * history // 3))
    inside = [seen]
    gaps = np.diff(seen)
    if causal and 3 * len(seen) <= history:
        inside.append(seen[1:] - 1e-3 * gaps)
    extra = history - sum(map(len, inside))
    count = np.floor(extra * gaps / max(float(gaps.sum()), 1e-300)).astype(int)
    for start, gap, n in zip(seen, gaps, count, strict=False):
        inside.append(start + gap * np.arange(1, n + 1) / (n + 1))
    inside.append(seen[-1] + ahead * np.arange(1, forecast + 1) / forecast)
    return np.unique(np.concatenate(inside))


def _thin_times(seen: np.ndarray, most: int) -> np.ndarray:
    """Select at most ``most`` times: the edges of the longest gaps, and others at equal distances in the list."""
    if len(seen) <= most:
        return seen
    longest = np.argsort(-np.diff(seen), kind="stable")[: most // 8]
    even = np.linspace(0, len(seen) - 1, most - 2 * len(longest)).round().astype(int)
    kept: np.ndarray = seen[np.unique(np.concatenate([even, longest, longest + 1]))]
    return kept


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()
