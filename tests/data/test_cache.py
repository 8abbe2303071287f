import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest

from cru.data.cache import cache_dir, cached, load_series, save_series

KEY = {"dataset": "small", "version": 1, "sizes": [1, 2]}


def test_what_is_written_is_what_is_read(ragged, tmp_path):
    kept = dataclasses.replace(
        ragged, per_time={"noise": np.arange(8.0)}, per_series={"dead": np.array([0, 1, np.nan])}, origin="1990-01-01"
    )
    save_series(tmp_path / "deep" / "x.npz", kept, KEY)
    again = load_series(tmp_path / "deep" / "x.npz", KEY)
    for name in ("times", "values", "mask", "offsets"):
        assert np.array_equal(getattr(again, name), getattr(kept, name))
    assert (again.ids, again.names, again.time_unit, again.origin) == (("a", "b", "c"), ("x", "y"), "h", "1990-01-01")
    assert np.array_equal(again.per_time["noise"], kept.per_time["noise"])
    assert np.array_equal(again.per_series["dead"], kept.per_series["dead"], equal_nan=True)
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["x.npz"]


def test_another_key_is_another_thing(ragged, tmp_path):
    path = tmp_path / "x.npz"
    assert load_series(path, KEY) is None
    save_series(path, ragged, KEY)
    assert load_series(path, KEY | {"version": 2}) is None
    assert load_series(path, {}) is not None
    assert load_series(path, {"version": 1}) is not None and load_series(path, {"version": 2}) is None


@pytest.mark.parametrize("where", [0.2, 0.5, 0.9])
def test_a_damaged_file_is_noticed_and_made_again(ragged, tmp_path, caplog, where):
    path = tmp_path / "x.npz"
    save_series(path, ragged, KEY)
    whole = path.read_bytes()
    spoilt = bytearray(whole)
    at = int(len(whole) * where)
    spoilt[at : at + 8] = bytes(255 - b for b in spoilt[at : at + 8])
    for damaged in (bytes(spoilt), whole[: int(len(whole) * where)], b""):
        path.write_bytes(damaged)
        with caplog.at_level(logging.WARNING):
            again = cached(path, KEY, lambda: (ragged, KEY))
        assert np.array_equal(again.values, ragged.values)
    assert "is damaged" in caplog.text
    assert load_series(path, KEY) is not None


def test_a_changed_array_with_a_valid_zip_is_noticed(ragged, tmp_path):
    path = tmp_path / "x.npz"
    save_series(path, ragged, KEY)
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **(arrays | {"values": arrays["values"] + 1}))
    assert load_series(path, KEY) is None


def test_a_pickle_is_never_loaded(ragged, tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, header=np.array([{"format": 1}], dtype=object))
    assert load_series(path, {}) is None


def test_an_interrupted_write_leaves_nothing(ragged, tmp_path, monkeypatch):
    def interrupted(file, **arrays):
        file.write(b"half")
        raise KeyboardInterrupt

    path = tmp_path / "x.npz"
    save_series(path, ragged, KEY)
    before = path.read_bytes()
    monkeypatch.setattr(np, "savez", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_series(path, ragged, KEY)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir() if p.is_file()] == ["x.npz"]


def test_the_folder_is_chosen_or_named_or_the_users(monkeypatch):
    assert cache_dir(Path("here")) == Path("here")
    monkeypatch.setenv("CRU_CACHE_DIR", "there")
    assert cache_dir() == Path("there")
    monkeypatch.delenv("CRU_CACHE_DIR")
    assert cache_dir().name == "cru"


def test_series_that_cannot_be_kept_are_used_all_the_same(ragged, tmp_path, caplog):
    (tmp_path / "file").write_text("")  # where nobody, not even root, can make a folder
    path = tmp_path / "file" / "kept.npz"
    found = cached(path, {"a": 1}, lambda: (ragged, {"a": 1}))
    assert found is ragged and "cannot be saved" in caplog.text
