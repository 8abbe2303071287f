"""Many irregular series of different lengths in memory, as flat arrays with offsets."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, overload

import numpy as np
import torch

from cru.data.batch import Batch
from cru.data.scaler import Scaler
from cru.errors import InputError, literal
from cru.shapes import Bool, Float64, Int, Int64, Shaped

SHORT_SERIES = 100  # time points; padding shorter series costs little


class Task(NamedTuple):
    """Properties of a task that the tensors do not contain.

    Attributes:
        name: the name of the task.
        likelihood: the distribution of the targets.
        scored: the target entries of the main score: ``"all"``, or only the ``"hidden"`` ones.
        causal: whether a model must not use later inputs, as attention over all time points does.
    """

    name: str
    likelihood: Literal["gaussian", "bernoulli"] = "gaussian"
    scored: Literal["all", "hidden"] = "all"
    causal: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class SeriesSet:
    """Irregular series, each with its own times.

    A row is one time point. Series ``i`` consists of the rows ``offsets[i]:offsets[i + 1]``.

    Images are uint8, with one mask entry per frame. A batch converts them to floats in [0, 1]. Missing entries are 0,
    and their mask is False, so that no NaN reaches a model. The functions of :mod:`cru.data.tasks` set ``targets``,
    ``target_mask``, ``hidden`` and ``task``. Times are numbers in ``time_unit``. If they were dates, ``origin`` is the
    date of time 0.

    To make one, call :func:`cru.data.from_table`, :func:`cru.data.from_arrays` or :func:`make_series`.
    """

    times: Float64[np.ndarray, " row"]
    values: Shaped[np.ndarray, "row *feature"]
    mask: Bool[np.ndarray, "row *mask"]
    offsets: Int64[np.ndarray, " bound"]
    ids: tuple[str, ...]
    names: tuple[str, ...]
    units: tuple[str, ...] = ()
    time_unit: str = ""
    origin: str | None = None
    targets: Shaped[np.ndarray, "row *target"] | None = None
    target_mask: Bool[np.ndarray, "row *target_mask"] | None = None
    hidden: Bool[np.ndarray, "row *target_mask"] | None = None
    task: Task | None = None
    scaler: Scaler | None = None
    per_time: Mapping[str, Shaped[np.ndarray, "row ..."]] = field(default_factory=dict)
    per_series: Mapping[str, Shaped[np.ndarray, "series ..."]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> Int64[np.ndarray, " series"]:
        """Number of time points of each series."""
        return np.diff(self.offsets)

    @property
    def series_index(self) -> Int64[np.ndarray, " row"]:
        """The number of the series that each row belongs to."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def step_index(self) -> Int64[np.ndarray, " row"]:
        """The position of each row within its series."""
        position: np.ndarray = np.arange(len(self.times)) - np.repeat(self.offsets[:-1], self.lengths)
        return position

    @property
    def is_image(self) -> bool:
        """Whether the values are images (channel, height, width) instead of vectors of features."""
        return self.values.ndim > 2

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the values at one time point: (features,) or (channel, height, width)."""
        return self.values.shape[1:]

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of the targets at one time point. It is (0,) without a task."""
        return self.targets.shape[1:] if self.targets is not None else (0,)

    def take(self, indices: Sequence[int] | Int[np.ndarray, " n"]) -> "SeriesSet":
        """Select series, in the given order."""
        chosen = _numbers(indices)
        return self.excerpts(chosen, np.zeros_like(chosen), self.lengths[chosen])

    def excerpts(
        self,
        indices: Sequence[int] | Int[np.ndarray, " n"],
        start: Int[np.ndarray, " n"],
        length: Int[np.ndarray, " n"],
    ) -> "SeriesSet":
        """Select a part of each given series. A series can repeat.

        Args:
            indices: the numbers of the series.
            start: the first time point of each part.
            length: the number of time points of each part.
        """
        chosen = _numbers(indices)
        offsets = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
        rows = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][chosen] + start - offsets[:-1], length)
        return dataclasses.replace(
            self.take_rows(rows, offsets),
            ids=tuple(self.ids[i] for i in chosen),
            per_series={name: a[chosen] for name, a in self.per_series.items()},
        )

    def first(self, count: int | None) -> "SeriesSet":
        """Select the first ``count`` series, or all series if ``count`` is None."""
        if count is None:
            return self
        if count < 1:
            raise InputError("count", "be at least 1", count)
        return self.take(range(min(count, len(self))))

    def take_rows(self, rows: Int[np.ndarray, " n"], offsets: Int64[np.ndarray, " bound"]) -> "SeriesSet":
        """Select time points. ``offsets`` are the new bounds of the series."""
        per_row = {
            name: getattr(self, name) for name in ("times", "values", "mask", "targets", "target_mask", "hidden")
        }
        return dataclasses.replace(
            self,
            offsets=offsets,
            per_time={name: a[rows] for name, a in self.per_time.items()},
            **{name: a[rows] for name, a in per_row.items() if a is not None},
        )

    def keep(self, rows: Bool[np.ndarray, " row"]) -> "SeriesSet":
        """Select the time points at which ``rows`` is True."""
        return self.take_rows(np.flatnonzero(rows), np.concatenate([[0], np.cumsum(rows)])[self.offsets])

    def hide(self, entries: Bool[np.ndarray, "row *feature"]) -> "SeriesSet":
        """Set entries to missing."""
        mask = self.mask & ~entries
        values = np.where(mask, self.values, self.values.dtype.type(0))
        return dataclasses.replace(self, values=values, mask=mask)

    def scaled_by(self, scaler: Scaler) -> "SeriesSet":
        """Scale the values, and attach the scaler for the inverse. Missing entries stay 0."""
        if self.task is not None:
            rule = "be scaled before its task is chosen: its targets are in the old units"
            raise InputError("series", rule)
        if self.input_shape != (len(scaler.shift),):
            found = f"it has {len(scaler.shift)}, the series {self.input_shape}"
            raise InputError("scaler", f"have been fitted on the same features: {found}")
        scaled = np.where(self.mask, scaler.transform(self.values), self.values.dtype.type(0))
        return dataclasses.replace(self, values=scaled, scaler=scaler)

    def largest_batch(self, size: int) -> tuple[int, int]:
        """Return the number of series and of time points in the largest batch of ``size`` series."""
        return min(size, len(self)), int(self.lengths.max(initial=0))

    def batch(self, indices: Sequence[int] | Int[np.ndarray, " n"], *, dtype: torch.dtype = torch.float32) -> Batch:
        """Make a padded :class:`~cru.data.Batch` of the given series. Without a task, its targets have no entries."""
        chosen = _numbers(indices)
        first = self.offsets[:-1][chosen]
        lengths = self.offsets[1:][chosen] - first
        steps = np.arange(max(1, lengths.max(initial=0)))
        valid = steps < lengths[:, None]
        # Padding copies the last time point. An empty series copies row 0, which is then set to 0.
        last = np.minimum(steps, np.maximum(lengths - 1, 0)[:, None])
        rows = np.where(lengths[:, None] > 0, first[:, None] + last, 0)

        def pad(flat: np.ndarray, *, blank: bool = True) -> torch.Tensor:
            if len(flat) == 0:
                padded = np.zeros((*rows.shape, *flat.shape[1:]), flat.dtype)
            else:
                padded = flat[rows]
                padded[~valid if blank else np.broadcast_to(lengths[:, None] == 0, valid.shape)] = 0
            tensor = torch.from_numpy(padded)
            if flat.dtype == np.uint8 and flat.ndim > 2:  # images
                return tensor.to(dtype) / 255
            return tensor.to(dtype) if tensor.is_floating_point() and flat is not self.times else tensor

        empty = np.zeros((len(self.times), 0), np.float32)
        nothing = np.zeros((len(self.times), 0), bool)
        return Batch(
            times=pad(self.times, blank=False),
            values=pad(self.values),
            mask=pad(self.mask),
            targets=pad(empty if self.targets is None else self.targets),
            target_mask=pad(nothing if self.target_mask is None else self.target_mask),
            hidden=pad(nothing if self.hidden is None else self.hidden),
            lengths=torch.from_numpy(lengths),
            ids=tuple(self.ids[i] for i in chosen),
            extras={name: pad(a) for name, a in self.per_time.items()},
        )

    def batches(
        self, size: int, *, rng: np.random.Generator | None = None, dtype: torch.dtype = torch.float32
    ) -> Iterator[Batch]:
        """Iterate over batches of series.

        Args:
            size: the number of series in a batch. The last batch can be smaller.
            rng: the generator that shuffles the series. None: in order.
            dtype: the type of values and targets.

        Raises:
            InputError: ``size`` is below 1.
        """
        if size < 1:
            raise InputError("size", "be at least 1", size)
        order = np.arange(len(self)) if rng is None else rng.permutation(len(self))
        for start in range(0, len(order), size):
            yield self.batch(order[start : start + size], dtype=dtype)

    def batches_by_length(
        self, size: int, *, dtype: torch.dtype = torch.float32
    ) -> Iterator[tuple[Batch, Int64[np.ndarray, " row"]]]:
        """Iterate over batches of at most ``size`` series of similar lengths. Empty series are left out.

        Yields:
            A batch, and the row of each time point ``batch.valid``.
        """
        kept = np.flatnonzero(self.lengths)
        for group in group_by_length(self.lengths[kept], size):
            chosen = kept[group]
            batch = self.batch(chosen, dtype=dtype)
            valid = batch.valid.numpy()
            yield batch, (self.offsets[chosen][:, None] + np.arange(valid.shape[1]))[valid]


