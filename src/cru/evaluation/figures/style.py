"""What all pictures share: size, type, quiet axes, and how they are written."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cru.evaluation.figures.palette import GREY, INK, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
_TIME_UNITS = {"D": "days", "h": "hours", "": ""}


def make_figure(width: float = 7.0, height: float = 3.6) -> "Figure":
    """An empty figure, in inches; nothing is shared with pyplot, so that no window or state is left behind."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=160, layout="constrained")


def plain(axis: "Axes", *, x: str = "", y: str = "", title: str = "") -> None:
    """Two spines, quiet ticks, a name and a unit on each axis."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(GREY)
    axis.tick_params(colors=GREY, labelcolor=INK, labelsize=8)
    if x:
        axis.set_xlabel(x, fontsize=9)
    if y:
        axis.set_ylabel(y, fontsize=9)
    if title:
        axis.set_title(title, loc="left", fontsize=10, color=INK)


def line(model: str) -> dict[str, Any]:
    """How a model's line is drawn."""
    chosen = look(model)
    return {"color": chosen.light, "linestyle": (0, chosen.dash) if chosen.dash else "-", "linewidth": 1.6}


def with_unit(name: str, unit: str) -> str:
    """The label of an axis.

    >>> with_unit("TMAX", "°C")
    'TMAX [°C]'
    """
    return f"{name} [{unit}]" if unit else name


def time_label(unit: str) -> str:
    """The label of a time axis; pandas' "D" is written out."""
    return with_unit("time", _TIME_UNITS.get(unit, unit))


def grey(axis: "Axes", image: np.ndarray, extent: tuple[float, float, float, float] | None = None) -> None:
    """A picture of brightness 0 to 1."""
    axis.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest", extent=extent, aspect="auto")


def check_path(path: Path) -> Path:
    """``path``, if a picture can be written there."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"`out` must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, got {str(path)!r}.")
    return path


def save(figure: "Figure", path: Path) -> Path:
    """Write a picture; an SVG keeps its text as text, so that it can be searched and read aloud."""
    import matplotlib

    check_path(path).parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "cru"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    return path
