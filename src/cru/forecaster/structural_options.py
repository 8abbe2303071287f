"""The options of the structural model that follow from a table: time constants, periods and logarithmic scales."""

import dataclasses
import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from cru.data import Scaler, SeriesSet
from cru.forecaster.clock import Clock, find_calendar
from cru.forecaster.kinds import KIND_INFERENCE, Kinds, skewness
from cru.forecaster.masking import make_training_task
from cru.forecaster.table_io import median_gap
from cru.models import spec_of
from cru.models.structural import (
    StructuralConfig,
    StructuralFitConstants,
    StructuralModel,
    default_level_time_constant,
    default_time_constants,
    fit_layer,
)
from cru.shapes import Float


def structural_options(series: SeriesSet, clock: Clock) -> dict[str, Any]:
    """Choose the components of the structural model from the times of a table.

    Periods come from the calendar, and from the periodogram of the table.

    Returns:
        The options of a `CorrectedModel`. "calendar" has the periods whose phase is a feature.
    """
    gap = median_gap(series)
    some = series.lengths > 0
    spans = series.times[series.offsets[1:][some] - 1] - series.times[series.offsets[:-1][some]]
    spans = spans[spans > 0]
    span = float(np.median(spans)) if len(spans) else gap
    calendar = find_calendar(series, clock, gap)
    found = find_periods(series, gap, calendar.phases)
    waves = [period / k for period in found for k in range(1, PERIODOGRAM.wave_harmonics + 1) if period / k > 2 * gap]
    return {
        "time_constants": default_time_constants(gap, span),
        "periods": [*calendar.oscillators, *waves],
        "season": [*calendar.season, *waves],
        "level": default_level_time_constant(gap, span),
        "calendar": [*calendar.phases, *found],
    }


@dataclass(frozen=True)
class PeriodogramConstants:
    """Constants of the search for periods."""

    rows: int = 20_000  # most time points, drawn evenly from all series
    longest: int = 1000  # most time points of one segment of a series
    shortest: int = 30  # fewest observations of a variable in a segment
    resolution: float = 0.25  # distance of two frequencies, in cycles in the typical span of a part
    frequencies: int = 4000  # most frequencies
    cycles: float = 4.0  # fewest cycles in a typical part
    finest: float = 2.5  # shortest period, in typical gaps
    neighbourhood: float = 0.35  # half width of the local background, relative to the frequency
    lobes: float = 8.0  # smallest half width of the local background, in cycles in the typical span of a part
    chance: float = 1e-4  # probability of a peak as high as the threshold in noise, over all frequencies and variables
    found: int = 2  # most periods
    least: float = 4.0  # smallest ratio of a peak to its background, because series of one region are dependent
    distinct: float = 0.1  # smallest distance of the quotient of two periods from an integer
    harmonics: int = 3  # number of harmonics of a longer period that a peak may be
    wave_harmonics: int = 2  # oscillators of a period of the periodogram
    multiples: int = 20  # number of harmonics of a period that are not searched again


PERIODOGRAM = PeriodogramConstants()


def find_periods(
    series: SeriesSet, gap: float, known: tuple[float, ...] = (), constants: PeriodogramConstants = PERIODOGRAM
) -> tuple[float, ...]:
    """Return the periods at which the values of a table vary more than at neighbouring frequencies.

    The periodogram of a variable is the mean over series of |Σ y exp(-iωt)|² / n. Each series is standardised first.
    The phase may differ between series. Noise with memory has a smooth periodogram, so a period must exceed the median
    of its neighbourhood. The threshold is a quantile of the mean of exponential variables. A period must exceed it in
    both halves of the table, so that a few rare events do not count as a period.

    Args:
        series: the table.
        gap: typical time between observations.
        known: periods that are not searched again, with their harmonics.
        constants: the constants of the search.

    Returns:
        At most `PeriodogramConstants.found` periods, the clearest first.

    >>> import pandas as pd
    >>> from cru.forecaster.structural_options import find_periods
    >>> times = np.sort(np.random.default_rng(0).uniform(0, 400, 300))
    >>> frame = pd.DataFrame({"time": times, "y": np.sin(times / 2)})
    >>> series = cru.data.from_table(frame, id=None, time="time")
    >>> [round(period) for period in find_periods(series, 1.3)]
    [13]
    """
    parts = _standardised_segments(series, constants)
    if len(parts) < 2:
        return ()
    span = float(np.median([times[-1] - times[0] for times, _, _ in parts]))
    lowest, highest = constants.cycles / max(span, 1e-300), 1 / (constants.finest * gap)
    if not lowest < highest < math.inf:
        return ()
    count = min(constants.frequencies, 2 + math.ceil((highest - lowest / 2) * span / constants.resolution))
    frequency = np.linspace(lowest / 2, highest, count)
    halves = _excess(parts[::2], frequency, constants), _excess(parts[1::2], frequency, constants)
    ratio = np.minimum(*halves).max(0)  # of the variable with the clearest peak in both halves
    frequency, ratio = _peaks(frequency, ratio)
    frequency, ratio = frequency[frequency >= lowest], ratio[frequency >= lowest]
    found: list[float] = []
    for place in np.argsort(-ratio):
        period = float(1 / frequency[place])
        if ratio[place] <= 1 or len(found) == constants.found:
            break
        if not any(_is_multiple(period, other, constants) for other in (*known, *found)):
            found.append(_fundamental(period, frequency, ratio, constants))
    return tuple(found)


