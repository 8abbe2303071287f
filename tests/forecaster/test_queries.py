import dataclasses
import tracemalloc

import numpy as np
import pandas as pd
import pytest

import cru
from cru.evaluation import predict
from cru.forecaster import masking
from cru.forecaster.calibration import LEAD_NEVER_OBSERVED
from cru.forecaster.fitting import draw_training_segments, split_for_validation
from cru.forecaster.masking import make_training_task
from cru.forecaster.queries import insert_query_times, lead_times, predict_scaled
from tests.forecaster.conftest import stations


def series(lengths, *, seed=0, width=2):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    times = np.concatenate([np.sort(rng.choice(1000, n, replace=False)) for n in lengths]).astype(float)
    values = rng.normal(size=(offsets[-1], width)) + 100
    values[rng.random(values.shape) < 0.3] = np.nan
    ids = [f"s{i}" for i in range(len(lengths))]
    return cru.data.make_series(times, values, offsets, ids=ids, names=[f"v{k}" for k in range(width)])


def rows_of(part, i):
    return slice(part.offsets[i], part.offsets[i + 1])


def test_questions_are_further_time_points_without_observations():
    given = series([5, 1, 0, 7])
    at = [np.array([2000.0, -5.0, given.times[2]]), np.array([]), np.array([3.0, 3.0]), np.array([given.times[-1]])]
    asked, rows = insert_query_times(given, at)
    assert asked.times[rows].tolist() == [-5.0, given.times[2], 2000.0, 3.0, given.times[-1]]
    assert asked.lengths.tolist() == [7, 1, 1, 6]  # one row of the last has no observation
    for i in range(4):
        before = {
            t: (tuple(v), tuple(m))
            for t, v, m in zip(*(a[rows_of(given, i)] for a in (given.times, given.values, given.mask)), strict=True)
            if m.any()
        }
        times = asked.times[rows_of(asked, i)]
        assert (np.diff(times) > 0).all() and set(times) == set(before) | set(at[i])
        for t, v, m in zip(times, asked.values[rows_of(asked, i)], asked.mask[rows_of(asked, i)], strict=True):
            assert (tuple(v), tuple(m)) == before.get(t, ((0.0, 0.0), (False, False)))


@pytest.mark.parametrize("causal", [True, False])
def test_leads_are_the_times_to_the_nearest_observation_and_apart_for_a_variable_not_read_yet(causal):
    given = series([9, 1, 6, 12], seed=3)
    found = lead_times(given, causal=causal)
    for i in range(4):
        times, mask = given.times[rows_of(given, i)], given.mask[rows_of(given, i)]
        for now, lead in zip(times, found[rows_of(given, i)], strict=True):
            usable = [(abs(now - t), m) for t, m in zip(times, mask, strict=True) if t <= now or not causal]
            nearest = min((gap for gap, m in usable if m.any()), default=np.inf)
            read = np.any([m for _, m in usable], axis=0)
            assert lead.tolist() == np.where(read | np.isinf(nearest), nearest, LEAD_NEVER_OBSERVED).tolist()


def test_practice_withholds_values_runs_or_ends_and_shows_nothing_of_them(monkeypatch):
    monkeypatch.setattr(masking, "MASKING", dataclasses.replace(masking.MASKING, sparse=0.0, runs_of_a_variable=0.0))
    given = series([60] * 600 + [1] * 50, seed=1)
    task = make_training_task(given, seed=5)
    given = _rows_at(given, task)
    assert (task.values[task.hidden] == 0).all() and (task.mask == given.mask & ~task.hidden).all()
    assert (task.targets == given.values).all() and (task.hidden <= task.target_mask).all()
    told = task.target_mask & ~task.hidden
    assert told.sum() / task.mask.sum() == pytest.approx(0.2, abs=0.01)
    kinds, lost, blank = {"values": 0, "runs": 0, "end": 0}, 0, 0
    for i in range(600):
        gone, there = task.hidden[rows_of(task, i)], given.mask[rows_of(given, i)]
        rows = (gone == there).all(1) & there.any(1)
        first = int((gone.any(1)).argmax())
        if gone.any() and (gone[first:] == there[first:]).all():
            kinds["end"] += 1
            blank += bool(gone[0].any())
        elif rows.sum() == gone.any(1).sum():
            kinds["runs"] += 1
        else:
            kinds["values"] += 1
            lost += ((gone == there).all(0) & there.any(0)).any()
    assert min(kinds.values()) > 110 and kinds["end"] > 250, kinds
    assert lost > 20  # series that have a variable taken away altogether
    assert 0.03 < blank / kinds["end"] < 0.2  # and series of which nothing is shown
    assert task.hidden[task.offsets[600] :].mean() < 0.2  # a single observation is shown, mostly
    whole = series([60] * 600 + [1] * 50, seed=1)
    assert (make_training_task(whole, seed=5).hidden == task.hidden).all()
    assert make_training_task(whole, seed=6).lengths.tolist() != task.lengths.tolist()


