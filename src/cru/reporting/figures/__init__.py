"""Functions that draw matplotlib figures from plain data. Matplotlib is imported at the first drawing."""

from cru.reporting.figures.comparisons import (
    draw_calibration,
    draw_curves,
    draw_gain_sparseness,
    draw_gaps,
    draw_runtime,
    measure_runtime,
)
from cru.reporting.figures.images import draw_gain_noise, draw_trajectory
from cru.reporting.figures.predictions import draw_dataset, draw_series
from cru.reporting.figures.style import check_path, save

__all__ = [
    "check_path",
    "draw_calibration",
    "draw_curves",
    "draw_dataset",
    "draw_gain_noise",
    "draw_gain_sparseness",
    "draw_gaps",
    "draw_runtime",
    "draw_series",
    "draw_trajectory",
    "measure_runtime",
    "save",
]
