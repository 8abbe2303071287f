"""The registry of datasets. To add a dataset, write its module and add one entry here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cru.data.datasets import pendulum, physionet, ushcn
from cru.data.splits import Splits
from cru.errors import InputError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A registered dataset.

    Args:
        name: the name on the command line and in presets.
        about: a description in one line.
        source: the source of the data.
        time_scale: the factor on gaps in the Kalman family.
        version: the version of the data that ``load`` returns for a seed. The ledger records it for every run.
        load: the function that makes training, validation and test series from ``data_dir``, ``cache``, ``seed``,
            ``progress`` and keyword options of its own.
        as_measured: options of ``load`` that keep the measured units, for `cru data show`.
    """

    name: str
    about: str
    source: str
    time_scale: float
    version: int
    load: Callable[..., Splits]
    as_measured: Mapping[str, Any] = field(default_factory=dict)


DATASETS = {
    entry.name: entry
    for entry in (
        Dataset(
            name="pendulum-interpolation",
            about="4 000 sequences of 50 images, half of them to impute",
            source="simulated",
            time_scale=1.0,
            version=1,
            load=partial(pendulum.load, pendulum.INTERPOLATION),
        ),
        Dataset(
            name="pendulum-regression",
            about="4 000 sequences of 50 noisy images; the target is the angle",
            source="simulated",
            time_scale=1.0,
            version=1,
            load=partial(pendulum.load, pendulum.REGRESSION),
        ),
        Dataset(
            name="physionet",
            about="8 000 intensive-care patients, 48 hours, 37 variables, outcomes",
            source="PhysioNet/CinC Challenge 2012, 13 MB, ODC-By 1.0",
            time_scale=0.2,
            version=1,
            load=physionet.load,
            as_measured={"scaling": None},
        ),
        Dataset(
            name="ushcn",
            about="1 181 weather stations, 730 days of 1990-1993, 5 variables",
            source="NOAA GHCN-Daily, HCN subset, public domain",
            time_scale=0.3,
            version=2,
            load=ushcn.load,
            as_measured={"scaling": None},
        ),
    )
}


def dataset(name: str) -> Dataset:
    """Return the entry for ``name``. The error for an unknown name suggests the closest name."""
    if name not in DATASETS:
        raise InputError("name", "be a known dataset", repr(name), did_you_mean(name, DATASETS))
    return DATASETS[name]


def load(
    name: str,
    *,
    data_dir: Path | str | None = None,
    cache: Path | str | None = None,
    seed: int = 0,
    progress: bool = False,
    **options: Any,
) -> Splits:
    """Load training, validation and test sets of a dataset, prepared as in the paper.

    Args:
        name: the dataset; see `DATASETS`.
        data_dir: the folder of the raw files, else ``CRU_DATA_DIR``. Without either, they are downloaded.
        cache: the folder of prepared data, else ``CRU_CACHE_DIR``, else the user's cache folder.
        seed: the seed of the simulation, the split and the removal of values.
        progress: whether to show a bar.
        **options: options of the dataset.

    >>> import cru
    >>> train, validation, test = cru.data.load("ushcn", data_dir="raw")  # doctest: +SKIP
    """
    return dataset(name).load(
        data_dir=None if data_dir is None else Path(data_dir),
        cache=None if cache is None else Path(cache),
        seed=seed,
        progress=progress,
        **options,
    )