def _peaks(frequency: np.ndarray, power: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the local maxima: their frequencies, refined by a parabola through three points, and their power."""
    before, middle, after = power[:-2], power[1:-1], power[2:]
    curvature = before - 2 * middle + after
    shift = np.where(curvature < 0, 0.5 * (before - after) / np.minimum(curvature, -1e-300), 0.0)
    peak = (middle >= before) & (middle >= after)
    refined = frequency[1:-1] + np.clip(shift, -0.5, 0.5) * (frequency[1] - frequency[0])
    return refined[peak], middle[peak]


def _fundamental(period: float, frequency: np.ndarray, ratio: np.ndarray, constants: PeriodogramConstants) -> float:
    """Return the longest significant period of which ``period`` is a harmonic."""
    for number in range(constants.harmonics, 1, -1):
        near = np.abs(frequency * number * period - 1) < constants.distinct / 2
        if ratio[near].max(initial=0) > 1:
            return float(1 / frequency[near][ratio[near].argmax()])
    return period


def _standardised_segments(
    series: SeriesSet, constants: PeriodogramConstants
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return times, standardised values and masks of segments of series, at most `PeriodogramConstants.rows` in all."""
    length = np.minimum(series.lengths, constants.longest)
    order = np.random.default_rng(0).permutation(np.flatnonzero(length >= constants.shortest))
    kept = order[np.cumsum(length[order]) <= max(constants.rows, constants.longest)]
    starts = series.offsets[kept] + (series.lengths[kept] - length[kept]) // 2
    cuts = [(start, start + size) for start, size in zip(starts, length[kept], strict=True)]
    if len(cuts) == 1:
        (start, stop), middle = cuts[0], sum(cuts[0]) // 2
        cuts = [(start, middle), (middle, stop)]
    found = []
    for start, stop in cuts:
        rows = slice(start, stop)
        mask = series.mask[rows].copy()
        mask[:, mask.sum(0) < constants.shortest] = False
        times, count = series.times[rows], np.maximum(mask.sum(0), 1)
        values = np.where(mask, series.values[rows], 0.0).astype(np.float64)
        values = np.where(mask, values - values.sum(0) / count, 0.0)
        whole = np.sqrt((values**2).sum(0) / count)
        moved = np.where(mask, times[:, None], 0.0)
        moved = np.where(mask, moved - moved.sum(0) / count, 0.0)
        values = values - moved * (moved * values).sum(0) / np.maximum((moved**2).sum(0), 1e-300)  # without a trend
        spread = np.sqrt((values**2).sum(0) / count)
        mask[:, spread <= 1e-6 * whole] = False
        if mask.any() and times[-1] > times[0]:
            found.append((times - times[0], np.where(mask, values / np.where(spread > 0, spread, 1), 0.0), mask))
    return found


def _excess(
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]], frequency: np.ndarray, constants: PeriodogramConstants
) -> Float[np.ndarray, "variable frequency"]:
    """Return the power of each variable over the threshold. A peak above 1 in both halves of a table is significant."""
    variables = parts[0][1].shape[1]
    power, members = np.zeros((variables, len(frequency))), np.zeros(variables)
    for times, values, mask in parts:
        # A Hann window reduces the leakage of slow variation, such as a trend, into other frequencies.
        window = np.sin(np.pi * times / times[-1])[:, None] ** 2
        weight = (mask * window**2).sum(0)
        angle = 2 * np.pi * times[:, None] * frequency
        real, imaginary = ((values * window).T @ wave for wave in (np.cos(angle), np.sin(angle)))
        power += (real**2 + imaginary**2) / np.maximum(weight, 1e-9)[:, None]
        members += weight > 0
    power /= np.maximum(members, 1)[:, None]
    span = float(np.median([times[-1] for times, _, _ in parts]))
    width = np.maximum(constants.neighbourhood * frequency, constants.lobes / span)
    low, high = (np.searchsorted(frequency, frequency + side * width) for side in (-1, 1))
    background = np.stack([np.median(power[:, a : max(b, a + 1)], 1) for a, b in zip(low, high, strict=True)], 1)
    z = NormalDist().inv_cdf(1 - math.sqrt(constants.chance / (len(frequency) * variables)))
    # The Wilson-Hilferty approximation of a chi-squared variable with 2 n degrees of freedom, over its median.
    cube = 1 / (9 * np.maximum(members, 1))
    threshold = np.maximum(((1 - cube + z * np.sqrt(cube)) / (1 - cube)) ** 3, constants.least)
    excess: np.ndarray = power / np.maximum(background * threshold[:, None], 1e-300)
    return excess


def _is_multiple(period: float, other: float, constants: PeriodogramConstants) -> bool:
    """Return whether one period is about a multiple of the other."""
    quotient = max(period, other) / min(period, other)
    nearest = max(1, round(quotient))
    return nearest <= constants.multiples and abs(quotient - nearest) < constants.distinct