def group_by_length(lengths: Int[np.ndarray, " n"], most: int) -> Iterator[Int64[np.ndarray, " k"]]:
    """Group series of similar length, shortest first, into groups of at most ``most``.

    Padding at most doubles the size of a group. Series shorter than `SHORT_SERIES` count as that long.

    >>> from cru.data.series import group_by_length
    >>> [group.tolist() for group in group_by_length(np.array([150, 9000, 120, 130]), 2)]
    [[2, 3], [0], [1]]
    """
    order, first = np.argsort(lengths, kind="stable"), 0
    sizes = np.maximum(lengths[order], SHORT_SERIES)
    for last in range(1, len(order) + 1):
        if last == len(order) or last - first == most or sizes[last] > 2 * sizes[first]:
            yield order[first:last]
            first = last


def series_of_row(row: int, offsets: Int64[np.ndarray, " bound"]) -> int:
    """Return the number of the series that a row belongs to."""
    return int(np.searchsorted(offsets, row, side="right")) - 1


def make_series(
    times: Shaped[np.ndarray, " ..."],
    values: Shaped[np.ndarray, " ..."],
    offsets: Int[np.ndarray, " ..."],
    *,
    ids: Sequence[object],
    names: Sequence[str],
    units: Sequence[str] = (),
    time_unit: str = "",
    origin: str | None = None,
    per_time: Mapping[str, np.ndarray] | None = None,
    per_series: Mapping[str, np.ndarray] | None = None,
) -> SeriesSet:
    """Check flat arrays and make a :class:`SeriesSet` of them.

    Args:
        times: the time of each row, ascending within each series.
        values: a row for each time and a column for each variable. NaN: missing.
        offsets: the first row of each series, then the number of rows.
        ids: a name for each series.
        names: a name for each variable.
        units: the units of the variables.
        time_unit: the unit of the times.
        origin: the date of time 0, if the times were dates.
        per_time: other arrays with an entry for each row, such as the labels of a regression. NaN: unknown.
        per_series: arrays with an entry for each series.

    Raises:
        ValueError: the sizes do not agree, times decrease, or a number is infinite.

    >>> from cru.data import make_series
    >>> made = make_series(np.array([0.0, 1.5]), np.array([[1.0], [np.nan]]), np.array([0, 2]), ids=["a"], names=["x"])
    >>> made.mask.tolist()
    [[True], [False]]
    """
    per_time, per_series = per_time or {}, per_series or {}
    times, offsets = as_times(times), offsets.astype(np.int64, copy=False)
    _check_sizes(times, values, offsets, ids=ids, names=names, units=units, per_time=per_time, per_series=per_series)
    columns = [("values", name, values[:, k]) for k, name in enumerate(names)]
    columns += [("per_time", name, a) for name, a in per_time.items() if a.dtype.kind == "f"]
    for argument, name, column in columns:
        infinite = np.isinf(column).any(axis=tuple(range(1, column.ndim)))
        if infinite.any():
            row = int(infinite.argmax())
            found, time = f"an infinity in series {ids[series_of_row(row, offsets)]}", float(times[row])
            raise InputError(argument, "be finite, with NaN for missing", found, column=name, time=time)
    if not np.isfinite(times).all():
        raise InputError("times", f"be finite: {(~np.isfinite(times)).sum()} of {len(times)} are not")
    falls = np.diff(times) < 0
    starts = offsets[1:-1]
    falls[starts[(starts > 0) & (starts < len(times))] - 1] = False  # the next series may begin earlier
    if falls.any():
        row = int(falls.argmax())
        series = series_of_row(row, offsets)
        found = f"series {ids[series]} goes from {times[row]:g} to {times[row + 1]:g}"
        rule = literal(f"not decrease: {found} at step {row + 1 - int(offsets[series])}")
        raise InputError("times", rule, hint="Sort each series by time.")
    mask = ~np.isnan(values)
    kept = values if values.dtype in (np.float32, np.float64) else values.astype(np.float64)
    return SeriesSet(
        times=times,
        values=np.where(mask, kept, kept.dtype.type(0)),
        mask=mask,
        offsets=offsets,
        ids=tuple(str(i) for i in ids),
        names=tuple(names),
        units=tuple(units),
        time_unit=time_unit,
        origin=origin,
        per_time=per_time,
        per_series=per_series,
    )


