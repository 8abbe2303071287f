"""Sample tables inside the package: real data for examples, tutorials and a first try."""

from collections.abc import Callable
from importlib.resources import files
from typing import Any

import narwhals as nw
import numpy as np

from cru.data.columns import make_frame
from cru.errors import InputError, did_you_mean

MISSING = np.iinfo(np.int16).min  # marks a missing value in the stored arrays


def sample(name: str) -> Any:
    """Return a sample table.

    "weather" has 60 US weather stations of NOAA's GHCN-Daily (public domain), from 1990 to 1992. One row is one day of
    a station. Values are missing, and days without any observation have no row. These gaps are real. The stations are
    chosen among those that miss 3 to 25 % of their values. The columns are:

    - ``station``: the station number of GHCN-Daily.
    - ``date``: the day.
    - ``TMAX``, ``TMIN``: highest and lowest temperature of the day, in °C.
    - ``PRCP``: precipitation of the day, in mm.
    - ``SNWD``: depth of snow, in mm.

    Args:
        name: "weather".

    Returns:
        A pandas frame, or a polars frame if pandas is not installed.

    Raises:
        InputError: there is no such table.
        MissingExtraError: neither pandas nor polars is installed.

    >>> table = cru.data.sample("weather")
    >>> table.columns.tolist(), len(table), table["station"].nunique()
    (['station', 'date', 'TMAX', 'TMIN', 'PRCP', 'SNWD'], 63421, 60)
    """
    if name not in SAMPLES:
        raise InputError("name", "be a sample table", repr(name), did_you_mean(name, SAMPLES))
    return SAMPLES[name]()


def _weather() -> Any:
    """Read the grid of stations and days that examples/make_weather_sample.py writes.

    The file is .npz and not Parquet, because NumPy is part of the core and a Parquet reader is not. It is also smaller:
    150 KB instead of 165 KB for Parquet (zstd) and 372 KB for .csv.gz.
    """
    with files(__name__).joinpath("weather.npz").open("rb") as file, np.load(file, allow_pickle=False) as stored:
        names, values = stored["elements"].tolist(), stored["values"]  # (element, station, day), in stored units
        stations, first, scale = stored["stations"], stored["first_day"].item(), stored["scale"]
    station, day = np.nonzero((values != MISSING).any(0))  # a day without any observation has no row
    columns = {"station": stations[station], "date": np.datetime64(first, "D") + day.astype("timedelta64[D]")}
    for element, unit, stored_values in zip(names, scale, values[:, station, day], strict=True):
        columns[element] = np.where(stored_values == MISSING, np.nan, stored_values / unit)
    frame = nw.from_native(make_frame(columns, polars=False, zones={}), eager_only=True)
    return frame.with_columns(nw.col(*names).fill_nan(None)).to_native()  # polars marks missing values as null


SAMPLES: dict[str, Callable[[], Any]] = {"weather": _weather}
