"""The conversion between the user's times and the numbers that models use, and the calendar periods of a table."""

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
from cru.data.tables import TIME_UNITS
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
_LENGTH = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")
_STEPS = {"D": (1, 7, 14, 28, 91, 365), "h": (1, 2, 3, 6, 12), "min": (1, 2, 5, 10, 15, 30), "s": (1, 2, 5, 10, 15, 30)}


@dataclass(frozen=True, kw_only=True)
class Clock:
    """A conversion between times and numbers. Numbers do not change. Dates are counted in ``unit`` since ``origin``.

    >>> from cru.forecaster.clock import Clock
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
        """Make the clock of a table's time column. Dates are counted in days.

        Raises:
            ValueError: the column holds neither numbers nor dates, or no time at all.
        """
        if column.kind == "number" and column.missing < len(column):
            return Clock()
        if column.kind not in ("number", "date", "datetime"):
            raise ValueError(
                f"column {column.name!r} must hold numbers or dates, got {column.dtype}. Parse it first, for example "
                "with pandas.to_datetime(..., utc=True), which also converts several time zones to one."
            )
        if column.missing == len(column):
            raise ValueError(f"the table must have at least one row with a time in {column.name!r}.")
        times = column.values
        if np.datetime_data(times.dtype)[0] == "ns" and (times != times.astype("datetime64[us]")).any():
            warnings.warn(
                f"times in {column.name!r} are rounded down to microseconds, also in predictions. To join predictions "
                "with the table, round its times first, with .dt.round('us').",
                stacklevel=2,
            )
        first = np.nanmin(times.astype("datetime64[us]"))
        return Clock(kind=column.kind, unit="D", origin=str(first), zone=column.zone)

    def in_unit(self, gap: float) -> "Clock":
        """Return the clock with the coarsest unit in which ``gap`` is at least 1. ``gap`` is in the current unit."""
        if self.kind == "number":
            return self
        length = gap * TIME_UNITS[self.unit] * (1 + 1e-9)
        fitting = [unit for unit in ("D", "h", "min", "s", "ms") if TIME_UNITS[unit] <= length]
        return dataclasses.replace(self, unit=fitting[0] if fitting else "us")

    def column(self, column: Column) -> np.ndarray:
        """Convert a column of a table to numbers.

        Raises:
            InputError: the column does not match the clock's kind or time zone, or has missing or infinite times.
        """
        if self.kind == "number" or column.kind == "number":
            if self.kind != "number" or column.kind != "number":
                wanted = "numbers" if self.kind == "number" else "dates"
                raise InputError(
                    rule=f"hold {wanted}, as in the training table", found=column.dtype, column=column.name
                )
            numbers = column.numbers
            if not np.isfinite(numbers).all():
                found = f"{int((~np.isfinite(numbers)).sum())} that are not"
                raise InputError(rule="hold finite times", found=found, hint="Remove these rows.", column=column.name)
            return numbers
        if column.kind not in ("date", "datetime"):
            rule = "hold dates, as in the training table"
            raise InputError(rule=rule, found=column.dtype, column=column.name)
        if (column.zone is None) != (self.zone is None):
            rule = f"have {'no' if self.zone is None else 'a'} time zone, as in the training table"
            raise InputError(rule=rule, found=column.zone or "none", hint="Convert it.", column=column.name)
        if column.missing:
            found = f"{column.missing} of {len(column)} missing"
            raise InputError(
                rule="hold a time in every row", found=found, hint="Remove these rows.", column=column.name
            )
        # Microseconds, because 64-bit nanoseconds overflow after 292 years.
        ticks = (column.values.astype("datetime64[us]") - self._origin).view(np.int64)
        counted: np.ndarray = ticks / (TIME_UNITS[self.unit] / 1000)
        return counted

    def numbers(self, times: Iterable[Any], argument: str = "at") -> np.ndarray:
        """Convert times to numbers.

        Args:
            times: numbers, ISO 8601 texts, or dates of Python, NumPy or pandas.
            argument: name of the argument, for error messages.

        Raises:
            InputError: ``times`` is not a list of times of the clock's kind.
        """
        if isinstance(times, str | bytes):
            raise InputError(argument, "be a list of times", f"the text {times!r}")
        try:
            listed = list(times)
        except TypeError:
            raise InputError(argument, "be a list of times", repr(times)) from None
        if self.kind != "number" and len({type(time) for time in listed}) == 1:
            try:  # convert all at once; `number` below reports any error
                moments = [_moment(time) for time in listed]
                if len({zone_name(moment) is None for moment in moments}) == 1:
                    return self.column(_moments(moments))
            except (ValueError, TypeError, OverflowError):
                pass
        return np.array([self.number(time, argument) for time in listed], np.float64)

    def number(self, time: Any, argument: str = "time") -> float:
        """Convert one time to a number. The arguments are those of `numbers`."""
        plain = isinstance(time, int | float | np.integer | np.floating) and not isinstance(time, bool | np.bool_)
        if plain and self.kind != "number":
            raise InputError(argument, "be dates, as in the training table", f"the number {time!s:.50}")
        if plain:
            try:
                number = float(time)
            except OverflowError:  # an integer too large for a float
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
        try:
            return float(self.column(_moments([stamp]))[0])
        except InputError as error:
            raise error.replace(argument=argument, column=None) from None

    def stamps(self, numbers: np.ndarray) -> np.ndarray:
        """Convert numbers to times of the clock's kind, in UTC. Return dates without a time of day if all are days."""
        if self.kind == "number":
            return np.asarray(numbers)
        ticks = np.round(np.asarray(numbers) * (TIME_UNITS[self.unit] / 1000)).astype("timedelta64[us]")
        moments: np.ndarray = self._origin + ticks
        days = moments.astype("datetime64[D]")
        return days if self.kind == "date" and bool((moments == days).all()) else moments

    def stamp(self, number: float) -> Any:
        """Convert one number to a number, or to a Python date or datetime in the time zone of the clock."""
        moment = self.stamps(np.array([number]))[0].item()
        if self.zone is None:
            return moment
        return moment.replace(tzinfo=datetime.UTC).astimezone(zoneinfo.ZoneInfo(self.zone))

    def duration(self, length: Any, argument: str = "duration") -> float:
        """Convert a length of time to a number in the unit of the clock.

        Args:
            length: a number if times are numbers, otherwise a text such as "6h" or "2 weeks", or a timedelta.
            argument: name of the argument, for error messages.

        Raises:
            InputError: ``length`` is of the wrong type, or not positive and finite.
        """
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

    def written(self, length: float, unit: str | None = None) -> str:
        """Write a length of time as text: the number, followed by the unit for dates.

        Args:
            length: the length in the unit of the clock.
            unit: the unit of the text. None: the coarsest unit in which the number is 1 or at least 2.

        >>> from cru.forecaster.clock import Clock
        >>> Clock(kind="date", unit="h").written(2160.0), Clock(kind="date", unit="h").written(2160.0, "h")
        ('90D', '2160h')
        >>> Clock(kind="date", unit="h").written(24.0), Clock(kind="date", unit="h").written(36.0)
        ('1D', '36h')
        """
        if self.kind != "number":
            whole = length * TIME_UNITS[self.unit] * (1 + 1e-9)
            counts = {name: whole / TIME_UNITS[name] for name in ("D", "h", "min", "s", "ms")}
            fitting = (name for name, count in counts.items() if count >= 2 or abs(count - 1) < 1e-6)
            unit = unit or next(fitting, self.unit)
            length *= TIME_UNITS[self.unit] / TIME_UNITS[unit]
        return f"{length:.0f}{unit or ''}" if length >= 100 else f"{length:.3g}{unit or ''}"

    def unit_of(self, length: Any) -> str | None:
        """Return the unit in which a user wrote a length of time, or None.

        >>> from cru.forecaster.clock import Clock
        >>> Clock(kind="date", unit="h").unit_of("3 weeks")
        'W'
        """
        match = _LENGTH.fullmatch(length) if isinstance(length, str) else None
        return _unit(match[2]) if match and self.kind != "number" else None

    def _parsed(self, length: Any, argument: str) -> float:
        tick = TIME_UNITS[self.unit] // 1000  # microseconds, because 64-bit nanoseconds overflow after 292 years
        if isinstance(length, datetime.timedelta):  # includes pandas.Timedelta
            return length / datetime.timedelta(microseconds=tick)
        if isinstance(length, np.timedelta64) and np.datetime_data(length)[0] not in ("Y", "M", "generic"):
            return float(length.astype("timedelta64[us]") / np.timedelta64(tick, "us"))
        match = _LENGTH.fullmatch(length) if isinstance(length, str) else None
        unit = _unit(match[2]) if match else None
        if match is None or unit is None:
            rule = f"be a number with its unit ({', '.join(TIME_UNITS)}), such as '30D', because the times are dates"
            raise InputError(argument, rule, repr(length))
        return float(match[1]) * TIME_UNITS[unit] / TIME_UNITS[self.unit]

    def step(self, gap: float) -> float:
        """Return a forecast step: ``gap`` itself for numbers, the largest step in `_STEPS` up to ``gap`` for dates."""
        if self.kind == "number":
            return gap
        length = gap * TIME_UNITS[self.unit] * (1 + 1e-9)
        fitting = [
            n * TIME_UNITS[unit] for unit, counts in _STEPS.items() for n in counts if n * TIME_UNITS[unit] <= length
        ]
        return max(fitting, default=length) / TIME_UNITS[self.unit]

    def check(self) -> None:
        """Check the origin and the time zone, which may be invalid in a damaged file.

        Raises:
            ValueError: the origin is not a date without a time zone, or the zone does not exist.
        """
        try:
            origin = datetime.datetime.fromisoformat(str(self.origin))
            zone = zoneinfo.ZoneInfo(self.zone) if self.zone is not None else None
            self.stamps(np.array([0.0]))
        except (ValueError, OSError, OverflowError, zoneinfo.ZoneInfoNotFoundError):
            zone, origin = None, None
        if origin is None or origin.tzinfo is not None or (self.zone is not None and zone is None):
            raise ValueError("`clock` must have a date as origin, and a time zone that exists")

    def check_range(self, numbers: np.ndarray) -> None:
        """Check that a clock of dates can represent all numbers.

        Raises:
            ValueError: a number is outside the years 1 to 9999.
        """
        if self.kind == "number" or not len(numbers):
            return
        origin = datetime.datetime.fromisoformat(str(self.origin))
        for number in (numbers.min(), numbers.max()):
            try:
                origin + datetime.timedelta(microseconds=float(number) * TIME_UNITS[self.unit] / 1000)
            except (OverflowError, ValueError):
                raise ValueError(f"`times` must be dates of the years 1 to 9999, got {number:g}{self.unit}") from None

    def to_dict(self) -> dict[str, Any]:
        """Return the clock as a dictionary that can be written as JSON. ``Clock(**saved)`` restores it."""
        return dataclasses.asdict(self)

    @property
    def _origin(self) -> np.datetime64:
        return np.datetime64(datetime.datetime.fromisoformat(str(self.origin)), "us")