@dataclass(frozen=True)
class TransformConstants:
    """Constants of the choice between a linear and a logarithmic scale."""

    max_zeros: float = 0.25  # largest share of zeros in a candidate variable
    min_observations: int = 100  # fewest observations of a candidate variable
    tasks: int = 2  # number of training tasks
    max_segments: int = 300  # largest number of segments of series
    batch: int = 64  # segments in a batch
    quantiles: tuple[float, ...] = (0.05, 0.25, 0.5, 0.75, 0.95)  # probabilities of the pinball loss


TRANSFORM = TransformConstants()
TRANSFORM_FIT = StructuralFitConstants(steps=40)


def choose_log_scales(
    segments: SeriesSet, kinds: Kinds, config: StructuralConfig, time_scale: float, seed: int
) -> tuple[float, ...]:
    """Choose the variables to model on a logarithmic scale, and the scale of each logarithm.

    Candidates are skewed variables of kind "nonnegative" or "count". The structural model is fitted with and without
    the logarithm. The logarithm is used if it lowers the product of two errors on withheld values, both in the user's
    units: the pinball loss and the root mean squared error.

    Variables that are often zero, such as rain, are not candidates. No transform spreads a point mass, and the
    logarithm increases the errors of forecasts of snow depth.

    Args:
        segments: segments of series in the user's units.
        kinds: the kinds of the variables.
        config: the components of the structural model.
        time_scale: factor on the times in the model.
        seed: the seed of the withheld values.

    Returns:
        One scale for each variable, 0 for no logarithm. Empty if no variable has a logarithm.
    """
    possible = np.flatnonzero(kinds.are("nonnegative", "count"))
    candidates = [int(k) for k in possible if _may_gain(segments.values[segments.mask[:, k], k])]
    scales = [0.0] * len(segments.names)
    if not candidates:
        return ()
    chosen = np.unique(np.linspace(0, len(segments) - 1, TRANSFORM.max_segments).round().astype(np.int64))
    part = _columns(segments.take(chosen), candidates)
    middle = tuple(float(np.median(_positive(part, k))) for k in range(len(candidates)))
    plain = _losses(part, (), config, time_scale, seed)
    logged = _losses(part, middle, config, time_scale, seed)
    for k, (before, after) in enumerate(zip(plain, logged, strict=True)):
        if after < before:
            scales[candidates[k]] = middle[k]
    return tuple(scales) if any(scales) else ()


def _may_gain(values: Float[np.ndarray, " n"]) -> bool:
    return (
        len(values) >= TRANSFORM.min_observations
        and bool((values == 0).mean() <= TRANSFORM.max_zeros)
        and skewness(values) > KIND_INFERENCE.skewness
    )


def _positive(series: SeriesSet, column: int) -> Float[np.ndarray, " n"]:
    values = series.values[series.mask[:, column], column]
    values = values[values > 0]
    return values if len(values) else np.ones(1)


def _columns(series: SeriesSet, chosen: list[int]) -> SeriesSet:
    """Select variables of series, and remove the rows at which none of them is observed."""
    names = tuple(series.names[k] for k in chosen)
    narrow = dataclasses.replace(
        series, values=series.values[:, chosen], mask=series.mask[:, chosen], names=names, units=(), per_time={}
    )
    return narrow.keep(np.asarray(narrow.mask.any(1)))


def _losses(
    series: SeriesSet, log_scale: tuple[float, ...], config: StructuralConfig, time_scale: float, seed: int
) -> Float[np.ndarray, " variable"]:
    """Return a multiple of pinball loss times root mean squared error for each variable, on withheld values."""
    scaler = Scaler.fit(series.values, series.mask, log_scale=log_scale)
    scaled = series.scaled_by(scaler)
    squares, pinball = np.zeros((2, len(series.names)))
    model = None
    for turn in range(TRANSFORM.tasks):
        task = make_training_task(scaled, (seed, turn))
        if model is None:
            model = StructuralModel(spec_of(task, time_scale=time_scale), config)
            fit_layer(model.layer, list(task.batches(TRANSFORM.batch)), TRANSFORM_FIT)
        for numbers in np.array_split(np.arange(len(task)), max(1, len(task) // TRANSFORM.batch)):
            batch = task.batch(numbers)
            with torch.no_grad():
                prediction = model(batch)
            assert prediction.var is not None
            hidden = batch.hidden.numpy()
            mean, std, truth = (
                part.double().numpy() for part in (prediction.mean, prediction.var.sqrt(), batch.targets)
            )
            true = scaler.inverse(truth)
            squares += np.where(hidden, (scaler.inverse(mean) - true) ** 2, 0).sum((0, 1))
            for p in TRANSFORM.quantiles:
                error = true - scaler.inverse(mean + NormalDist().inv_cdf(p) * std)
                pinball += np.where(hidden, np.maximum(p * error, (p - 1) * error), 0).sum((0, 1))
    product: np.ndarray = np.sqrt(squares) * pinball
    return product
