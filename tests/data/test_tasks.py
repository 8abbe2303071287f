import dataclasses

import numpy as np
import pytest
import torch

from cru.data import extrapolation, interpolation, make_series, one_step_ahead, partial_observability, regression
from cru.data.datasets.pendulum import INTERPOLATION, REGRESSION, generate
from cru.data.tasks import TASKS

TASK_CASES = {
    "interpolation": lambda s: interpolation(s, hidden=0.4, seed=3),
    "extrapolation by time": lambda s: extrapolation(s, time=4.0),
    "extrapolation by fraction": lambda s: extrapolation(s, fraction=0.5),
    "one-step-ahead": one_step_ahead,
}


def random_series(seed=0, count=12, features=5):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 20, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    times = np.concatenate([np.sort(rng.uniform(0, 10, n)) for n in lengths])
    values = rng.normal(size=(offsets[-1], features))
    values[rng.random(values.shape) < 0.3] = np.nan
    return make_series(times, values, offsets, ids=range(count), names=[f"f{k}" for k in range(features)])


def assert_same_inputs(one, other):
    for a, b in zip(one.batches(5), other.batches(5), strict=True):
        assert torch.equal(a.times, b.times) and torch.equal(a.values, b.values) and torch.equal(a.mask, b.mask)
        assert torch.equal(a.lengths, b.lengths)


@pytest.mark.parametrize("name", [name for name in TASK_CASES if name != "one-step-ahead"])
def test_poisoned_hidden_entries_change_no_model_input(name):
    series, task = random_series(), TASK_CASES[name]
    tasked = task(series)
    poisoned = task(dataclasses.replace(series, values=np.where(tasked.hidden, 1e30, series.values)))
    assert tasked.hidden.any()
    assert (poisoned.targets[tasked.hidden] == 1e30).all()
    assert_same_inputs(tasked, poisoned)
    missing = task(dataclasses.replace(series, values=np.where(series.mask, series.values, 1e30)))
    for a, b in zip(tasked.batches(5), missing.batches(5), strict=True):
        assert torch.equal(a.values[a.mask], b.values[b.mask])


def test_one_step_ahead_shows_an_observation_only_after_it_was_asked_for():
    series = random_series(count=4)
    tasked = one_step_ahead(series)
    for row in range(len(series.times)):
        values = np.where((np.arange(len(series.times)) == row)[:, None], 1e30, series.values)
        poisoned = one_step_ahead(dataclasses.replace(series, values=values))
        number = int(series.series_index[row])
        first, step = tasked.offsets[number], row - series.offsets[number]
        shown = first + 2 * step  # its question, if it has one, is the row before
        differs = (poisoned.values != tasked.values).any(1)
        assert np.flatnonzero(differs).tolist() == ([shown] if series.mask[row].any() else [])
        asked = (poisoned.targets != tasked.targets).any(1)
        assert np.flatnonzero(asked).tolist() == ([shown - 1] if step and series.mask[row].any() else [])


@pytest.mark.parametrize("name", TASK_CASES)
def test_contract_of_every_task(name):
    series = random_series()
    before = {f: getattr(series, f).copy() for f in ("times", "values", "mask", "offsets")}
    tasked = TASK_CASES[name](series)
    assert all(np.array_equal(getattr(series, f), a) for f, a in before.items()), "a task must not change its input"
    assert tasked.task is not None and tasked.task.likelihood == "gaussian"
    assert tasked.hidden.shape == tasked.target_mask.shape == tasked.targets.shape
    assert not (tasked.hidden & ~tasked.target_mask).any()
    assert not (tasked.hidden & tasked.mask).any(), "what is hidden is not among the inputs"
    assert not tasked.values[~tasked.mask].any() and not tasked.targets[~tasked.target_mask].any()
    assert_same_inputs(tasked, TASK_CASES[name](series))


def test_interpolation_hides_whole_time_points_at_the_share():
    series = random_series(count=2000)
    tasked = interpolation(series, hidden=0.3, seed=1, keep_before=1.0)
    early = series.times < 1.0
    assert np.array_equal(tasked.mask[early], series.mask[early])
    gone = (series.mask & ~tasked.mask).any(1)[series.mask.any(1) & ~early]
    assert gone.mean() == pytest.approx(0.3, abs=0.02)
    assert np.array_equal(tasked.target_mask, series.mask) and np.array_equal(tasked.targets, series.values)
    rows = tasked.hidden.any(1)
    assert not tasked.mask[rows].any(), "a time point is hidden whole"
    everything = interpolation(series, hidden=0.0)
    assert not everything.hidden.any() and np.array_equal(everything.values, series.values)
    with pytest.raises(ValueError, match=r"`hidden` must be a share"):
        interpolation(series, hidden=1.0)


def test_extrapolation_cuts_by_time_or_by_fraction(ragged):
    by_time = extrapolation(ragged, time=2.0)
    assert by_time.mask.any(1).tolist() == [True, True, False, False, True, True, False, False]
    by_fraction = extrapolation(ragged, fraction=0.5)
    assert by_fraction.mask.any(1).tolist() == [True, False, False, False, True, True, False, False]
    assert by_time.task.scored == "hidden"
    for wrong in ({}, {"time": 1.0, "fraction": 0.5}):
        with pytest.raises(ValueError, match=r"`time` must be given if and only if the fraction is not, got"):
            extrapolation(ragged, **wrong)
    with pytest.raises(ValueError, match=r"`fraction` must lie between 0 and 1, got 2"):
        extrapolation(ragged, fraction=2.0)