def _unit(text: str) -> str | None:
    """Return the unit that a text such as "weeks" means, or None."""
    unit = _SPELLED.get(text.removesuffix("s"), text)
    return unit if unit in TIME_UNITS else None


def _moments(moments: list[datetime.date]) -> Column:
    """Make a column from Python dates and datetimes."""
    times = np.array([utc(moment) for moment in moments])
    return Column(name="", kind="datetime", values=times, dtype="Datetime", zone=zone_name(moments[0]))


def _moment(time: Any) -> Any:
    """Convert a text, or a date of Python, NumPy or pandas, to a Python date or datetime.

    Raises:
        ValueError: ``time`` is not a valid text or is NaT.
        TypeError: ``time`` is of another type.
    """
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
    """A calendar period, and the number of harmonics used."""

    days: float
    oscillators: int  # harmonics whose amplitude and phase differ between series
    season: int  # harmonics of the seasonal mean that all series share


PERIODS = (Period(1.0, 3, 8), Period(7.0, 2, 2), Period(365.25, 2, 4))


@dataclass(frozen=True)
class CalendarConstants:
    """Conditions for a calendar period."""

    shortest_harmonic: float = 0.8  # shortest period of a harmonic, in typical gaps
    min_cycles: float = 2.0  # of an oscillator, in a typical series
    min_season_cycles: float = 1.5  # of a season, in the complete table


