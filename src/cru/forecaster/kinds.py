"""Kinds of variables: the values that a variable can have, inferred from a table or declared by the user."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from cru.data import SeriesSet
from cru.errors import InputError, did_you_mean, literal, some
from cru.forecaster.clock import Clock
from cru.shapes import Bool, Float, Int64

Kind = Literal["number", "nonnegative", "count", "binary", "category"]
KINDS: tuple[Kind, ...] = get_args(Kind)
UNBOUNDED = 1e300  # stands for no bound
KIND_RULES = {  # rules for an observation of a declared kind
    "nonnegative": "not be negative, because its kind is 'nonnegative'",
    "count": "hold integers of at least 0, because its kind is 'count'",
    "binary": "hold 0 or 1, because its kind is 'binary'",
    "category": "have one category at a time, because its kind is 'category'",
}
KIND_HINTS = {  # the alternatives to a correction of the observation
    "nonnegative": ", or fit with the kind 'number'",
    "count": ", or fit with the kind 'nonnegative' or 'number'",
    "binary": ", or fit with the kind 'count' or 'number'",
    "category": "",
}


@dataclass(frozen=True)
class KindInferenceConstants:
    """Conditions under which a kind is inferred.

    A count has no unit, and its scale starts at 0. So zeros occur, most values are small, and the variance is near the
    mean (equal for a Poisson distribution). Measurements in whole units, such as heart rate, glucose, years,
    temperature or rain, break at least one of these rules. So they have the kind "number", also if they are rounded.
    """

    min_values: int = 30  # fewest observations of a count or a binary variable
    min_zeros: float = 0.02  # smallest share of zeros of a count
    max_median: float = 5.0  # of a count
    max_dispersion: float = 10.0  # ratio of variance and mean of a count; about 20 for daily rain in whole millimetres
    skewness: float = 1.0  # a variable with a larger skewness is skewed


KIND_INFERENCE = KindInferenceConstants()


def skewness(values: Float[np.ndarray, " n"]) -> float:
    """Return the skewness of values, 0 if all are equal.

    >>> from cru.forecaster.kinds import skewness
    >>> skewness(np.array([0.0, 0.0, 0.0, 8.0])) > 1
    True
    """
    deviation = values - values.mean()
    spread = deviation.std()
    return float((deviation**3).mean() / spread**3) if spread > 0 else 0.0


def infer_kind(values: Float[np.ndarray, " n"]) -> Kind:
    """Infer the kind of a variable from its observations, "number" unless another kind is clear.

    - "binary": only 0 and 1 occur, and both do;
    - "count": integers that fulfil `KindInferenceConstants`;
    - "nonnegative": never negative, and skewed or sometimes 0.

    >>> from cru.forecaster.kinds import infer_kind
    >>> infer_kind(np.array([0.0, 1.0] * 20)), infer_kind(np.array([71.0, 68.0, 90.0]))
    ('binary', 'number')
    """
    if not len(values) or values.min() < 0 or values.min() == values.max():
        return "number"
    zeros = float((values == 0).mean())
    if len(values) >= KIND_INFERENCE.min_values:
        if np.isin(values, (0, 1)).all():
            return "binary"
        few = zeros >= KIND_INFERENCE.min_zeros and np.median(values) <= KIND_INFERENCE.max_median
        narrow = values.var() <= KIND_INFERENCE.max_dispersion * values.mean()
        if few and narrow and len(np.unique(values)) > 2 and (values == np.round(values)).all():
            return "count"
    return "nonnegative" if zeros > 0 or skewness(values) > KIND_INFERENCE.skewness else "number"


@dataclass(frozen=True, eq=False)
class Kinds(Mapping[str, Kind]):
    """The kind of each variable of a table. It maps the names of variables to kinds.

    A variable of kind "category" is encoded in several columns, one for each category, named "variable=category". Such
    a column is 1 where the variable has that category, else 0. Every other variable has one column.

    Args:
        kinds: the kind of each variable, in the order of the table.
        categories: the categories of each variable of kind "category".
        declared: the variables whose kind the user declared. Other kinds are inferred.

    >>> from cru.forecaster.kinds import Kinds
    >>> kinds = Kinds({"rain": "nonnegative", "sky": "category"}, {"sky": ("clear", "cloudy")}, ("sky",))
    >>> kinds["rain"], kinds.columns
    ('nonnegative', ('rain', 'sky=clear', 'sky=cloudy'))
    """

    kinds: dict[str, Kind]
    categories: dict[str, tuple[str, ...]] = field(default_factory=dict)
    declared: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Kind:
        return self.kinds[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds)

    def __len__(self) -> int:
        return len(self.kinds)

    def __repr__(self) -> str:
        return repr(self.kinds)

    @staticmethod
    def numbers(count: int) -> "Kinds":
        """Return the kinds of ``count`` variables that are plain numbers."""
        return Kinds({f"x{k}": "number" for k in range(count)})

    @staticmethod
    def infer(series: SeriesSet, declared: Mapping[str, Kind], categories: Mapping[str, tuple[str, ...]]) -> "Kinds":
        """Infer the kinds that are not declared.

        Args:
            series: the training table, with encoded categories.
            declared: the kinds that the user declares.
            categories: the categories of each variable of kind "category".

        Raises:
            InputError: a declared variable is not in the table.
        """
        owner = {column: name for name, found in categories.items() for column in columns_of(name, found)}
        names = list(dict.fromkeys(owner.get(column, column) for column in series.names))
        for name in declared:
            if name not in names:
                raise InputError("kinds", "name variables of the table", repr(name), literal(did_you_mean(name, names)))
        kinds: dict[str, Kind] = {}
        for name in names:
            if name in declared:
                kinds[name] = declared[name]
            elif name in categories:
                kinds[name] = "category"
            else:
                k = series.names.index(name)
                kinds[name] = infer_kind(series.values[series.mask[:, k], k].astype(np.float64))
        return Kinds(kinds, {name: tuple(found) for name, found in categories.items()}, tuple(declared))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns of the encoded variables."""
        return encoded_names(self.kinds, self.categories)

    @cached_property
    def of_columns(self) -> tuple[Kind, ...]:
        """The kind of each column."""
        return tuple(self.kinds[name] for name in self.owners)

    @cached_property
    def owners(self) -> tuple[str, ...]:
        """The variable of each column."""
        return tuple(name for name in self.kinds for _ in encoded_names([name], self.categories))

    def of_column(self, k: int) -> "Kinds":
        """Return the kinds of a table with one of the columns. A category alone is a binary variable."""
        kind = self.of_columns[k]
        return Kinds({self.columns[k]: "binary" if kind == "category" else kind})

    def are(self, *kinds: Kind) -> Bool[np.ndarray, " variable"]:
        """Return the mask of the columns that have one of the given kinds."""
        return np.array([kind in kinds for kind in self.of_columns], bool)

    @cached_property
    def is_plain(self) -> Bool[np.ndarray, " variable"]:
        """Mask of the columns that are numbers without a restriction."""
        return self.are("number")

    @cached_property
    def is_count(self) -> Bool[np.ndarray, " variable"]:
        """Mask of the columns that hold integers of at least 0."""
        return self.are("count")

    @cached_property
    def is_event(self) -> Bool[np.ndarray, " variable"]:
        """Mask of the columns that are 0 or 1: binary variables, and categories."""
        return self.are("binary", "category")

    @cached_property
    def lowest(self) -> Float[np.ndarray, " variable"]:
        """The lowest possible value of each column, `-UNBOUNDED` for none."""
        return np.where(self.is_plain, -UNBOUNDED, 0.0)

    @cached_property
    def edges(self) -> Float[np.ndarray, " variable"]:
        """The lowest possible value of each column, 0 for none."""
        return np.where(self.is_plain, 0.0, self.lowest)

    @cached_property
    def groups(self) -> tuple[Int64[np.ndarray, " category"], ...]:
        """The columns of each variable of kind "category"."""
        owners = np.array(self.owners)
        return tuple(np.flatnonzero(owners == name) for name in self.categories)

    def possible(self, values: Float[np.ndarray, "*m n variable"]) -> Float[np.ndarray, "*m n variable"]:
        """Move values to the nearest possible ones. Events are handled by their probability instead."""
        values = np.maximum(values, self.lowest)
        return np.where(self.is_count, np.floor(values + 0.5), values) if self.is_count.any() else values

    def impossible(
        self, values: Float[np.ndarray, "row variable"], mask: Bool[np.ndarray, "row variable"]
    ) -> Bool[np.ndarray, "row variable"]:
        """Return the mask of the observations that are impossible for the kind of their column."""
        wrong = values < self.lowest
        wrong |= self.is_count & (values != np.round(values))
        wrong |= self.is_event & (values != 0) & (values != 1)
        found: np.ndarray = wrong & mask
        return found

    def forbidden(
        self, values: Float[np.ndarray, "row variable"], mask: Bool[np.ndarray, "row variable"]
    ) -> Bool[np.ndarray, "row variable"]:
        """Return the mask of the observations that are impossible for a kind that the user declared."""
        found: np.ndarray = self.impossible(values, mask) & np.isin(self.owners, self.declared)
        return found

    def check(self, series: SeriesSet, clock: Clock) -> None:
        """Check the observations of the variables whose kind is declared.

        Raises:
            InputError: an observation is impossible. The error names column, series and time.
        """
        wrong = self.forbidden(series.values, series.mask)
        if wrong.any():
            row, k = divmod(int(wrong.argmax()), wrong.shape[1])
            found = series.values[row, k], series.ids[series.series_index[row]], clock.stamp(float(series.times[row]))
            raise self.error(self.owners[k], *found)

    def error(self, name: str, found: object, series: str, time: object) -> InputError:
        """Make the error for an impossible observation of a variable.

        Args:
            name: the variable.
            found: the observation.
            series: the series of the observation.
            time: the time of the observation.
        """
        kind = self.kinds[name]
        shown = "several" if kind == "category" else f"{found:g}" if isinstance(found, float) else repr(found)
        hint = f"Correct it or leave it missing{KIND_HINTS[kind]}."
        return InputError(
            rule=KIND_RULES[kind], found=f"{shown} in series {series!r}", hint=hint, column=name, time=time
        )

    def warnings(self, series: SeriesSet) -> list[str]:
        """Return a warning for each variable with an inferred kind and impossible observations."""
        wrong = self.impossible(series.values, series.mask) & ~np.isin(self.owners, self.declared)
        return [
            f"{self.owners[k]!r} has the inferred kind {self.of_columns[k]!r}, and predictions have this kind, but the "
            f"table has {int(wrong[:, k].sum())} observations that it excludes. Fit again, or declare the kind."
            for k in np.flatnonzero(wrong.any(0))
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the kinds as a dictionary that can be written as JSON."""
        categories = {name: list(found) for name, found in self.categories.items()}
        return {"kinds": dict(self.kinds), "categories": categories, "declared": list(self.declared)}

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> "Kinds":
        """Restore kinds from the output of `to_dict`."""
        categories = {name: tuple(found) for name, found in saved["categories"].items()}
        return Kinds(dict(saved["kinds"]), categories, tuple(saved["declared"]))

    def describe(self) -> str:
        """Describe the kinds for a user.

        >>> from cru.forecaster.kinds import Kinds
        >>> Kinds({"rain": "nonnegative", "snow": "nonnegative", "tmax": "number"}).describe()
        'rain, snow nonnegative (inferred); tmax number (inferred)'
        """
        groups: dict[str, list[str]] = {}
        for name, kind in self.kinds.items():
            groups.setdefault(kind + ("" if name in self.declared else " (inferred)"), []).append(name)
        return "; ".join(f"{some(names)} {kind}" for kind, names in groups.items())


def columns_of(name: str, categories: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the columns that encode a variable of kind "category".

    >>> from cru.forecaster.kinds import columns_of
    >>> columns_of("sky", ["clear", "cloudy"])
    ('sky=clear', 'sky=cloudy')
    """
    return tuple(f"{name}={category}" for category in categories)


def joint_columns(columns: Sequence[str]) -> Int64[np.ndarray, " column"]:
    """Return, for each column, the first column of its variable. A training task withholds them together.

    >>> from cru.forecaster.kinds import joint_columns
    >>> joint_columns(["rain", "sky=clear", "sky=cloudy"]).tolist()
    [0, 1, 1]
    """
    first: dict[str, int] = {}
    owners = [column.partition("=")[0] if "=" in column else column + "=" for column in columns]
    return np.array([first.setdefault(owner, k) for k, owner in enumerate(owners)], np.int64)


def encoded_names(names: Iterable[str], categories: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the names of the columns of some variables.

    >>> from cru.forecaster.kinds import encoded_names
    >>> encoded_names(["rain", "sky"], {"sky": ["clear", "cloudy"]})
    ('rain', 'sky=clear', 'sky=cloudy')
    """
    columns = (columns_of(name, categories[name]) if name in categories else (name,) for name in names)
    return tuple(column for group in columns for column in group)


def check_kinds(kinds: Any) -> dict[str, Kind]:
    """Check the argument ``kinds`` of `Forecaster.fit`.

    Raises:
        InputError: ``kinds`` is not a mapping, or a kind is unknown.
    """
    if kinds is None:
        return {}
    if not isinstance(kinds, Mapping):
        raise InputError("kinds", "be a mapping from variables to kinds", f"{kinds!r:.100}")
    for name, kind in kinds.items():
        if kind not in KINDS:
            hint = literal(did_you_mean(str(kind), KINDS))
            raise InputError("kinds", f"be {', '.join(map(repr, KINDS))}", repr(kind), hint, column=str(name))
    return dict(kinds)
