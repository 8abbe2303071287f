"""A small figure of one series as SVG text, for notebooks. It needs no library."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from cru.shapes import Float

_WIDTH, _HEIGHT = 640.0, 200.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 12.0, 24.0, 26.0  # margins
_BLUE, _BAND = "#3b8fd0", 0.18  # visible on a light and on a dark background
_STEPS = (1, 2, 5, 10)
_TICKS = 4


class SeriesFigure(NamedTuple):
    """The content of the figure of a series. Times are numbers, and labels are texts."""

    title: str
    times: Float[np.ndarray, " observation"]
    values: Float[np.ndarray, " observation"]
    curve_times: Float[np.ndarray, " point"]
    mean: Float[np.ndarray, " point"]
    bands: Mapping[float, tuple[Float[np.ndarray, " point"], Float[np.ndarray, " point"]]]  # lower, upper, by level
    last: float  # time of the last observation
    labels: tuple[str, ...]  # three, of the first time, of the last observation and of the end of the forecast


def draw_series(figure: SeriesFigure) -> str:
    """Draw observations, mean, intervals and forecast of one variable.

    >>> from cru.reporting.svg import SeriesFigure, draw_series
    >>> line, none = np.array([0.0, 1.0]), np.empty(0)
    >>> figure = SeriesFigure("a < b", none, none, line, line, {90: (line - 1, line + 1)}, 0.5, ("0", "0.5", "1"))
    >>> "a &lt; b" in draw_series(figure)
    True
    """
    everything = [figure.values, figure.mean, *(edge for band in figure.bands.values() for edge in band)]
    low, high = _range(np.concatenate(everything))
    start, end = float(figure.curve_times[0]), float(figure.curve_times[-1])

    def x(times: Any) -> Any:
        return _LEFT + (times - start) / ((end - start) or 1.0) * (_WIDTH - _LEFT - _RIGHT)

    def y(values: Any) -> Any:
        return _HEIGHT - _BOTTOM - (values - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def points(times: np.ndarray, values: np.ndarray) -> str:
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x(times), y(values), strict=True))

    parts = [_text(_LEFT, 15.0, figure.title, "start", bold=True)]
    for tick in _ticks(low, high):
        at = y(tick)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke-opacity="0.15"/>')
        parts.append(_text(_LEFT - 6, at + 4, f"{tick:g}".replace("-", "−"), "end"))
    for level in sorted(figure.bands, reverse=True):
        lower, upper = figure.bands[level]
        both = points(figure.curve_times, upper) + " " + points(figure.curve_times[::-1], lower[::-1])
        parts.append(f'<polygon points="{both}" fill="{_BLUE}" fill-opacity="{_BAND}" stroke="none"/>')
    mean = points(figure.curve_times, figure.mean)
    parts.append(f'<polyline points="{mean}" fill="none" stroke="{_BLUE}" stroke-width="1.5"/>')
    dots = "".join(f"M{a:.1f},{b:.1f}h0" for a, b in zip(x(figure.times), y(figure.values), strict=True))
    parts.append(f'<path d="{dots}" fill="none" stroke-width="3.5" stroke-linecap="round"/>')
    last, bottom = x(figure.last), _HEIGHT - _BOTTOM
    parts.append(f'<line x1="{last:.1f}" x2="{last:.1f}" y1="{_TOP}" y2="{bottom}" stroke-dasharray="2 3"/>')
    first, middle, final = figure.labels
    parts.append(_text(_LEFT, _HEIGHT - 8, first, "start"))
    if _LEFT + 8 * len(first + middle) < last < _WIDTH - _RIGHT - 8 * len(middle + final):  # room for all three
        parts.append(_text(last, _HEIGHT - 8, middle, "middle"))
    parts.append(_text(_WIDTH - _RIGHT, _HEIGHT - 8, final, "end"))
    words = f"{figure.title}: {len(figure.values)} observations, mean, intervals and forecast"
    return (
        f'<svg role="img" aria-label="{escape(words)}" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" '
        f'style="max-width:{_WIDTH:g}px;width:100%" stroke="currentColor" xmlns="http://www.w3.org/2000/svg">'
        + "".join(parts)
        + "</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    style = 'fill="currentColor" stroke="none" font-family="sans-serif" font-size="11"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {style}{weight}>{escape(text)}</text>'


def _range(values: np.ndarray) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    margin = 0.05 * (high - low) or 0.1 * abs(high) or 1.0
    return low - margin, high + margin


def _ticks(low: float, high: float) -> Sequence[float]:
    """Return round numbers between two values."""
    rough = (high - low) / _TICKS
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(m * power for m in _STEPS if m * power >= 0.999 * rough)
    first, last = int(np.ceil(low / step)), int(np.floor(high / step))
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]
