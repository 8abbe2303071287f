"""Features of the inputs besides the observations: known columns and their past, and static columns."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cru.data import SeriesSet
from cru.shapes import Bool, Float, Float64, Int64

KNOWN, INPUTS = "known", "inputs"  # keys of `SeriesSet.per_time`: known values, NaN for missing, and the features
STATIC = "static"  # key of `SeriesSet.per_series`: numbers or indices of categories, NaN for missing
LAST = "last"  # a fill: the last known value


@dataclass(frozen=True)
class InputConstants:
    """Constants of the features."""

    time_constants: tuple[float, ...] = (0.5, 2.0, 8.0)  # of the past of a known column, in typical gaps
    max_deviations: float = 8.0  # bound on features, in standard deviations
    min_scale_share: float = 0.2  # smallest scale of an event or indicator, as a share of its typical size


INPUT = InputConstants()

Fill = float | str | None  # a number, `LAST`, or None for a column that must have a value at every time
Known = Mapping[str, Fill]
Static = Mapping[str, tuple[str, ...] | None]  # categories of each column, None for numbers


class InputState(NamedTuple):
    """The state of a series that the features of later rows need."""

    time: Float64[Tensor, " batch"]  # of the last row
    value: Float64[Tensor, "batch known"]  # events: of the last row; levels: the last value; both minus the center
    past: Float64[Tensor, "batch known scale"]  # decayed sums or averages
    static: Float64[Tensor, "batch static"]  # as in `STATIC`, 0 for missing
    given: Bool[Tensor, "batch static"]  # whether each static column has a value


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The features of known and static columns, standardised on the training table.

    A known column whose fill is a number holds events, such as doses. Its features are the value u minus the fill, and
    decayed sums over the past: S(t) = Σ uᵢ exp(-(t - tᵢ) / τ) over all rows up to t. The last features are the same
    sums over the future. A model uses them only where it also has later observations.

    Every other known column holds levels, which last until the next row. Its features are the value x, and A - x for
    decayed averages A(t) = ∫ x(s) exp(-(t - s) / τ) ds / τ, which start at the first value.

    The features of a static column are its number, or one indicator for each category, and a flag for missing values. A
    missing value counts as the mean of the training table.
    """

    known: Known
    static: Static
    center: tuple[float, ...]  # of each known column: the fill of events, the mean of levels
    gap: float  # typical time between observations
    shift: tuple[float, ...]  # of each feature
    scale: tuple[float, ...]  # 0 for a feature that is constant in the training table, and not used

    @property
    def events(self) -> Bool[np.ndarray, " known"]:
        """Mask of the known columns that hold events."""
        return np.array([isinstance(fill, int | float) for fill in self.known.values()], bool)

    @property
    def later(self) -> int:
        """The number of features, the last ones, that describe the future."""
        return int(self.events.sum()) * len(INPUT.time_constants)

    @property
    def size(self) -> int:
        """The number of features."""
        return len(self.shift)

    @property
    def expected_size(self) -> int:
        """The number of features of the columns."""
        static = sum(2 if categories is None else len(categories) + 1 for categories in self.static.values())
        return len(self.known) * (1 + len(INPUT.time_constants)) + static + self.later

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that JSON stores, except the columns, which `Columns` has."""
        return {"center": list(self.center), "gap": self.gap, "shift": list(self.shift), "scale": list(self.scale)}

    @staticmethod
    def fit(series: SeriesSet, known: Known, static: Static, gap: float) -> "Inputs":
        """Standardise the features of a training table.

        Args:
            series: series with the known values in ``per_time`` and the static values in ``per_series``.
            known: the known columns and their fills.
            static: the static columns and their categories.
            gap: typical time between observations.
        """
        values = series.per_time[KNOWN]
        fills = [float(fill) if isinstance(fill, int | float) else None for fill in known.values()]
        center = tuple(
            fill if fill is not None else float(np.nanmean(column)) if np.isfinite(column).any() else 0.0
            for fill, column in zip(fills, values.T, strict=True)
        )
        made = Inputs(known=known, static=static, center=center, gap=gap, shift=(), scale=())
        raw, _ = made._raw(series, None)
        there = np.isfinite(raw).any(0)
        mean, std = np.zeros(raw.shape[1]), np.zeros(raw.shape[1])
        mean[there], std[there] = np.nanmean(raw[:, there], 0), np.nanstd(raw[:, there], 0)
        varies = std > 1e-9 * np.abs(mean)
        least = INPUT.min_scale_share * made._typical(values - np.array(center))
        scale = np.where(varies, np.maximum(std, least), 0.0)
        return dataclasses.replace(made, shift=tuple(mean.tolist()), scale=tuple(scale.tolist()))

    def encode(self, series: SeriesSet, before: InputState | None = None) -> SeriesSet:
        """Add the features to ``per_time``. See `advance` for the arguments."""
        return self.advance(series, before)[0]

    def advance(self, series: SeriesSet, before: InputState | None = None) -> tuple[SeriesSet, InputState]:
        """Add the features to ``per_time``, and return the state after the last rows.

        Args:
            series: series with the known values in ``per_time`` and the static values in ``per_series``.
            before: the state of each series before its first row. None: there are no earlier rows.
        """
        raw, after = self._raw(series, before)
        scale = np.array(self.scale)
        used = (scale > 0) & np.isfinite(raw)
        features = np.where(used, (raw - self.shift) / np.where(scale > 0, scale, 1.0), 0.0).clip(
            -INPUT.max_deviations, INPUT.max_deviations
        )
        return dataclasses.replace(series, per_time={**series.per_time, INPUTS: features}), after

    def _typical(self, values: Float[np.ndarray, "row known"]) -> Float[np.ndarray, " feature"]:
        """Return the typical size of each feature that is rarely different from 0: an event or an indicator."""
        size = np.zeros(len(self.known))
        for k in np.flatnonzero(self.events):
            column = values[np.isfinite(values[:, k]), k]
            size[k] = np.sqrt(np.mean(column[column != 0] ** 2)) if (column != 0).any() else 0.0
        indicators = [[0.0, 1.0] if found is None else [1.0] * (len(found) + 1) for found in self.static.values()]
        sums = np.repeat(size, len(INPUT.time_constants))
        return np.concatenate([size, sums, *indicators, np.repeat(size[self.events], len(INPUT.time_constants))])

    def _raw(self, series: SeriesSet, before: InputState | None) -> tuple[Float[np.ndarray, "row feature"], InputState]:
        """Compute the features before they are standardised, NaN for missing, and the state after the last rows."""
        # Each series has one more row before its first: the state before.
        rows, size, width, events = len(series.times), len(series), len(self.known), self.events
        place = np.arange(rows) + series.series_index + 1
        start, end = (series.offsets[side] + np.arange(size) for side in (slice(None, -1), slice(1, None)))
        first = np.minimum(start + 1, rows + size - 1)  # row of each series, if it has any
        time, value = np.zeros(rows + size), np.full((rows + size, width), np.nan)
        time[place], value[place] = series.times, series.per_time[KNOWN] - np.array(self.center)
        time[start] = np.where(series.lengths > 0, time[first], 0.0)
        past = np.zeros((size, width, len(INPUT.time_constants)))
        if before is not None:
            time[start], value[start], past = before.time.numpy(), before.value.numpy(), before.past.numpy()
        # A first row at the time of the state is the same row again. Its events replace those of the state.
        again = np.flatnonzero((series.lengths > 0) & (time[first] == time[start])) if before is not None else start[:0]
        old, row = value[start[again]], first[again]
        value[row] = np.where(np.isnan(value[row]), old, value[row])
        value[:, events] = np.nan_to_num(value[:, events])
        value[:, ~events] = _filled(value[:, ~events], start)
        if before is None:
            past[:, ~events] = np.where(series.lengths[:, None] > 0, value[first], 0.0)[:, ~events, None]
        added = value.copy()
        added[row] -= np.where(events, old, 0.0)
        trace = self._decayed(time, added, past, start)
        end_values = np.repeat(value[end[::-1], :, None], len(INPUT.time_constants), 2)
        backward = self._decayed(-time[::-1], value[::-1], end_values, rows + size - 1 - end[::-1])[::-1]
        coming = backward - value[..., None]
        static = self._static(series, before)
        raw = [
            value[place],
            (trace - np.where(events, 0.0, value)[..., None])[place].reshape(rows, width * len(INPUT.time_constants)),
            self._described(static)[series.series_index],
            coming[place][:, events].reshape(rows, self.later),
        ]
        kept = time[end], value[end], trace[end], np.nan_to_num(static), np.isfinite(static)
        return np.concatenate(raw, 1), InputState(*map(torch.from_numpy, kept))

    def _decayed(
        self,
        time: Float[np.ndarray, " row"],
        value: Float[np.ndarray, "row known"],
        past: Float[np.ndarray, "series known scale"],
        start: Int64[np.ndarray, " series"],
    ) -> Float[np.ndarray, "row known scale"]:
        """Return decayed sums of events and decayed averages of levels. They are ``past`` in the rows of ``start``."""
        gaps = np.maximum(np.diff(time, prepend=0.0), 0.0)
        found = np.empty((*value.shape, len(INPUT.time_constants)))
        for number, scale in enumerate(INPUT.time_constants):
            decay = np.exp(-gaps / (scale * self.gap))
            decay[start] = 0.0
            for k, event in enumerate(self.events):
                new = value[:, k].copy() if event else (1 - decay) * np.append(0.0, value[:-1, k])
                new[start] = past[:, k, number]
                found[:, k, number] = _scan(decay, new)
        return found

    def _static(self, series: SeriesSet, before: InputState | None) -> Float[np.ndarray, "series static"]:
        """Return the static values of each series. Where the table has none, they are those of the earlier state."""
        static = series.per_series[STATIC]
        if before is None:
            return np.asarray(static, np.float64)
        earlier = np.where(before.given.numpy(), before.static.numpy(), np.nan)
        return np.where(np.isfinite(static), static, earlier)

    def _described(self, static: Float[np.ndarray, "series static"]) -> Float[np.ndarray, "series feature"]:
        """Return numbers or indicators, and a flag for missing values, of each static column."""
        parts = [np.zeros((len(static), 0))]
        for column, categories in zip(static.T, self.static.values(), strict=True):
            missing = np.isnan(column)[:, None]
            codes = column[:, None] == np.arange(len(categories or ()))
            parts += [column[:, None] if categories is None else np.where(missing, np.nan, codes), missing]
        return np.concatenate(parts, 1)


def _filled(value: Float[np.ndarray, "row column"], start: np.ndarray) -> Float[np.ndarray, "row column"]:
    """Replace NaN by the last value of the same series, and by 0 before the first one."""
    rows = np.arange(len(value))[:, None]
    given = np.where(np.isnan(value), 0, rows)
    given[start] = start[:, None]
    filled: np.ndarray = np.nan_to_num(np.take_along_axis(value, np.maximum.accumulate(given, 0), 0))
    return filled


def _scan(decay: Float[np.ndarray, " row"], new: Float[np.ndarray, " row"]) -> Float[np.ndarray, " row"]:
    """Return s with s[k] = decay[k] s[k - 1] + new[k], where decay[0] is 0. Each pass doubles the reach of a row.

    >>> from cru.forecaster.inputs import _scan
    >>> _scan(np.array([0.0, 0.5, 0.5, 0.0]), np.ones(4))
    array([1.  , 1.5 , 1.75, 1.  ])
    """
    decay, total, step = decay.copy(), new.astype(np.float64), 1
    while step < len(decay) and decay[step:].any():
        total[step:] += decay[step:] * total[:-step]
        decay[step:] = decay[step:] * decay[:-step]
        step *= 2
    return total
