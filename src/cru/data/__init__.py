"""Data: the batch type, the datasets of the paper, the user's tables, and the tasks."""

from cru.data.batch import Batch
from cru.data.datasets import DATASETS, Dataset, dataset, load
from cru.data.samples import sample
from cru.data.scaler import Scaler
from cru.data.series import SeriesSet, Task, make_series
from cru.data.splits import Splits, scale, split
from cru.data.tables import from_arrays, from_table
from cru.data.tasks import (
    TASKS,
    extrapolation,
    interpolation,
    one_step_ahead,
    partial_observability,
    regression,
)

__all__ = [
    "DATASETS",
    "TASKS",
    "Batch",
    "Dataset",
    "Scaler",
    "SeriesSet",
    "Splits",
    "Task",
    "dataset",
    "extrapolation",
    "from_arrays",
    "from_table",
    "interpolation",
    "load",
    "make_series",
    "one_step_ahead",
    "partial_observability",
    "regression",
    "sample",
    "scale",
    "split",
]
