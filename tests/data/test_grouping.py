import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cru.data.tables import average, group, pivot

rows = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 2), st.integers(-5, 5)), min_size=1, max_size=40
)


@given(rows)
def test_pivot_agrees_with_a_dictionary(rows):
    series, times, variables, values = (np.array(column) for column in zip(*rows, strict=True))
    wide = pivot(series, times.astype(float), variables, values.astype(float), count=4, width=3)
    cells: dict[tuple[int, int, int], list[int]] = {}
    for s, t, v, x in rows:
        cells.setdefault((s, t, v), []).append(x)
    points = sorted({(s, t) for s, t, _ in cells})
    assert wide.times.tolist() == [t for _, t in points]
    assert wide.offsets.tolist() == [sum(s < k for s, _ in points) for k in range(5)]
    for p, (s, t) in enumerate(points):
        for v in range(3):
            expected = np.mean(cells[s, t, v]) if (s, t, v) in cells else np.nan
            assert wide.values[p, v] == pytest.approx(expected, nan_ok=True)
    repeated = {points.index((s, t)) for (s, t, _), xs in cells.items() if len(xs) > 1}
    assert set(wide.repeated.tolist()) == repeated


def test_a_nan_row_makes_its_time_point_exist():
    wide = pivot(np.array([0, 0]), np.array([1.0, 2.0]), np.array([0, 0]), np.array([np.nan, 3.0]), count=1, width=1)
    assert wide.times.tolist() == [1, 2] and np.isnan(wide.values[0, 0]) and wide.values[1, 0] == 3


def test_sorted_rows_stay_where_they_are():
    groups = group(np.array([0, 0, 2]), np.array([1.0, 2.0, 0.0]), 3)
    assert groups.order == slice(None) and groups.offsets.tolist() == [0, 2, 2, 3]


def test_average_leaves_out_what_is_missing():
    means = average(np.array([1, np.nan, 3, np.nan]), np.array([0, 3]))
    assert means[0] == 2 and np.isnan(means[1])