def as_times(times: object, argument: str = "times") -> Float64[np.ndarray, "..."]:
    """Convert times to float64. Raise InputError for dates, because their unit is unknown."""
    array = np.asarray(times)
    if array.dtype.kind not in "fiu":
        example = "(dates - dates.min()) / np.timedelta64(1, 'h')"
        hint = f"Give dates as a count since one moment, such as {example}."
        raise InputError(argument, "be numbers", array.dtype, hint)
    return array.astype(np.float64, copy=False)


def _numbers(indices: Sequence[int] | Int[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Convert the numbers of selected series to an array. Raise InputError for a mask."""
    chosen = np.asarray(indices)
    if chosen.dtype == bool:
        raise InputError("indices", "be the numbers of series", "a mask: take np.flatnonzero(mask)")
    return chosen.astype(np.int64)


def _check_sizes(
    times: np.ndarray,
    values: np.ndarray,
    offsets: np.ndarray,
    *,
    ids: Sequence[object],
    names: Sequence[str],
    units: Sequence[str],
    per_time: Mapping[str, np.ndarray],
    per_series: Mapping[str, np.ndarray],
) -> None:
    """Check that all arrays have the same number of rows, variables and series."""
    if times.ndim != 1:
        raise InputError("times", "have one dimension", f"shape {times.shape}")
    rows = len(times)
    if values.ndim != 2 or len(values) != rows or values.dtype.kind not in "fiub":
        rule = f"hold numbers of shape (row, feature) with a row for each of the {rows} times"
        raise InputError("values", rule, f"{values.dtype} {values.shape}")
    if len(names) != values.shape[1]:
        raise InputError("names", f"name the {values.shape[1]} columns of {{values}}", len(names))
    if len(units) not in (0, len(names)):
        raise InputError("units", f"be empty or as many as the {len(names)} {{names}}", len(units))
    if offsets.shape != (len(ids) + 1,):
        rule = f"have one entry more than the {len(ids)} {{ids}}, where each series begins and the last one ends"
        raise InputError("offsets", rule, f"shape {offsets.shape}")
    if offsets[0] != 0 or offsets[-1] != rows or (np.diff(offsets) < 0).any():
        fall = ", with a fall between" if (np.diff(offsets) < 0).any() else ""
        rule = f"rise from 0 to the number of rows, {rows}"
        raise InputError("offsets", rule, f"{offsets[0]} to {offsets[-1]}{fall}")
    for argument, arrays, count in (("per_time", per_time, rows), ("per_series", per_series, len(ids))):
        for name, array in arrays.items():
            if len(array) != count:
                raise InputError(argument, f"have {count} entries", len(array), column=name)


class Batches(Sequence[Batch]):
    """The batches of a set of series, in order. Each batch is made on access."""

    def __init__(self, series: SeriesSet, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.series, self.size, self.dtype, self.device = series, size, dtype, device

    def __len__(self) -> int:
        return -(-len(self.series) // self.size)

    @overload
    def __getitem__(self, index: int) -> Batch: ...
    @overload
    def __getitem__(self, index: slice) -> list[Batch]: ...
    def __getitem__(self, index: int | slice) -> Batch | list[Batch]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        start = range(len(self))[index] * self.size
        chosen = range(start, min(start + self.size, len(self.series)))
        return self.series.batch(chosen, dtype=self.dtype).to(self.device)
