import numpy as np
import torch

from cru.data import Batch, extrapolation, make_series


def test_padding_repeats_the_last_time_with_nothing_observed(ragged):
    batch = extrapolation(ragged, time=2.0).batch([1, 2])
    assert batch.times.tolist() == [[7, 7, 7, 7], [0, 0.5, 3, 10]]
    assert batch.times.dtype == torch.float64
    assert batch.lengths.tolist() == [1, 4]
    assert not batch.mask[0, 1:].any()
    assert not batch.target_mask[0, 1:].any()
    assert not batch.hidden[0, 1:].any()
    assert not batch.values[0, 1:].any()
    assert batch.valid.tolist() == [[True, False, False, False], [True] * 4]
    assert batch.ids == ("b", "c")
    assert len(batch) == 2


def test_no_nan_ever_reaches_a_batch(ragged):
    batch = extrapolation(ragged, fraction=0.5).batch([0, 1, 2])
    assert torch.isfinite(batch.values).all() and torch.isfinite(batch.targets).all()
    assert not batch.values[~batch.mask].any()
    assert not batch.targets[~batch.target_mask].any()


def test_observed_is_any_feature(ragged):
    batch = ragged.batch([0])
    assert batch.observed.tolist() == [[True, True, False]]


def test_without_a_task_there_are_no_targets(ragged):
    batch = ragged.batch([0, 1])
    assert batch.targets.shape == (2, 3, 0) and batch.target_mask.shape == (2, 3, 0)


def test_to_changes_the_dtype_of_values_but_not_of_times(ragged):
    batch = extrapolation(ragged, time=1.0).batch([0, 2]).to("cpu", torch.float64)
    assert isinstance(batch, Batch)
    assert batch.values.dtype == batch.targets.dtype == torch.float64
    assert batch.times.dtype == torch.float64
    half = batch.to(dtype=torch.float16)
    assert half.values.dtype == torch.float16 and half.times.dtype == torch.float64
    assert half.mask.dtype == torch.bool and half.lengths.dtype == torch.int64
    assert batch.to("meta").values.device.type == "meta"


def test_a_series_without_any_time_point_is_all_padding():
    empty = make_series(np.zeros(0), np.zeros((0, 2)), np.array([0, 0]), ids=["e"], names=["x", "y"])
    batch = empty.batch([0])
    assert batch.times.tolist() == [[0.0]] and batch.lengths.tolist() == [0] and not batch.mask.any()
    mixed = make_series(np.array([5.0]), np.ones((1, 2)), np.array([0, 0, 1]), ids=["e", "f"], names=["x", "y"])
    batch = mixed.batch([0, 1])
    assert batch.times.tolist() == [[0.0], [5.0]] and batch.mask.any(-1).tolist() == [[False], [True]]
