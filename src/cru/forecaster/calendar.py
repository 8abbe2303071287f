"""Which calendar periods a table can identify."""

from typing import NamedTuple

import numpy as np

from cru.data import SeriesSet
from cru.data.tables import UNITS
from cru.forecaster.clock import Clock


class Period(NamedTuple):
    """A period of the calendar, and how many harmonics of it are used."""

    days: float
    oscillators: int  # harmonics whose amplitude and phase every series has for itself
    season: int  # harmonics of the mean that all series share


PERIODS = (Period(1.0, 3, 8), Period(7.0, 2, 2), Period(365.25, 2, 4))
FINEST = 0.8  # a harmonic is at least so many typical gaps long
CYCLES, SEASON_CYCLES = 2.0, 1.5  # of a period, in a typical series for an oscillator, in the table for the season


class Calendar(NamedTuple):
    """Periods in the unit of the clock."""

    oscillators: tuple[float, ...]
    season: tuple[float, ...]
    phases: tuple[float, ...]  # the periods themselves, without harmonics


def find_calendar(series: SeriesSet, clock: Clock, gap: float) -> Calendar:
    """Choose the periods that are long enough for the gaps and short enough for the table. Numbers have none."""
    if clock.kind == "number" or not len(series.times):
        return Calendar((), (), ())
    day = UNITS["D"] / UNITS[clock.unit]
    some = series.lengths > 0
    spans = series.times[series.offsets[1:][some] - 1] - series.times[series.offsets[:-1][some]]
    typical, whole = float(np.median(spans)), float(np.ptp(series.times))
    oscillators, season, phases = [], [], []
    for period in PERIODS:
        length = period.days * day
        if length < 2 * gap or whole < SEASON_CYCLES * length:
            continue
        finest = int(length / (FINEST * gap))
        phases.append(length)
        season += [length / k for k in range(1, min(period.season, finest) + 1)]
        if typical >= CYCLES * length:
            oscillators += [length / k for k in range(1, min(period.oscillators, finest) + 1)]
    return Calendar(tuple(oscillators), tuple(season), tuple(phases))
