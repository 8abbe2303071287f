"""What a user should be told of a table or of a question: each a sentence, or none."""

import numpy as np
from jaxtyping import Float

from cru.data import Scaler, SeriesSet
from cru.forecaster.calibration import Calibration
from cru.forecaster.clock import Clock

FEWEST, STRIKING = 100, 0.25  # readings of a variable, of whose variance one should not have so much


def lone_readings(series: SeriesSet) -> list[str]:
    """A sentence for each variable of which one reading makes much of the variance: a slip, more likely than not."""
    said = []
    for k, name in enumerate(series.names):
        rows = np.flatnonzero(series.mask[:, k])
        away = (series.values[rows, k] - series.values[rows, k].mean()) ** 2
        if len(rows) >= FEWEST and away.max() > STRIKING * away.sum():
            row = rows[away.argmax()]
            said.append(
                f"{name!r} of series {series.ids[series.series_index[row]]!r} is once {series.values[row, k]:g}, which "
                f"makes {away.max() / away.sum():.0%} of the variance of all {len(rows)} readings, and all intervals "
                "as wide. If it is a slip, mend it or leave it missing."
            )
    return said


def changed(series: SeriesSet, scaler: Scaler, calibration: Calibration) -> list[str]:
    """A variable that never varied in training is said to be that constant, whatever is read now."""
    shift = np.array(scaler.shift)
    other = series.mask & calibration.constant & ~np.isclose(series.values, shift, rtol=1e-9, atol=0.0)
    return [
        f"{series.names[k]!r} was always {shift[k]:g} in training, and is predicted as that, though the table has "
        f"{int(other[:, k].sum())} other readings: fit again."
        for k in np.flatnonzero(other.any(0))
    ]


def far(lead: Float[np.ndarray, "n variable"], longest: float | None, clock: Clock) -> list[str]:
    """Where nothing has been practised, nothing is promised."""
    farthest = float(np.max(lead[np.isfinite(lead)], initial=0.0))
    if longest is None or farthest <= longest:
        return []
    asked, practised = clock.written(farthest), clock.written(longest)
    return [
        f"answers lie up to {asked} from the readings that they go by, and no more than {practised} could be practised "
        "on the training table: beyond that neither means nor intervals have been tested."
    ]
