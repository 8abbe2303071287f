"""Pictures: each a function from plain data to a matplotlib figure, which is imported when one is drawn."""

from cru.evaluation.figures.calibration import draw_calibration
from cru.evaluation.figures.curves import draw_curves
from cru.evaluation.figures.dataset import draw_dataset
from cru.evaluation.figures.frames import draw_gain_noise, draw_trajectory
from cru.evaluation.figures.gain import draw_gain_sparseness
from cru.evaluation.figures.gaps import draw_gaps
from cru.evaluation.figures.runtime import draw_runtime, measure_runtime
from cru.evaluation.figures.series import draw_series
from cru.evaluation.figures.style import check_path, save

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
