"""Training, validation and test sets, by series, and their scaling."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from cru.data.random import generator
from cru.data.scaler import Scaler, ScalingMethod
from cru.data.series import SeriesSet
from cru.errors import InputError
from cru.shapes import Int64


class Splits(NamedTuple):
    """Training, validation and test series. Test series are never training or validation series."""

    train: SeriesSet
    validation: SeriesSet
    test: SeriesSet

    def map(self, function: Callable[[SeriesSet], SeriesSet]) -> "Splits":
        """Apply a function, such as a task, to each part."""
        return Splits(*(function(part) for part in self))

    def first(self, train: int | None = None, validation: int | None = None, test: int | None = None) -> "Splits":
        """Select the first series of each part, for a short run. None: all."""
        return Splits(self.train.first(train), self.validation.first(validation), self.test.first(test))


def split(
    series: SeriesSet,
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2),
    *,
    seed: int = 0,
    joined: bool = False,
) -> Splits:
    """Split series at random. The same ``seed`` gives the same sets on every machine.

    Args:
        series: at least 3 series.
        fractions: the shares of training, validation and test. Those of validation and test are rounded down to at
            least one series.
        seed: the seed of the split.
        joined: whether the training set includes the validation series, as in the published runs.

    Raises:
        ValueError: there are fewer than 3 series, or ``fractions`` are not valid.

    >>> from cru.data import split
    >>> series = cru.data.from_arrays({"X": np.ones((5, 3, 2))})
    >>> [len(part) for part in split(series, seed=0)]
    [3, 1, 1]
    """
    if min(fractions) <= 0 or abs(sum(fractions) - 1) > 1e-9:
        raise InputError("fractions", "be three positive shares that add up to 1", fractions)
    count = len(series)
    if count < 3:
        hint = "Cut a long series into several, each with its own id."
        raise InputError("series", "hold at least 3 series to train, validate and test on", count, hint)
    test = max(1, int(fractions[2] * count + 1e-9))
    validation = min(max(1, int(fractions[1] * count + 1e-9)), count - test - 1)
    train = count - validation - test
    order = generator(seed, "split").permutation(count)
    return split_series(series, order, (train, validation, test), joined=joined)


def split_series(
    series: SeriesSet, order: Int64[np.ndarray, " series"], sizes: tuple[int, int, int], *, joined: bool = False
) -> Splits:
    """Divide series into sets.

    Args:
        series: the series to divide.
        order: numbers of series: those of training, then of validation, then of test. Each set is sorted.
        sizes: the number of series of each set.
        joined: whether the training set includes the validation series.
    """
    train, validation = sizes[0], sizes[0] + sizes[1]
    parts = (order[: validation if joined else train], order[train:validation], order[validation:])
    return Splits(*(series.take(np.sort(part)) for part in parts))


def scale(
    splits: Splits,
    fit_on: Literal["train", "each"] = "train",
    kind: ScalingMethod = "standard",
    *,
    through_zero: bool = False,
) -> Splits:
    """Scale all sets with the statistics of the training set (default), or each set with its own (as in the paper).

    Args:
        splits: the sets, whose values are features and not images.
        fit_on: the set of the statistics: ``"train"`` or ``"each"``.
        kind: the statistics; see `Scaler.fit`.
        through_zero: whether to add a zero to the values; see `Scaler.fit`.

    Raises:
        ValueError: the values are images, or an option is not valid.

    >>> from cru.data import scale, split
    >>> splits = split(cru.data.from_arrays({"X": np.random.randn(5, 3, 2)}))
    >>> splits = scale(splits)                                   # mean 0 and variance 1 on the training set
    >>> splits = scale(splits, fit_on="each", kind="min-max")    # every set to [0, 1] with its own minima and maxima
    """

    def fitted(part: SeriesSet) -> Scaler:
        return Scaler.fit(part.values, part.mask, kind, through_zero=through_zero)

    if fit_on not in ("train", "each"):
        raise InputError("fit_on", "be 'train' or 'each'", repr(fit_on))
    if splits.train.is_image:
        raise InputError("splits", "hold features, not images, whose pixels are already in [0, 1] in a batch")
    if fit_on == "each":
        return splits.map(lambda part: part.scaled_by(fitted(part)))
    scaler = fitted(splits.train)
    return splits.map(lambda part: part.scaled_by(scaler))