def test_one_step_ahead_asks_before_it_tells(ragged):
    tasked = one_step_ahead(ragged)
    assert tasked.lengths.tolist() == [5, 1, 7]
    assert tasked.times[:5].tolist() == [0, 1.5, 1.5, 2, 2]
    assert tasked.mask[:5].any(1).tolist() == [True, False, True, False, False]
    assert tasked.target_mask[:5].any(1).tolist() == [False, True, False, False, False]
    assert tasked.targets[1].tolist() == [2, 20] and tasked.values[2].tolist() == [2, 20]
    assert tasked.task.causal
    assert tasked.target_mask.sum() == ragged.mask.sum() - ragged.mask[ragged.offsets[:-1]].sum()
    empty = make_series(np.zeros(0), np.zeros((0, 1)), np.array([0, 0]), ids=["e"], names=["x"])
    assert one_step_ahead(empty).lengths.tolist() == [0]


def test_labels_in_small_whole_numbers_are_no_pictures():
    label = np.arange(4, dtype=np.uint8)
    flat = np.arange(4.0), np.ones((4, 1)), np.array([0, 4])
    series = make_series(*flat, ids=["a"], names=["x"], per_time={"label": label})
    assert regression(series, target="label").batch([0]).targets.flatten().tolist() == [0, 1, 2, 3]


def test_regression_takes_its_targets_from_the_labels():
    series = generate(REGRESSION, 3, seed=0)
    tasked = regression(series, target="sin_cos")
    assert tasked.target_shape == (2,) and tasked.task.likelihood == "gaussian"
    assert tasked.target_mask.all() and not tasked.hidden.any()
    batch = tasked.batch([0, 1])
    assert batch.values.shape == (2, 50, 1, 24, 24) and batch.mask.shape == (2, 50, 1, 1, 1)
    assert torch.allclose(batch.targets.square().sum(-1), torch.ones(2, 50))
    assert batch.extras["noise"].shape == (2, 50)
    with pytest.raises(ValueError, match=r"got 'angle'; there is 'sin_cos', 'noise'"):
        regression(series, target="angle")
    half_known = series.per_time["sin_cos"].copy()
    half_known[::2] = np.nan
    labelled = dataclasses.replace(series, per_time={"partly": half_known[:, 0]})
    partly = regression(labelled, target="partly")
    assert partly.target_mask.mean() == 0.5 and np.isfinite(partly.targets).all()


def test_image_interpolation_hides_frames_and_is_bernoulli():
    series = generate(INTERPOLATION, 40, seed=0)
    tasked = interpolation(series, hidden=0.5, keep_before=5.0)
    assert tasked.task.likelihood == "bernoulli" and tasked.target_shape == (1, 24, 24)
    assert tasked.mask[series.times < 5].all()
    assert not tasked.values[~tasked.mask[:, 0, 0, 0]].any()
    batch = tasked.batch([0, 1, 2])
    assert batch.targets.min() >= 0 and batch.targets.max() <= 1 and batch.targets.max() > 0.9
    assert tasked.mask.mean() == pytest.approx(0.52, abs=0.03)
    ahead = one_step_ahead(series)
    assert ahead.mask.shape == (40 * 99, 1, 1, 1) and not ahead.values[~ahead.mask[:, 0, 0, 0]].any()


def test_partial_observability_hides_each_degree_at_its_share():
    rng = np.random.default_rng(0)
    full = make_series(
        np.arange(50_000.0), rng.normal(size=(50_000, 5)), np.array([0, 50_000]), ids=["a"], names="abcde"
    )
    sampled = partial_observability(full, seed=1)
    degree = 5 - sampled.mask.sum(1)
    shares = np.bincount(degree, minlength=6) / len(degree)
    assert shares == pytest.approx([0.6, 0.1, 0.1, 0.1, 0.1, 0], abs=0.01)
    assert sampled.mask.mean(0) == pytest.approx(np.full(5, 0.8), abs=0.01), "no feature is hidden more than another"
    assert not sampled.values[~sampled.mask].any()
    assert partial_observability(full, probability=0.0).mask.all()
    with pytest.raises(ValueError, match=r"`probability` must be from 0 to 1/4"):
        partial_observability(full, probability=0.3)
    with pytest.raises(ValueError, match=r"at least two features"):
        partial_observability(generate(INTERPOLATION, 1))


def test_hide_forgets_values(ragged):
    hidden = ragged.hide(np.ones_like(ragged.mask))
    assert not hidden.values.any() and not hidden.mask.any() and ragged.mask.any()


@pytest.mark.parametrize(
    "second", [*TASK_CASES.values(), lambda s: regression(s, target="label"), partial_observability]
)
@pytest.mark.parametrize("first", TASK_CASES)
def test_a_second_task_is_refused(first, second):
    series = random_series()
    series = dataclasses.replace(series, per_time={"label": series.times})
    tasked = TASK_CASES[first](series)
    with pytest.raises(ValueError, match=rf"`series` must not have a task yet: it has '{tasked.task.name}'"):
        second(tasked)


def test_tasks_by_name():
    assert set(TASKS) == {"interpolation", "extrapolation", "regression", "one-step-ahead"}
