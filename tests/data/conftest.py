"""Small files in the real raw formats, and the real ones where they are at hand."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from cru.data.datasets import physionet
from cru.data.series import SeriesSet, make_series
from tests.data.raw_formats import OUTCOMES, RECORDS, tar_of


@pytest.fixture
def ragged() -> SeriesSet:
    """Three series of 3, 1 and 4 time points with two features, some values missing."""
    nan = np.nan
    values = np.array([[1, nan], [2, 20], [nan, nan], [4, 40], [5, nan], [6, 60], [nan, 70], [8, 80]])
    times = np.array([0, 1.5, 2, 7, 0, 0.5, 3, 10.0])
    return make_series(times, values, np.array([0, 3, 4, 8]), ids=["a", "b", "c"], names=["x", "y"], time_unit="h")


@pytest.fixture
def physionet_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The four files of the challenge with five patients; their checksums stand in for the official ones."""
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


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the user's cache or finds the user's data by itself."""
    monkeypatch.setenv("CRU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CRU_DATA_DIR", raising=False)
