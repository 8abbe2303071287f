import pytest

from cru.data import DATASETS, dataset, load


def test_names_and_time_scales():
    paper = {"pendulum-interpolation": 1.0, "pendulum-regression": 1.0, "physionet": 0.2, "ushcn": 0.3}
    assert paper.items() <= {name: entry.time_scale for name, entry in DATASETS.items()}.items()


def test_a_misspelt_name_gets_the_closest_match():
    with pytest.raises(ValueError, match=r"got 'physionett'. Did you mean 'physionet'"):
        dataset("physionett")
    with pytest.raises(ValueError, match=r"There are pendulum-interpolation, "):
        load("zzz")


def test_load_by_name(physionet_dir, ushcn_dir, tmp_path):
    assert len(load("physionet", data_dir=str(physionet_dir), cache=str(tmp_path / "c"), scaling=None).train) == 3
    assert (tmp_path / "c" / "physionet.npz").is_file()
    assert len(load("ushcn", data_dir=ushcn_dir, seed=3, removed=0.0).train) == 2