def _rows_at(given, task):
    """The rows of series that a task kept."""
    kept = [np.isin(given.times[rows_of(given, i)], task.times[rows_of(task, i)]) for i in range(len(given))]
    return given.keep(np.concatenate(kept))


def test_a_forecast_task_ends_at_every_order_of_lead_times(monkeypatch):
    monkeypatch.setattr(masking, "MASKING", dataclasses.replace(masking.MASKING, sparse=0.0))
    given = dataclasses.replace(series([400] * 800, seed=2))
    task = make_training_task(given, seed=1)
    cut = task.lengths < given.lengths  # forecasts, but for those that reach the end
    assert 0.35 < cut.mean() < 0.55
    counts = np.array([task.hidden[rows_of(task, i)].any(1).sum() for i in np.flatnonzero(cut)])
    share = np.histogram(np.log(np.maximum(counts, 1)), np.log([1, 3, 10, 30, 400]))[0] / len(counts)
    assert (share > 0.1).all()  # near and far lead times alike


def test_many_series_are_split_by_series_and_few_by_time():
    many = series([30] * 50)
    parts = split_for_validation(many, 0)
    assert len(parts.train) == 40 and len(parts.validation) == 10
    assert not set(parts.train.ids) & set(parts.validation.ids)
    few = series([50, 100, 4])
    parts = split_for_validation(few, 0)
    assert parts.train.lengths.tolist() == [40, 40, 40, 4] and parts.validation.lengths.tolist() == [10, 10, 10]
    assert parts.train.times[39] < parts.validation.times[0]
    long = split_for_validation(series([1000]), 0)
    assert long.train.lengths.tolist() == [160] * 5 and long.validation.lengths.tolist() == [40] * 5
    assert not set(long.train.times) & set(long.validation.times)
    short = split_for_validation(series([4, 5, 6]), 0)
    assert len(short.train) == 2 and len(short.validation) == 1
    with pytest.raises(ValueError, match="at least two series, or one with 20 observations"):
        split_for_validation(series([15]), 0)


def test_windows_take_every_short_series_as_often_and_long_ones_by_their_length():
    short = draw_training_segments(series([10] * 160), np.random.default_rng(0))
    assert sorted(short.ids) == sorted([f"s{i}" for i in range(160)] * 2)
    mixed = series([20, 900])
    drawn = draw_training_segments(mixed, np.random.default_rng(0))
    counts = {name: drawn.ids.count(name) for name in ("s0", "s1")}
    assert counts == {"s0": 32, "s1": 288} and drawn.lengths.max() == 100
    starts = drawn.times[drawn.offsets[:-1]][[name == "s1" for name in drawn.ids]]
    assert len(np.unique(starts)) > 100


