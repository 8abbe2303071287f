"""USHCN: daily weather at US stations, 1990 to 1993, from NOAA's GHCN-Daily (HCN subset)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cru.data import raw
from cru.data.cache import cache_dir, cached
from cru.data.datasets import ghcn
from cru.data.random import generator
from cru.data.scaler import Scaler
from cru.data.series import SeriesSet, make_series
from cru.data.splits import Splits, scale, split
from cru.progress import ProgressBar

URL = "https://www.ncei.noaa.gov/pub/data/ghcn/daily/"
ARCHIVE = "ghcnd_hcn.tar.gz"
ELEMENTS = ("PRCP", "SNOW", "SNWD", "TMAX", "TMIN")
UNITS = ("mm", "mm", "mm", "°C", "°C")
_STORED = np.array([0.1, 1, 1, 0.1, 0.1], np.float32)  # GHCN-Daily stores rain and temperature in tenths
YEARS = range(1990, 1994)
DAYS = 1461
KEPT_DAYS = 730  # 365 * 4 * 0.5
_VERSION = 1


def load(
    *,
    data_dir: Path | str | None = None,
    cache: Path | str | None = None,
    seed: int = 0,
    scaling: Literal["each", "train"] | None = "each",
    removed: float = 0.2,
    joined: bool = False,
    same_days: bool = False,
    progress: bool = False,
) -> Splits:
    """Load the sets of the paper: 60/20/20 by station, cleaned, with half of the days. Times are days since 1990-01-01.

    Args:
        data_dir: the folder of the raw files; see `cru.data.raw.data_dir`.
        cache: the cache folder; see `cru.data.cache.cache_dir`.
        seed: the seed of the split, the days and the removed values.
        scaling: scale each feature to [0, 1], with the minima and maxima of ``"each"`` set or of the ``"train"`` set.
            None keeps millimetres and degrees.
        removed: the share of observations that is removed at random. The partial-observability study needs 0.
        joined: whether the training set includes the validation stations, as in the published runs.
        same_days: whether to remove observations at the same positions of all stations, as in the published runs.
        progress: whether to show a bar while files are downloaded and read.
    """
    stations = prepare(data_dir=data_dir, cache=cache, progress=progress)
    sets = split(stations, seed=seed, joined=joined).map(drop_outliers)
    sets = sets if scaling is None else scale(sets, fit_on=scaling, kind="min-max")
    if same_days:
        return sets.map(lambda part: thin_equally(part, removed=removed, seed=seed))
    return Splits(*(thin(part, removed=removed, seed=(seed, k)) for k, part in enumerate(sets)))


def prepare(
    *, data_dir: Path | str | None = None, cache: Path | str | None = None, progress: bool = False
) -> SeriesSet:
    """Load all stations that `clean` selects, with every day of 1990 to 1993 that has an observation.

    The arguments are those of `load`.
    """
    folder = raw.data_dir(data_dir)
    sources = _find(folder) if folder else []
    # A folder can hold only some stations, so it has a cache file of its own.
    source = "folder" if folder else "download"
    key: dict[str, Any] = {"dataset": "ushcn", "version": _VERSION, "source": source}

    def build() -> tuple[SeriesSet, dict[str, Any]]:
        paths = sources or raw.download(URL, {ARCHIVE: None}, "ushcn", cache=cache, progress=progress)
        try:
            return clean(read(paths, progress=progress)), key | {"raw": raw.fingerprint(paths)}
        except ValueError as error:
            if sources:
                raise
            for path in paths:  # there is no checksum, so it can be the error page of a proxy
                path.unlink()
            error.add_note("It is removed: run this again to download a new copy.")
            raise

    wanted = key | {"raw": raw.fingerprint(sources)} if sources else key
    return cached(cache_dir(cache) / f"ushcn-{source}.npz", wanted, build)


def read(paths: list[Path], *, progress: bool = False) -> ghcn.Grid:
    """Read the five elements from 1990 to 1994. The last year shows which stations continue."""

    def files() -> Iterator[tuple[str, bytes]]:
        with ProgressBar("ushcn", show=progress) as bar:
            for name, text in ghcn.contents(paths):
                bar.update(bar.done + 1, f"read {name}")
                yield name, text

    return ghcn.parse(files(), ELEMENTS, range(YEARS.start, YEARS.stop + 1))


def clean(grid: ghcn.Grid) -> SeriesSet:
    """Select the stations that report in 1990, in 1994, and on at least 730 days of 1990 to 1993.

    Each day with an observation is a time point.
    """
    anything = ~np.isnan(grid.values).all(2)
    measured = anything[:, :DAYS]
    enough = anything[:, :365].any(1) & anything[:, DAYS:].any(1) & (measured.sum(1) >= KEPT_DAYS)
    chosen = np.flatnonzero(enough)
    if len(chosen) == 0:
        raise ValueError(
            f"the .dly files must hold stations that report in {YEARS.start}, still in {YEARS.stop}, and on "
            f"{KEPT_DAYS} days between: none of {len(grid.stations)} does."
        )
    station, day = np.nonzero(measured[chosen])
    return make_series(
        day.astype(np.float64),
        grid.values[chosen][station, day] * _STORED,
        np.searchsorted(station, np.arange(len(chosen) + 1)),
        ids=[grid.stations[i] for i in chosen],
        names=ELEMENTS,
        units=UNITS,
        time_unit="D",
        origin=f"{YEARS.start}-01-01",
    )


def drop_outliers(series: SeriesSet) -> SeriesSet:
    """Set values to missing that are more than four standard deviations from the mean of their feature."""
    standard = Scaler.fit(series.values, series.mask)
    return series.hide(np.abs(standard.transform(series.values)) > 4)


def thin(series: SeriesSet, *, removed: float, seed: int | tuple[int, ...]) -> SeriesSet:
    """Select 730 days of each station at random, then remove the share ``removed`` of the observations."""
    rng = generator(seed, "thinning")
    rows = [
        start + np.sort(rng.permutation(n)[:KEPT_DAYS])
        for start, n in zip(series.offsets[:-1], series.lengths, strict=True)
    ]
    days = series.take_rows(np.concatenate(rows), np.arange(len(series) + 1) * KEPT_DAYS)
    return days.hide(rng.random(days.values.shape) < removed)


def thin_equally(series: SeriesSet, *, removed: float, seed: int | tuple[int, ...]) -> SeriesSet:
    """Select days and remove observations as `thin` does, but with one draw for all stations.

    Every position in a series has a random rank. The 730 positions of lowest rank of a station are selected. So
    stations with the same number of days have the same positions. The n-th day loses the same features at every
    station.
    """
    rng = generator(seed, "published thinning")
    by_rank = rng.permutation(DAYS)
    rows = [
        start + np.sort(by_rank[by_rank < n][:KEPT_DAYS])
        for start, n in zip(series.offsets[:-1], series.lengths, strict=True)
    ]
    days = series.take_rows(np.concatenate(rows), np.arange(len(series) + 1) * KEPT_DAYS)
    lost = rng.random((KEPT_DAYS, days.values.shape[1])) < removed
    return days.hide(np.tile(lost, (len(series), 1)))


def _find(folder: Path) -> list[Path]:
    for place in (folder, folder / "ushcn", folder / "ghcnd_hcn"):
        for pattern in (ARCHIVE, "*.dly.gz", "*.dly"):
            found = sorted(place.glob(pattern))
            if found:
                return found
    raise FileNotFoundError(
        f"the data folder must hold {ARCHIVE}, a .dly.gz file or .dly files, itself or in a folder 'ushcn': "
        f"{folder} does not."
    )
