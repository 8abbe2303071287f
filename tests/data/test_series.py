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
    with pytest.raises(ValueError, match=r"'x' of series s0 is infinite at time 2"):
        build([1, 2, 3], np.array([[0], [np.inf], [0]]))
    with pytest.raises(ValueError, match=r"`times` must be finite: 1 of 3"):
        build([1, np.nan, 3])


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