CALENDAR = CalendarConstants()


class Calendar(NamedTuple):
    """The calendar periods that a table can identify, in the unit of the clock."""

    oscillators: tuple[float, ...]
    season: tuple[float, ...]
    phases: tuple[float, ...]  # base periods, without harmonics


def find_calendar(series: SeriesSet, clock: Clock, gap: float) -> Calendar:
    """Choose the calendar periods that are long compared with the gaps and short compared with the table.

    Args:
        series: the table.
        clock: the clock of the table. Times that are numbers have no calendar.
        gap: typical time between observations.
    """
    if clock.kind == "number" or not len(series.times):
        return Calendar((), (), ())
    day = TIME_UNITS["D"] / TIME_UNITS[clock.unit]
    some = series.lengths > 0
    spans = series.times[series.offsets[1:][some] - 1] - series.times[series.offsets[:-1][some]]
    typical, whole = float(np.median(spans)), float(np.ptp(series.times))
    oscillators, season, phases = [], [], []
    for period in PERIODS:
        length = period.days * day
        if length < 2 * gap or whole < CALENDAR.min_season_cycles * length:
            continue
        finest = int(length / (CALENDAR.shortest_harmonic * gap))
        phases.append(length)
        season += [length / k for k in range(1, min(period.season, finest) + 1)]
        if typical >= CALENDAR.min_cycles * length:
            oscillators += [length / k for k in range(1, min(period.oscillators, finest) + 1)]
    return Calendar(tuple(oscillators), tuple(season), tuple(phases))
