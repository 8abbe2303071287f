"""Build the sample table of `cru.data.sample("weather")` from raw lines of NOAA's GHCN-Daily.

    python examples/make_weather_sample.py RAW [OUT]

RAW is a .dly.gz file or ghcnd_hcn.tar.gz of https://www.ncei.noaa.gov/pub/data/ghcn/daily/ (public domain). OUT is by
default the file in the package.
"""

import datetime
import sys
from pathlib import Path

import numpy as np

from cru.data.datasets import ghcn
from cru.data.samples import MISSING

PACKAGED = Path(__file__).parents[1] / "src" / "cru" / "data" / "samples" / "weather.npz"
SOURCE = "NOAA GHCN-Daily, HCN stations, https://www.ncei.noaa.gov/pub/data/ghcn/daily/, public domain"
ELEMENTS = ("TMAX", "TMIN", "PRCP", "SNWD")
SCALE = (10, 10, 10, 1)  # the source stores temperature and precipitation in tenths
YEARS = range(1990, 1993)
STATIONS = 60
OFTEN = 0.6  # smallest share of the days on which a station has each element
GAPS = (0.03, 0.25)  # share of the values that a station misses: with gaps to show, but not mostly gaps


def main(raw: Path, out: Path) -> None:
    """Choose stations, evenly spaced in the order of their numbers, which go by state, and write their values."""
    grid = ghcn.parse(ghcn.contents([raw]), ELEMENTS, YEARS)
    there = ~np.isnan(grid.values)
    missing = 1 - there.mean((1, 2))
    suited = np.flatnonzero((there.mean(1) >= OFTEN).all(1) & (missing >= GAPS[0]) & (missing <= GAPS[1]))
    chosen = suited[np.linspace(0, len(suited) - 1, STATIONS).round().astype(int)]
    values = grid.values[chosen].transpose(2, 0, 1)  # one element after another: a third smaller when compressed
    np.savez_compressed(
        out,
        source=np.array(f"{SOURCE}; without quality-flagged values; made from {raw.name} on {datetime.date.today()}"),
        elements=np.array(ELEMENTS),
        units=np.array(("°C", "°C", "mm", "mm")),
        scale=np.array(SCALE, np.int16),
        stations=np.array(grid.stations)[chosen],
        first_day=np.array(f"{YEARS.start}-01-01"),
        values=np.where(np.isnan(values), MISSING, values).astype(np.int16),
    )
    print(f"{out}: {len(chosen)} of {len(suited)} suited stations, {out.stat().st_size / 1e3:.0f} KB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else PACKAGED)
