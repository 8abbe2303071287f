"""Small files in the real raw formats, and the real ones where they are at hand."""

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from cru.data.series import SeriesSet, make_series

RECORDS = {
    "132539": "00:00,RecordID,132539\n00:00,Age,54\n00:00,Gender,0\n00:00,Height,-1\n00:00,ICUType,4\n00:00,Weight,-1\n"
    "00:07,HR,73\n00:07,GCS,15\n01:02,HR,80\n01:03,HR,82\n30:00,HR,90\n",
    "132540": "00:00,RecordID,132540\n00:00,Age,76\n00:00,Weight,80.5\n00:05,Temp,35.1\n47:59,Temp,37.5\n",
    "132541": "00:00,RecordID,132541\n00:00,Weight,-1\n",  # nothing measured at all
    "132543": "00:00,RecordID,132543\n10:00,pH,735\n10:03,pH,7.4\n",
    "132545": "00:00,RecordID,132545\n00:00,Weight,-1\n00:02,Weight,70\n24:00,HR,60\n",
}
OUTCOMES = "RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death\n132539,6,1,5,-1,0\n132540,16,8,8,12,1\n"


@pytest.fixture
def ragged() -> SeriesSet:
    """Three series of 3, 1 and 4 time points with two features, some values missing."""
    nan = np.nan
    values = np.array([[1, nan], [2, 20], [nan, nan], [4, 40], [5, nan], [6, 60], [nan, 70], [8, 80]])
    times = np.array([0, 1.5, 2, 7, 0, 0.5, 3, 10.0])
    return make_series(times, values, np.array([0, 3, 4, 8]), ids=["a", "b", "c"], names=["x", "y"], time_unit="h")


def tar_of(files: dict[str, str]) -> bytes:
    """A gzipped tar archive in memory."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


@pytest.fixture
def physionet_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The four files of the challenge with five patients; their checksums stand in for the official ones."""
    import hashlib

    from cru.data.datasets import physionet

    folder = tmp_path / "raw" / "physionet2012"
    folder.mkdir(parents=True)
    names = list(RECORDS)
    header = "Time,Parameter,Value\n"
    for which, chosen in (("a", names[:3]), ("b", names[3:])):
        files = {f"set-{which}/{name}.txt": header + RECORDS[name] for name in chosen}
        (folder / f"set-{which}.tar.gz").write_bytes(tar_of(files))
    (folder / "Outcomes-a.txt").write_text(OUTCOMES)
    (folder / "Outcomes-b.txt").write_text(OUTCOMES.splitlines()[0] + "\n132543,5,5,5,5,1\n")
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in physionet.FILES}
    monkeypatch.setattr(physionet, "FILES", sums)
    return folder.parent


def dly_line(station: str, year: int, month: int, element: str, values: dict[int, tuple[int, str]]) -> str:
    """One GHCN-Daily line; ``values`` are day -> (value, quality flag)."""
    days = [values.get(day, (-9999, " ")) for day in range(1, 32)]
    return f"{station:11s}{year:4d}{month:02d}{element:4s}" + "".join(f"{v:5d} {flag} " for v, flag in days)


def dly_text(station: str, years: range, *, seed: int = 0) -> str:
    """Lines of a whole station: two elements on every day of every month."""
    rng = np.random.default_rng(seed)
    lines = []
    for year in years:
        for month in range(1, 13):
            begin = np.datetime64(f"{year}-{month:02d}")
            last = int(((begin + 1).astype("datetime64[D]") - begin.astype("datetime64[D]")).astype(int))
            for element, low, high in (("TMAX", -100, 300), ("PRCP", 0, 200)):
                values = {day: (int(rng.integers(low, high)), " ") for day in range(1, last + 1)}
                lines.append(dly_line(station, year, month, element, values))
    return "".join(line + "\n" for line in lines)


@pytest.fixture
def ushcn_dir(tmp_path: Path) -> Path:
    """Five stations in one gzip of lines: all report 1990 to 1994, but the last one stops in 1992."""
    folder = tmp_path / "raw" / "ushcn"
    folder.mkdir(parents=True)
    stations = [dly_text(f"USC0000000{k}", range(1990, 1995 if k < 5 else 1993), seed=k) for k in range(1, 6)]
    (folder / "some.dly.gz").write_bytes(gzip.compress("".join(stations).encode()))
    return folder.parent


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the user's cache or finds the user's data by itself."""
    monkeypatch.setenv("CRU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CRU_DATA_DIR", raising=False)
