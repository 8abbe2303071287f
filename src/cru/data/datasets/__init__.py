"""The datasets of the paper, by name."""

from cru.data.datasets.registry import DATASETS, Dataset, dataset, load

__all__ = ["DATASETS", "Dataset", "dataset", "load"]
