import gzip

import numpy as np
import pytest

from cru.data import extrapolation
from cru.data.datasets import ushcn
from tests.data.raw_formats import dly_line, dly_text, tar_of


def test_stations_that_stop_early_are_left_out(ushcn_dir):
    stations = ushcn.prepare(data_dir=ushcn_dir)
    assert stations.ids == tuple(f"USC0000000{k}" for k in range(1, 5))
    assert stations.names == ("PRCP", "SNOW", "SNWD", "TMAX", "TMIN")
    assert stations.lengths.tolist() == [1461] * 4 and stations.times.max() == 1460
    assert stations.mask.any(0).tolist() == [True, False, False, True, False]
    assert stations.values[:, 3].max() < 30 and stations.values[:, 0].max() < 20, "tenths became units"
    assert stations.origin == "1990-01-01" and stations.time_unit == "D"


def test_the_papers_sets(ushcn_dir):
    parts = ushcn.load(data_dir=ushcn_dir)
    assert [len(part) for part in parts] == [2, 1, 1]
    for part in parts:
        assert (part.lengths == 730).all()
        assert part.mask[:, 3].mean() == pytest.approx(0.8, abs=0.05)
        seen = part.values[part.mask]
        assert seen.min() >= 0 and seen.max() <= 1
        assert (np.diff(part.times)[np.diff(part.series_index) == 0] >= 1).all()
    again = ushcn.load(data_dir=ushcn_dir)
    assert np.array_equal(parts.train.values, again.train.values)
    other = ushcn.load(data_dir=ushcn_dir, seed=1)
    assert not np.array_equal(parts.train.times, other.train.times)
    half = extrapolation(parts.test, fraction=0.5)
    assert half.hidden.any(1)[365:].mean() > 0.9 and not half.hidden[:365].any()


def test_options(ushcn_dir):
    full = ushcn.load(data_dir=ushcn_dir, removed=0.0, scaling=None)
    assert full.train.mask[:, 3].all() and full.train.values.min() < 0
    shared = ushcn.load(data_dir=ushcn_dir, scaling="train")
    assert shared.train.scaler == shared.test.scaler


def test_the_published_protocol(ushcn_dir):
    apart, joined = (ushcn.load(data_dir=ushcn_dir, joined=on, same_days=on) for on in (False, True))
    assert set(joined.train.ids) == {*apart.train.ids, *apart.validation.ids} and joined.test.ids == apart.test.ids
    days = {tuple(times) for part in joined for times in part.times.reshape(-1, 730)}
    assert len(days) == 1, "stations with as many days keep the same ones"
    assert len({tuple(times) for part in apart for times in part.times.reshape(-1, 730)}) == 4
    lost = [~part.mask[:, 3].reshape(-1, 730) for part in joined]
    assert (np.concatenate(lost) == lost[0][0]).mean() > 0.99, "outliers apart"
    assert lost[0].mean() == pytest.approx(0.2, abs=0.05)


def test_outliers_beyond_four_standard_deviations_go(ragged):
    values = np.concatenate([np.random.default_rng(0).normal(0, 1, 999), [50.0]])[:, None]
    from cru.data import make_series

    series = make_series(np.arange(1000.0), values, np.array([0, 1000]), ids=["a"], names=["x"])
    dropped = ushcn.drop_outliers(series)
    assert not dropped.mask[-1, 0] and dropped.mask[:-1].all() and dropped.values[-1, 0] == 0


def test_the_cache_serves_the_source_that_it_was_made_from(ushcn_dir, tmp_path, monkeypatch):
    archive = tmp_path / "ghcnd_hcn.tar.gz"
    text = "".join(dly_text(f"USC0000001{k}", range(1990, 1995), seed=k) for k in range(3))
    archive.write_bytes(tar_of({"ghcnd_hcn/all.dly": text}))
    downloads = []
    monkeypatch.setattr(ushcn.raw, "download", lambda *_, **__: downloads.append(1) or [archive])
    parse = ushcn.ghcn.parse

    few = ushcn.prepare(data_dir=ushcn_dir)
    assert not downloads
    whole = ushcn.prepare()
    assert downloads == [1] and whole.ids == ("USC00000010", "USC00000011", "USC00000012")

    monkeypatch.setattr(ushcn.ghcn, "parse", None)
    assert ushcn.prepare(data_dir=ushcn_dir).ids == few.ids, "both are kept"
    assert ushcn.prepare().ids == whole.ids and downloads == [1]

    monkeypatch.setattr(ushcn.ghcn, "parse", parse)
    (ushcn_dir / "ushcn" / "some.dly.gz").write_bytes(gzip.compress(text.encode()))
    assert ushcn.prepare(data_dir=ushcn_dir).ids == whole.ids, "other raw files are read anew"


def test_a_folder_without_weather_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"must hold ghcnd_hcn.tar.gz, a .dly.gz file or .dly files"):
        ushcn.prepare(data_dir=tmp_path)


def test_too_few_days_leave_no_station(tmp_path):
    lines = [dly_line("USC00000001", year, 1, "TMAX", {1: (215, " ")}) for year in range(1990, 1995)]
    (tmp_path / "x.dly").write_text("".join(line + "\n" for line in lines))
    with pytest.raises(ValueError, match=r"none of 1 does"):
        ushcn.prepare(data_dir=tmp_path)


@pytest.mark.data
def test_real_stations(real_data, shared_cache):
    """1 205 stations have lines; 1 187 report in both 1990 and 1994; 1 181 of them on at least 730 days between."""
    stations = ushcn.prepare(data_dir=real_data, cache=shared_cache)
    assert len(stations) == 1181
    grid = ushcn.read(ushcn._find(real_data))
    anything = ~np.isnan(grid.values).all(2)
    both = anything[:, :365].any(1) & anything[:, 1461:].any(1)
    assert (len(grid.stations), int(both.sum())) == (1205, 1187)
    assert (anything[:, :1461].sum(1) >= 730).sum() == 1189
    parts = ushcn.load(data_dir=real_data, cache=shared_cache)
    assert [len(part) for part in parts] == [709, 236, 236]
    assert all((part.lengths == 730).all() for part in parts)
    assert parts.train.mask.mean() == pytest.approx(0.776, abs=0.005)


@pytest.mark.data
def test_real_trivial_predictors(real_data, shared_cache):
    """What the mean of the training set and that of the series so far reach, averaged over four splits."""
    scores = []
    for seed in range(4):
        parts = ushcn.load(data_dir=real_data, cache=shared_cache, seed=seed)
        train, test = parts.train, extrapolation(parts.test, fraction=0.5)
        mean = train.values.sum(0, dtype=float) / train.mask.sum(0)
        seen = np.add.reduceat(test.mask, test.offsets[:-1], dtype=int)
        own = np.add.reduceat(test.values, test.offsets[:-1], dtype=float) / np.maximum(seen, 1)
        own = np.where(seen > 0, own, mean)[test.series_index]
        scores.append([((test.targets - p) ** 2)[test.hidden].mean() for p in (mean, own)])
    assert np.mean(scores, 0) == pytest.approx([1.64e-2, 1.44e-2], rel=0.08)


def test_a_wrong_page_in_place_of_the_archive_is_removed(tmp_path, monkeypatch):
    page = tmp_path / ushcn.ARCHIVE
    page.write_text("<html>Please log in.</html>")
    monkeypatch.setattr(ushcn.raw, "download", lambda *_, **__: [page])
    with pytest.raises(ValueError, match=r"(?s)gzip archive.*It is removed: run this again"):
        ushcn.prepare(cache=tmp_path / "cache")
    assert not page.exists()
