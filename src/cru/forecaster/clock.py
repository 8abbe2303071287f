"""The user's times, the numbers that a model counts in, and the calendar periods that a table can identify."""

import dataclasses
import datetime
import re
import warnings
import zoneinfo
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cru.data import SeriesSet
from cru.data.columns import Column, utc, zone_name
from cru.data.tables import UNITS
from cru.errors import InputError

_SPELLED = {
    "d": "D",
    "day": "D",
    "H": "h",
    "hour": "h",
    "min": "min",
    "minute": "min",
    "w": "W",
    "week": "W",
    "S": "s",
    "second": "s",
}
_STEPS = {"D": (1, 7, 14, 28, 91, 365), "h": (1, 2, 3, 6, 12), "min": (1, 2, 5, 10, 15, 30), "s": (1, 2, 5, 10, 15, 30)}


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How times are written, and how they become numbers: as they are, or dates in ``unit`` since ``origin``.

    >>> clock = Clock(kind="datetime", unit="h", origin="2024-01-01")
    >>> clock.number("2024-01-02T12:00"), clock.duration("2D")
    (36.0, 48.0)
    """

    kind: str = "number"  # or "date" or "datetime"
    unit: str = ""
    origin: str | None = None
    zone: str | None = None

    @staticmethod
    def of(column: Column) -> "Clock":
        """The clock of a table's column of times; dates count in days."""
        if column.kind == "number" and column.missing < len(column):
            return Clock()
        if column.kind not in ("number", "date", "datetime"):
            raise ValueError(
                f"column {column.name!r} must hold numbers or dates, got {column.dtype}. Parse it first, for example "
                "with pandas.to_datetime(..., utc=True), which also makes one time zone of several."
            )
        if column.missing == len(column):
            raise ValueError(f"the table must have at least one row with a time in {column.name!r}.")
        times = column.values
        if np.datetime_data(times.dtype)[0] == "ns" and (times != times.astype("datetime64[us]")).any():
            warnings.warn(
                f"times in {column.name!r} are cut to microseconds, also in the answers: round them first "
                "(.dt.round('us')) if the two are to be joined.",
                stacklevel=2,
            )
        first = np.nanmin(times.astype("datetime64[us]"))
        return Clock(kind=column.kind, unit="D", origin=str(first), zone=column.zone)

    def in_unit(self, gap: float) -> "Clock":
        """The same clock in the coarsest unit in which ``gap``, counted in its unit, is at least 1."""
        if self.kind == "number":
            return self
        length = gap * UNITS[self.unit] * (1 + 1e-9)
        fitting = [unit for unit in ("D", "h", "min", "s", "ms") if UNITS[unit] <= length]
        return dataclasses.replace(self, unit=fitting[0] if fitting else "us")

    def column(self, column: Column) -> np.ndarray:
        """A column of a table as numbers; it must be of the clock's kind."""
        if self.kind == "number" or column.kind == "number":
            if self.kind != "number" or column.kind != "number":
                wanted = "numbers" if self.kind == "number" else "dates"
                raise ValueError(f"times must be {wanted}, as in the training table, got {column.dtype}.")
            numbers = column.numbers
            if not np.isfinite(numbers).all():
                raise ValueError(f"times must be finite: {int((~np.isfinite(numbers)).sum())} are not.")
            return numbers
        if column.kind not in ("date", "datetime"):
            raise ValueError(f"times must be dates, as in the training table, got {column.dtype}.")
        if (column.zone is None) != (self.zone is None):
            have, want = ("a", "none") if column.zone else ("no", "one")
            raise ValueError(
                f"times must be written as in the training table: they have {have} time zone, it has {want}."
            )
        if column.missing:
            raise ValueError(f"times must be there: {column.missing} of {len(column)} are missing.")
        # Not in nanoseconds: 64 bits of them end after 292 years, and begin again.
        ticks = (column.values.astype("datetime64[us]") - self._origin).view(np.int64)
        counted: np.ndarray = ticks / (UNITS[self.unit] / 1000)
        return counted

    def numbers(self, times: Iterable[Any], argument: str = "at") -> np.ndarray:
        """Times as a user gives them (numbers, texts, dates of any library) as numbers."""
        if isinstance(times, str | bytes):
            raise InputError(argument, "be a list of times", f"the text {times!r}")
        try:
            listed = list(times)
        except TypeError:
            raise InputError(argument, "be a list of times", repr(times)) from None
        if self.kind != "number" and len({type(time) for time in listed}) == 1:
            try:  # all at once; what is not fine gets its sentence below
                moments = [_moment(time) for time in listed]
                if len({zone_name(moment) is None for moment in moments}) == 1:
                    return self.column(_moments(moments))
            except (ValueError, TypeError, OverflowError):
                pass
        return np.array([self.number(time, argument) for time in listed], np.float64)

    def number(self, time: Any, argument: str = "time") -> float:
        """One of them."""
        plain = isinstance(time, int | float | np.integer | np.floating) and not isinstance(time, bool | np.bool_)
        if plain and self.kind != "number":
            raise InputError(argument, "be dates, as in the training table", f"the number {time!s:.50}")
        if plain:
            try:
                number = float(time)
            except OverflowError:  # a whole number of hundreds of digits
                number = np.inf
            if not np.isfinite(number):
                raise InputError(argument, "be finite", f"{time!s:.50}")
            return number
        if self.kind == "number":
            raise InputError(argument, "be numbers, as the times of the training table are", repr(time))
        try:
            stamp = _moment(time)
        except (ValueError, TypeError, OverflowError):
            raise InputError(argument, "be dates like 2024-01-31T12:00", repr(time)) from None
        return float(self.column(_moments([stamp]))[0])

    def stamps(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers as times of the user's kind, in UTC. Dates stay dates where all of them are whole days."""
        if self.kind == "number":
            return np.asarray(numbers)
        ticks = np.round(np.asarray(numbers) * (UNITS[self.unit] / 1000)).astype("timedelta64[us]")
        moments: np.ndarray = self._origin + ticks
        days = moments.astype("datetime64[D]")
        return days if self.kind == "date" and bool((moments == days).all()) else moments

    def stamp(self, number: float) -> Any:
        """One number as a number, or as a date or time of Python's, in the time zone of the clock."""
        moment = self.stamps(np.array([number]))[0].item()
        if self.zone is None:
            return moment
        return moment.replace(tzinfo=datetime.UTC).astimezone(zoneinfo.ZoneInfo(self.zone))

    def duration(self, length: Any, argument: str = "duration") -> float:
        """A length of time: a number where times are numbers, else a text like "6h" or "2 weeks", or a timedelta."""
        number = isinstance(length, int | float | np.integer | np.floating) and not isinstance(length, bool)
        if self.kind == "number":
            if not number:
                raise InputError(argument, "be a number, as the times of the training table are", repr(length))
            found = float(length)
        else:
            found = self._parsed(length, argument)
        if not 0 < found < np.inf:
            raise InputError(argument, "be longer than zero", repr(length))
        return found

    def written(self, length: float) -> str:
        """A length of time as a user may write it: 30D, or the number.

        >>> Clock(kind="date", unit="D").written(30.26)
        '30.3D'
        """
        return f"{length:.0f}{self.unit}" if length >= 100 else f"{length:.3g}{self.unit}"

    def _parsed(self, length: Any, argument: str) -> float:
        tick = UNITS[self.unit] // 1000  # not in nanoseconds, of which 64 bits end after 292 years
        if isinstance(length, datetime.timedelta):  # pandas' own are such
            return length / datetime.timedelta(microseconds=tick)
        if isinstance(length, np.timedelta64) and np.datetime_data(length)[0] not in ("Y", "M", "generic"):
            return float(length.astype("timedelta64[us]") / np.timedelta64(tick, "us"))
        match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", length) if isinstance(length, str) else None
        unit = _SPELLED.get(match[2].removesuffix("s"), match[2]) if match else None
        if match is None or unit not in UNITS:
            rule = f"be a number with its unit ({', '.join(UNITS)}), such as '30D', because the times are dates"
            raise InputError(argument, rule, repr(length))
        return float(match[1]) * UNITS[unit] / UNITS[self.unit]

    def step(self, gap: float) -> float:
        """A round step of about ``gap``: the largest that is not longer, for dates."""
        if self.kind == "number":
            return gap
        length = gap * UNITS[self.unit] * (1 + 1e-9)
        fitting = [n * UNITS[unit] for unit, counts in _STEPS.items() for n in counts if n * UNITS[unit] <= length]
        return max(fitting, default=length) / UNITS[self.unit]

    def check(self) -> None:
        """Refuse an origin or a zone that is none, as a damaged file may have."""
        try:
            origin = datetime.datetime.fromisoformat(str(self.origin))
            zone = zoneinfo.ZoneInfo(self.zone) if self.zone is not None else None
            self.stamps(np.array([0.0]))
        except (ValueError, OSError, OverflowError, zoneinfo.ZoneInfoNotFoundError):
            zone, origin = None, None
        if origin is None or origin.tzinfo is not None or (self.zone is not None and zone is None):
            raise ValueError("`clock` must have an origin that is a date and a zone that there is")

    def check_range(self, numbers: np.ndarray) -> None:
        """Refuse times that are no dates of the years 1 to 9999, for a clock of dates."""
        if self.kind == "number" or not len(numbers):
            return
        origin = datetime.datetime.fromisoformat(str(self.origin))
        for number in (numbers.min(), numbers.max()):
            try:
                origin + datetime.timedelta(microseconds=float(number) * UNITS[self.unit] / 1000)
            except (OverflowError, ValueError):
                raise ValueError(f"`times` must be dates of the years 1 to 9999, got {number:g}{self.unit}") from None

    def to_dict(self) -> dict[str, Any]:
        """For JSON; ``Clock(**saved)`` makes it again."""
        return dataclasses.asdict(self)

    @property
    def _origin(self) -> np.datetime64:
        return np.datetime64(datetime.datetime.fromisoformat(str(self.origin)), "us")


def _moments(moments: list[datetime.date]) -> Column:
    """A column of dates and times of Python's."""
    times = np.array([utc(moment) for moment in moments])
    return Column(name="", kind="datetime", values=times, dtype="Datetime", zone=zone_name(moments[0]))


def _moment(time: Any) -> Any:
    """A date of any library, or a text, as a datetime of Python's or a numpy one."""
    if isinstance(time, str):
        return datetime.datetime.fromisoformat(time)
    if isinstance(time, np.datetime64):
        if np.isnat(time):
            raise ValueError
        return time.astype("datetime64[us]").item()
    converted = time.to_pydatetime(warn=False) if hasattr(time, "to_pydatetime") else time
    if not isinstance(converted, datetime.date) or converted != converted:
        raise TypeError
    return converted


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
