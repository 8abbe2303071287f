"""The common style of figures: colours, size, fonts, axes and file formats."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cru.errors import InputError, require_extra
from cru.models.registry import MODELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, SKY, GREEN, ORANGE, RED, PINK = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7"  # Okabe & Ito
VIOLET = "#7A5CC0"
INK, GREY = "#222222", "#767676"


class ModelStyle(NamedTuple):
    """Style of a model: display name, colour on a light background, colour on a dark background, dashes."""

    name: str
    light: str
    dark: str
    dash: tuple[float, ...] = ()


_DASH, _DOT = (5.0, 2.0), (1.5, 1.5)
_COLOURS: dict[str, tuple[Any, ...]] = {  # colours on light and dark background, dashes
    "cru": (BLUE, "#5AB4F0"),
    "f-cru": (SKY, "#A6D8F7", _DASH),
    "bi-cru": (BLUE, "#5AB4F0", _DOT),
    "bi-f-cru": (SKY, "#A6D8F7", _DOT),
    "paired": (VIOLET, "#B9A3F0"),
    "paired-smoother": (VIOLET, "#B9A3F0", _DASH),
    "structural": ("#117733", "#66C285"),
    "structural-filter": ("#117733", "#66C285", _DASH),
    "mlp": ("#882255", "#D98CB3"),
    "corrected": ("#882255", "#D98CB3", _DASH),
    "rkn": (GREEN, "#3CC9A0", _DOT),
    "rkn-dt": (GREEN, "#3CC9A0", _DASH),
    "gru": (ORANGE, "#F5BE4E", _DOT),
    "gru-dt": (ORANGE, "#F5BE4E"),
    "gru-d": (ORANGE, "#F5BE4E", _DASH),
    "ode-rnn": (PINK, "#E9A3CB"),
    "latent-ode": (PINK, "#E9A3CB", _DASH),
    "gru-ode-b": (PINK, "#E9A3CB", _DOT),
    "mtand": (RED, "#FF8A4C"),
    "mean": (GREY, "#A5A5A5", _DOT),
    "series-mean": (GREY, "#A5A5A5", _DASH),
    "last-value": (GREY, "#A5A5A5"),
    "linear": ("#4D4D4D", "#CFCFCF", _DOT),
    "seasonal-naive": ("#999933", "#CCCC77"),
    "blend": ("#4D4D4D", "#CFCFCF", _DASH),
    "climatology": ("#4D4D4D", "#CFCFCF"),
}


_PALETTE = [_COLOURS[name][:2] for name in ("cru", "gru", "rkn", "paired", "mtand", "ode-rnn", "f-cru", "mlp")]


def model_style(model: str) -> ModelStyle:
    """Return the style of a model. A model outside the registry is black, or white on a dark background."""
    if model not in MODELS:
        return ModelStyle(model, INK, "#EEEEEE")
    return ModelStyle(MODELS[model].title, *(_COLOURS.get(model) or _default_colours(model)))


def _default_colours(model: str) -> tuple[Any, ...]:
    """Return colours and dashes of a registered model without an entry in `_COLOURS`, which no other model has."""
    others = [name for name in MODELS if name not in _COLOURS]
    row, column = divmod(others.index(model), len(_PALETTE))
    return *_PALETTE[column], (*_DASH, *(row + 1) * _DOT)


FORMATS = (".png", ".svg", ".pdf")
_TIME_UNITS = {"D": "days", "h": "hours", "": ""}


def make_figure(width: float = 7.0, height: float = 3.6) -> "Figure":
    """Make an empty figure of a size in inches, without pyplot and its global state."""
    figure: Figure = require_extra("matplotlib.figure", "plots").Figure(
        figsize=(width, height), dpi=160, layout="constrained"
    )
    return figure


def style_axes(axis: "Axes", *, x: str = "", y: str = "", title: str = "") -> None:
    """Set the style of axes: two spines, grey ticks, labels ``x`` and ``y``, and a title."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(GREY)
    axis.tick_params(colors=GREY, labelcolor=INK, labelsize=8)
    if x:
        axis.set_xlabel(x, fontsize=9)
    if y:
        axis.set_ylabel(y, fontsize=9)
    if title:
        axis.set_title(title, loc="left", fontsize=10, color=INK)


def line_style(model: str) -> dict[str, Any]:
    """Return the line style of a model."""
    chosen = model_style(model)
    return {"color": chosen.light, "linestyle": (0, chosen.dash) if chosen.dash else "-", "linewidth": 1.6}


def with_unit(name: str, unit: str) -> str:
    """Format the label of an axis.

    >>> from cru.reporting.figures.style import with_unit
    >>> with_unit("TMAX", "°C")
    'TMAX [°C]'
    """
    return f"{name} [{unit}]" if unit else name


def time_label(unit: str) -> str:
    """Format the label of a time axis. The units "D" and "h" are written out."""
    return with_unit("time", _TIME_UNITS.get(unit, unit))


def show_image(axis: "Axes", image: np.ndarray, extent: tuple[float, float, float, float] | None = None) -> None:
    """Show an image with brightness 0 to 1. ``extent`` is its position: left, right, bottom and top."""
    axis.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest", extent=extent, aspect="auto")


def check_path(path: Path) -> Path:
    """Return ``path``. Raise InputError if its suffix is not a format of figures."""
    if path.suffix.lower() not in FORMATS:
        raise InputError("out", f"end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}", f"{str(path)!r}")
    return path


def save(figure: "Figure", path: Path) -> Path:
    """Write a figure. An SVG file has text as text, for search and screen readers."""
    import matplotlib

    check_path(path).parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "cru"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    return path
