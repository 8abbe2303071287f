"""The periods of the values of a table, from a periodogram for irregular times."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from cru.data import SeriesSet
from cru.shapes import Float


@dataclass(frozen=True)
class PeriodogramSettings:
    """Settings of the search for periods."""

    rows: int = 20_000  # most time points, drawn evenly from all series
    longest: int = 1000  # most time points of one part of a series
    shortest_part: int = 30  # fewest observations of a variable in a part
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
    multiples: int = 20  # number of harmonics of a period that are not searched again


SETTINGS = PeriodogramSettings()


def find_periods(
    series: SeriesSet, gap: float, known: tuple[float, ...] = (), settings: PeriodogramSettings = SETTINGS
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
        settings: the settings of the search.

    Returns:
        At most `PeriodogramSettings.found` periods, the clearest first.

    >>> import pandas as pd
    >>> from cru.forecaster.periods import find_periods
    >>> times = np.sort(np.random.default_rng(0).uniform(0, 400, 300))
    >>> frame = pd.DataFrame({"time": times, "y": np.sin(times / 2)})
    >>> series = cru.data.from_table(frame, id=None, time="time")
    >>> [round(period) for period in find_periods(series, 1.3)]
    [13]
    """
    parts = _parts(series, settings)
    if len(parts) < 2:
        return ()
    span = float(np.median([times[-1] - times[0] for times, _, _ in parts]))
    lowest, highest = settings.cycles / max(span, 1e-300), 1 / (settings.finest * gap)
    if not lowest < highest < math.inf:
        return ()
    count = min(settings.frequencies, 2 + math.ceil((highest - lowest / 2) * span / settings.resolution))
    frequency = np.linspace(lowest / 2, highest, count)
    halves = _excess(parts[::2], frequency, settings), _excess(parts[1::2], frequency, settings)
    ratio = np.minimum(*halves).max(0)  # of the variable with the clearest peak in both halves
    frequency, ratio = _peaks(frequency, ratio)
    frequency, ratio = frequency[frequency >= lowest], ratio[frequency >= lowest]
    found: list[float] = []
    for place in np.argsort(-ratio):
        period = float(1 / frequency[place])
        if ratio[place] <= 1 or len(found) == settings.found:
            break
        if not any(_is_multiple(period, other, settings) for other in (*known, *found)):
            found.append(_fundamental(period, frequency, ratio, settings))
    return tuple(found)


def _peaks(frequency: np.ndarray, power: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the local maxima: their frequencies, refined by a parabola through three points, and their power."""
    before, middle, after = power[:-2], power[1:-1], power[2:]
    curvature = before - 2 * middle + after
    shift = np.where(curvature < 0, 0.5 * (before - after) / np.minimum(curvature, -1e-300), 0.0)
    peak = (middle >= before) & (middle >= after)
    refined = frequency[1:-1] + np.clip(shift, -0.5, 0.5) * (frequency[1] - frequency[0])
    return refined[peak], middle[peak]


def _fundamental(period: float, frequency: np.ndarray, ratio: np.ndarray, settings: PeriodogramSettings) -> float:
    """Return the longest significant period of which ``period`` is a harmonic."""
    for number in range(settings.harmonics, 1, -1):
        near = np.abs(frequency * number * period - 1) < settings.distinct / 2
        if ratio[near].max(initial=0) > 1:
            return float(1 / frequency[near][ratio[near].argmax()])
    return period


def _parts(series: SeriesSet, settings: PeriodogramSettings) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return times, standardised values and masks of parts of series, at most `PeriodogramSettings.rows` in all."""
    length = np.minimum(series.lengths, settings.longest)
    order = np.random.default_rng(0).permutation(np.flatnonzero(length >= settings.shortest_part))
    kept = order[np.cumsum(length[order]) <= max(settings.rows, settings.longest)]
    starts = series.offsets[kept] + (series.lengths[kept] - length[kept]) // 2
    cuts = [(start, start + size) for start, size in zip(starts, length[kept], strict=True)]
    if len(cuts) == 1:
        (start, stop), middle = cuts[0], sum(cuts[0]) // 2
        cuts = [(start, middle), (middle, stop)]
    found = []
    for start, stop in cuts:
        rows = slice(start, stop)
        mask = series.mask[rows].copy()
        mask[:, mask.sum(0) < settings.shortest_part] = False
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
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]], frequency: np.ndarray, settings: PeriodogramSettings
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
    width = np.maximum(settings.neighbourhood * frequency, settings.lobes / span)
    low, high = (np.searchsorted(frequency, frequency + side * width) for side in (-1, 1))
    background = np.stack([np.median(power[:, a : max(b, a + 1)], 1) for a, b in zip(low, high, strict=True)], 1)
    z = NormalDist().inv_cdf(1 - math.sqrt(settings.chance / (len(frequency) * variables)))
    # The Wilson-Hilferty approximation of a chi-squared variable with 2 n degrees of freedom, over its median.
    cube = 1 / (9 * np.maximum(members, 1))
    threshold = np.maximum(((1 - cube + z * np.sqrt(cube)) / (1 - cube)) ** 3, settings.least)
    excess: np.ndarray = power / np.maximum(background * threshold[:, None], 1e-300)
    return excess


def _is_multiple(period: float, other: float, settings: PeriodogramSettings) -> bool:
    """Return whether one period is about a multiple of the other."""
    quotient = max(period, other) / min(period, other)
    nearest = max(1, round(quotient))
    return nearest <= settings.multiples and abs(quotient - nearest) < settings.distinct
