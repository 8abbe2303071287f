"""The values of one observation of a stream."""

from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from cru.errors import InputError, did_you_mean, literal
from cru.forecaster.categories import Place, category_name, unseen
from cru.forecaster.kinds import columns_of
from cru.forecaster.table_io import sensible
from cru.shapes import Float

if TYPE_CHECKING:
    from cru.forecaster.estimator import Forecaster


def read_values(
    forecaster: "Forecaster", places: Mapping[str, int], values: Any, moment: float, series: str
) -> tuple[Float[np.ndarray, "1 1 variable"], list[bool]]:
    """Convert the values of an observation to scaled units.

    Args:
        forecaster: the fitted forecaster of the stream.
        places: the index of each variable.
        values: a mapping from variables to numbers or to names of categories. None and NaN are missing.
        moment: the time of the observation, for errors.
        series: the name of the series, for errors.

    Returns:
        The values, 0 where nothing is observed, and which variables are observed.

    Raises:
        InputError: a variable is unknown, or a value is impossible.
    """
    width, scaler = len(places), forecaster.scaler_
    row, mask = [0.0] * width, [False] * width
    if values is not None and not isinstance(values, Mapping):
        raise InputError("values", "be a mapping from variables to numbers", f"{values!r:.50}")
    for name in values or {}:
        if name not in forecaster.kinds_:
            hint = literal(did_you_mean(name, forecaster.kinds_))
            raise InputError("values", "be variables of the training table", repr(name), hint)
    for name, value in _encoded(forecaster, values or {}, moment, series).items():
        place = places[name]
        number = isinstance(value, Real | np.bool_)
        if value is None or (number and value != value):
            continue
        try:
            fine = number and sensible(value, scaler.shift[place], scaler.scale[place])
        except OverflowError:  # an integer too large for a float
            fine = False
        if not fine:
            rule = "be numbers of plausible size, or None (null) for missing"
            raise InputError("values", rule, f"{name!r}: {value!r:.50}")
        row[place], mask[place] = float(value), True
    _check_kinds(forecaster, row, mask, moment, series)
    return np.where(mask, scaler.transform(np.array([[row]])), 0.0), mask


def _encoded(forecaster: "Forecaster", values: Mapping[str, Any], moment: float, series: str) -> Mapping[str, Any]:
    """Replace each variable of kind "category" by its columns."""
    kinds, clock = forecaster.kinds_, forecaster.clock_
    if not kinds.categories:
        return values
    columns: dict[str, Any] = {}
    for name, value in values.items():
        if name not in kinds.categories:
            columns[name] = value
            continue
        known = kinds.categories[name]
        if value is None or (isinstance(value, Real) and value != value):
            continue
        if not isinstance(value, str | Real | np.bool_):
            raise InputError("values", "be texts or numbers for a category", f"{name!r}: {value!r:.50}")
        text = category_name(value)
        if text is not None and text not in known:
            raise unseen(name, text, Place(series, clock.stamp(moment)), known).replace(argument="values")
        if text is not None:
            columns |= dict(zip(columns_of(name, known), (float(text == one) for one in known), strict=True))
    return columns


def _check_kinds(forecaster: "Forecaster", row: list[float], mask: list[bool], moment: float, series: str) -> None:
    """Raise InputError if an observation is impossible for a kind that the user declared."""
    kinds = forecaster.kinds_
    if any(mask) and kinds.declared:
        wrong = kinds.forbidden(np.array([row]), np.array([mask]))[0]
        if wrong.any():
            k, stamp = int(wrong.argmax()), forecaster.clock_.stamp(moment)
            raise kinds.error(kinds.owners[k], row[k], series, stamp).replace(argument="values")