def test_windows_of_a_long_series_do_not_copy_it_for_each():
    length = 200_000
    times, values = np.arange(length) / 10, np.zeros((length, 1))
    long = cru.data.make_series(times, values, np.array([0, length]), ids=["a"], names=["x"])
    tracemalloc.start()
    drawn = draw_training_segments(long, np.random.default_rng(0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(drawn) == 1000 and (drawn.lengths == 100).all()
    assert peak < 20 * long.times.nbytes  # a thousand copies are a thousand times as much


def test_practice_leaves_out_some_of_the_times_that_it_withholds(monkeypatch):
    given = series([60] * 600 + [1] * 50, seed=1)
    sparse = make_training_task(given, seed=5)
    monkeypatch.setattr(masking, "MASKING", dataclasses.replace(masking.MASKING, sparse=0.0))
    dense = make_training_task(given, seed=5)
    assert (sparse.lengths > 0).all() and sparse.ids == dense.ids
    fewer = sparse.lengths < dense.lengths
    assert 0.2 < fewer[:600].mean() < 0.45  # half of the two thirds in which time points are withheld
    for i in range(600):
        some, every = rows_of(sparse, i), rows_of(dense, i)
        kept = np.isin(dense.times[every], sparse.times[some])
        assert (dense.mask[every] == 0)[~kept].all()  # nothing that is shown
        for name in ("values", "mask", "targets", "target_mask", "hidden"):
            np.testing.assert_array_equal(getattr(sparse, name)[some], getattr(dense, name)[every][kept])


def test_a_question_before_the_first_observation_moves_nothing():
    given = series([8, 8], seed=2)
    model = cru.models.create("cru", cru.models.spec_of(make_training_task(given, 0)), hidden_size=4)
    first, last = given.times[given.offsets[:-1]], given.times[given.offsets[1:] - 1]
    plain = insert_query_times(given, [last[:1] + 2, last[1:] + 2])
    early = insert_query_times(given, [np.array([first[0] - 300, first[0] - 7, last[0] + 2]), last[1:] + 2])
    alone, besides = (predict_scaled(model, query.series) for query in (plain, early))
    for said, again in zip(alone, besides, strict=True):
        np.testing.assert_allclose(again[early.rows][2:], said[plain.rows], rtol=1e-5)
        np.testing.assert_allclose(again[early.rows][0], again[early.rows][1], rtol=1e-5)  # what is known of all


def test_a_long_series_does_not_make_the_others_long():
    mixed = series([3, 900, 5, 7, 0, 640])
    mixed = dataclasses.replace(mixed, mask=np.ones_like(mixed.mask))
    model = cru.models.create("cru", cru.models.spec_of(make_training_task(mixed, 0)), hidden_size=4)
    shapes = []
    model.register_forward_hook(lambda _, inputs, __: shapes.append(tuple(inputs[0].times.shape)))
    found = predict_scaled(model, mixed)
    assert shapes == [(3, 7), (2, 900)]
    for number, (batch, said) in enumerate(predict(model, mixed, batch_size=1)):
        rows = rows_of(mixed, number)
        np.testing.assert_allclose(found.mean[rows], said.mean[batch.valid].detach().numpy(), atol=1e-5)
        for side in (found.lower, found.upper):
            np.testing.assert_allclose(side[rows] ** 2, said.var[batch.valid].detach().numpy(), rtol=1e-4)


def test_only_who_is_asked_for_is_gone_through(trained):
    table = stations(6, 25, seed=31)
    shapes = []
    hook = trained.model_.register_forward_hook(lambda _, inputs, __: shapes.append(len(inputs[0].times)))
    moments = [table["date"].max() + pd.Timedelta("2D"), table["date"].max() + pd.Timedelta("1D")]
    one = trained.predict(table, at={"s03": moments})
    frame = pd.DataFrame({"station": ["s04", "s03", "s03"], "date": [moments[0], *moments]})
    some = trained.predict(table, at=frame)
    hook.remove()
    assert shapes == [1, 2] and set(one["station"]) == {"s03"} and len(some) == 3 * 2
    pd.testing.assert_frame_equal(one, some[some["station"] == "s03"].reset_index(drop=True), check_exact=False)


def test_long_validation_series_are_watched_in_parts():
    from cru.forecaster.fitting import FIT, cut_segments

    most = FIT.longest_segment
    long = series([most + 20, 30, most])
    parts = cut_segments(long)
    assert parts.lengths.tolist() == [most, 20, 30, most] and parts.ids == ("s0", "s0", "s1", "s2")
    np.testing.assert_array_equal(parts.times, long.times)
