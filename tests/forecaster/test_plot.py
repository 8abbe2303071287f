"""The figure of one series: how much of it is shown."""

import pandas as pd
import pytest
from matplotlib.dates import num2date

from cru.forecaster.plot import draw


def shown(figure) -> tuple[pd.Timestamp, pd.Timestamp]:
    """The first and the last time of the mean in the first panel."""
    times = pd.to_datetime(figure.axes[0].lines[0].get_xdata())
    return times.min(), times.max()


def test_the_last_part_is_shown_with_predictions_from_all_observations(repeater, table) -> None:
    own = table[table["station"] == "s03"]
    whole, part = (draw(repeater, own, horizon="10D", last=last) for last in (None, "20D"))
    end = own["date"].max()
    assert shown(whole) == (own["date"].min(), end + pd.Timedelta("10D"))
    assert shown(part) == (end - pd.Timedelta("20D"), end + pd.Timedelta("10D"))
    axis = part.axes[0]
    observed = pd.to_datetime(axis.lines[1].get_xdata())
    assert observed.min() >= end - pd.Timedelta("20D") and observed.max() == end
    before = own[own["date"] < end - pd.Timedelta("20D")]["high"].iloc[-1]
    assert axis.lines[0].get_ydata()[0] == pytest.approx(before)  # the last value before the part
    assert num2date(axis.get_xlim()[0]).replace(tzinfo=None) > end - pd.Timedelta("25D")


def test_a_length_without_a_unit_is_refused(repeater, table) -> None:
    with pytest.raises(ValueError, match="`last` must be a number with its unit"):
        draw(repeater, table, last="20")
