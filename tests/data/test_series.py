import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cru.data import make_series


def test_missing_values_are_zero_and_masked(ragged):
    assert ragged.values[2].tolist() == [0, 0] and not ragged.mask[2].any()
    assert ragged.lengths.tolist() == [3, 1, 4]
    assert ragged.series_index.tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    assert ragged.step_index.tolist() == [0, 1, 2, 0, 0, 1, 2, 3]
    assert ragged.input_shape == (2,) and ragged.target_shape == (0,) and not ragged.is_image


def test_take_keeps_series_whole_and_in_order(ragged):
    taken = ragged.take([2, 0])
    assert taken.ids == ("c", "a") and taken.times.tolist() == [0, 0.5, 3, 10, 0, 1.5, 2]
    assert taken.offsets.tolist() == [0, 4, 7]
    assert len(ragged.first(2)) == 2 and len(ragged.first(None)) == 3 and len(ragged.first(99)) == 3
    with pytest.raises(ValueError, match=r"`count` must be at least 1, got 0"):
        ragged.first(0)


def test_excerpts_are_parts_of_series_as_often_as_they_are_chosen(ragged):
    parts = ragged.excerpts([2, 0, 2], np.array([1, 0, 2]), np.array([2, 3, 0]))
    assert parts.ids == ("c", "a", "c") and parts.lengths.tolist() == [2, 3, 0]
    assert parts.times.tolist() == [0.5, 3, 0, 1.5, 2]


def test_a_mask_of_series_is_refused(ragged):
    for choose in (ragged.take, ragged.batch):
        with pytest.raises(ValueError, match=r"got a mask: take np\.flatnonzero"):
            choose([True] * len(ragged))


def test_batches_cover_every_series_once(ragged):
    assert [batch.ids for batch in ragged.batches(2)] == [("a", "b"), ("c",)]
    shuffled = [i for batch in ragged.batches(2, rng=np.random.default_rng(1)) for i in batch.ids]
    assert sorted(shuffled) == ["a", "b", "c"]
    again = [i for batch in ragged.batches(2, rng=np.random.default_rng(1)) for i in batch.ids]
    assert shuffled == again
    assert next(ragged.batches(3, dtype=torch.float64)).values.dtype == torch.float64
    with pytest.raises(ValueError, match=r"`size` must be at least 1"):
        next(ragged.batches(0))


def build(times, values=None, offsets=(0, 3)):
    values = np.zeros((len(times), 1)) if values is None else values
    ids = [f"s{k}" for k in range(len(offsets) - 1)]
    return make_series(np.array(times, float), values, np.array(offsets), ids=ids, names=["x"])


def test_decreasing_times_say_where():
    with pytest.raises(ValueError, match=r"series s0 goes from 4 to 2.5 at step 2"):
        build([1, 4, 2.5])
    with pytest.raises(ValueError, match=r"series s1 goes from 9 to 8 at step 1"):
        build([1, 9, 8], offsets=(0, 1, 3))
    build([1, 4, 2.5], offsets=(0, 2, 3))  # the next series may begin earlier
    build([1, 4, 2.5], offsets=(0, 0, 2, 2, 3, 3))  # also with empty ones around


def test_infinite_values_and_times_are_refused():
    with pytest.raises(ValueError, match=r"`values` of 'x' must be finite.* got an infinity in series s0 at time 2"):
        build([1, 2, 3], np.array([[0], [np.inf], [0]]))
    with pytest.raises(ValueError, match=r"`times` must be finite: 1 of 3"):
        build([1, np.nan, 3])


def test_times_become_float64_whatever_numbers_they_are():
    for kind in (np.int32, np.uint8, np.float32):
        made = make_series(np.array([0, 1, 2], kind), np.zeros((3, 1)), np.array([0, 3], np.int32), ids="a", names="x")
        assert made.times.dtype == np.float64 and made.offsets.dtype == np.int64
        assert made.batch([0]).times.tolist() == [[0, 1, 2]]
    with pytest.raises(ValueError, match=r"`times` must be numbers, got datetime64\[D\]. Give dates as a count"):
        make_series(np.array(["2024-01-01"], "M8[D]"), np.zeros((1, 1)), np.array([0, 1]), ids="a", names="x")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"times": np.zeros((3, 1))}, r"`times` must have one dimension, got shape \(3, 1\)"),
        ({"times": np.zeros(4)}, r"`values` must .* each of the 4 times, got float64 \(3, 2\)"),
        ({"values": np.zeros(3)}, r"`values` must hold numbers of shape \(row, feature\)"),
        ({"values": np.full((3, 2), "a")}, r"`values` must hold numbers"),
        ({"names": "x"}, r"`names` must name the 2 columns of `values`, got 1"),
        ({"names": "xyz"}, r"`names` must name the 2 columns of `values`, got 3"),
        ({"units": ["m"]}, r"`units` must be empty or as many as the 2 `names`, got 1"),
        ({"ids": "abc"}, r"`offsets` must have one entry more than the 3 `ids`.* got shape \(3,\)"),
        ({"offsets": np.array([1, 2, 3])}, r"`offsets` must rise from 0 to the number of rows, 3, got 1 to 3"),
        ({"offsets": np.array([0, 1, 2])}, r"`offsets` must rise from 0 to the number of rows, 3, got 0 to 2"),
        ({"offsets": np.array([0, 4, 3])}, r"got 0 to 3, with a fall between"),
        ({"per_time": {"label": np.zeros(2)}}, r"`per_time` of 'label' must have 3 entries, got 2"),
        (
            {"per_time": {"label": np.array([[0], [0], [np.inf]])}},
            r"`per_time` of 'label' must be finite.* in series b",
        ),
        ({"per_series": {"dead": np.zeros(3)}}, r"`per_series` of 'dead' must have 2 entries, got 3"),
    ],
)
def test_sizes_must_agree(wrong, message):
    right = {
        "times": np.zeros(3),
        "values": np.zeros((3, 2)),
        "offsets": np.array([0, 1, 3]),
        "ids": "ab",
        "names": "xy",
    }
    make_series(**right)
    with pytest.raises(ValueError, match=message):
        make_series(**(right | wrong))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.data())
def test_batch_shows_exactly_the_rows_of_each_series(lengths, data):
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = np.arange(1.0, offsets[-1] + 1)[:, None]
    series = make_series(np.zeros(offsets[-1]), values, offsets, ids=[str(k) for k in range(len(lengths))], names=["x"])
    chosen = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=5))
    batch = series.batch(chosen)
    for row, k in enumerate(chosen):
        assert batch.values[row, : lengths[k], 0].tolist() == values[offsets[k] : offsets[k + 1], 0].tolist()
        assert batch.mask[row].sum() == lengths[k]
