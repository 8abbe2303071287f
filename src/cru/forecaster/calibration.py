"""Intervals that hold what they say: the quantiles of the standardised errors on series that were not trained on."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from cru.shapes import Bool, Float, Int64

ENOUGH = 100  # errors before a variable has quantiles of its own
SERIES, BINS = 10, 8  # so many series for each range of leads, and at most so many ranges
SKEWED = 50  # series before errors upwards and downwards are told apart
COUPLED = 200  # variables whose errors at one time are drawn alike; more are drawn each for itself
_TAIL = np.array([0.001, 0.0025, 0.005, 0.01, 0.025])
PROBABILITIES = np.concatenate([_TAIL, np.arange(1, 20) / 20, 1 - _TAIL[::-1]])
Z90 = NormalDist().inv_cdf(0.95)
# The same for N(0, 1), where there are no errors to go by.
NORMAL = np.array([NormalDist().inv_cdf(p) for p in PROBABILITIES])
LARGEST_CAP = 1e300
UNREAD = -1.0  # the lead of a variable that a series has not had yet, though it has had others
APART = (UNREAD, np.inf, 0.0)
FEW_SERIES, BLOCKS_OF_SERIES = 20, 40  # with fewer series, blocks of each of them count as independent
UNMEASURED = "There were too few withheld values to calibrate the intervals: they are the model's own."


def widening(series: int) -> float:
    """The factor on the quantiles of a table with so many series: 1.07 for one, 1.01 for five, 1 for many.

    Split conformal prediction takes the ⌈(n + 1) · 0.9⌉ / n quantile for 90 %. Here n counts blocks of series.
    """
    if series >= FEW_SERIES:
        return 1.0
    probability = 0.5 + 0.45 * (1 + 1 / (BLOCKS_OF_SERIES * max(1, series)))
    return NormalDist().inv_cdf(probability) / Z90


def guarantee(series: int) -> str:
    """State what the intervals promise after calibration on so many series."""
    if series >= FEW_SERIES:
        return (
            f"Intervals are calibrated on {series:,} series. On average over new series like these, a 90 % interval "
            "contains 90 % of the values."
        )
    return (
        f"Intervals are calibrated on blocks of {series:,} series and widened by {widening(series) - 1:.0%}. They hold "
        "if the future of these series is like their past. For new series they guarantee nothing."
    )


@dataclass(frozen=True, eq=False)
class Calibration:
    """Quantiles of (value - mean) / std for each variable at some leads, the times since the last reading of any.

    A model's own deviations are too small where it is overconfident, and its errors are skewed where a variable is
    (rain). Both show in these errors, and an interval made of their quantiles covers what it should whatever their
    distribution: a split-conformal interval, for exchangeable series. Between the leads, quantiles are interpolated
    along log lead. The first three leads stand apart: a variable not read yet (`UNREAD`), no reading at all (infinite),
    and 0, a value missing from a reading.
    """

    leads: Float[np.ndarray, " lead"]
    quantiles: Float[np.ndarray, "lead variable probability"]
    likeness: Float[np.ndarray, "coupled coupled"]  # correlation of the errors at one time; empty: none is known
    constant: Bool[np.ndarray, " variable"]  # in the whole table
    mean_weight: Float[np.ndarray, " variable"]  # from the center of a skewed distribution (0) to its mean (1)
    floor: Float[np.ndarray, " variable"]  # the least possible value in the user's units, -inf for none
    cap: Float[np.ndarray, " variable"]  # above which quantiles on a logarithmic scale do not go, in the user's units

    @staticmethod
    def fit(
        errors: Float[np.ndarray, "row variable"],
        counted: Bool[np.ndarray, "row variable"],
        lead: Float[np.ndarray, "row variable"],
        *,
        series: int,
        constant: Bool[np.ndarray, " variable"],
    ) -> "Calibration":
        """From standardised errors where they are ``counted``, their leads, and the number of series.

        Errors of one series are alike, so it is the number of series that says how fine a distinction they bear: of
        leads, and of errors upwards and downwards. A variable that is ``constant`` in the
        whole table has none.
        """
        counted = counted & ~constant
        likeness = _likeness(errors, counted & (lead > 0))  # where none of the others is known
        if series < SKEWED:
            errors, counted, lead = np.concatenate([errors, -errors]), np.tile(counted, (2, 1)), np.tile(lead, (2, 1))
        usual = counted & (lead >= 0) & np.isfinite(lead)
        between = lead[usual & (lead > 0)]
        bins = int(np.clip(series // SERIES, 1, BINS))
        shortest, longest = np.quantile(between, (0.02, 0.98)) if len(between) else (1.0, 1.0)
        edges = np.geomspace(shortest, longest, bins + 1)[1:-1]
        group = np.where(usual & (lead > 0), np.searchsorted(edges, lead, side="left"), -1)
        kept = [usual & (group == g) for g in range(len(edges) + 1) if (group == g).any()]
        leads = [*APART, *(float(np.median(lead[among])) for among in kept)]
        each = _own(errors, usual, _shared(errors[usual], np.tile(NORMAL, (errors.shape[1], 1))))
        rare = [counted & (lead == apart) for apart in (UNREAD, np.inf)]
        own = [_own(errors, among, _shared(errors[among], each)) for among in rare]
        own += [_own(errors, usual & (lead == 0), each), *_nearest(errors, kept, each)]
        quantiles = np.round(own, 6)  # as it is saved
        quantiles[:, constant] = 0
        plain = np.zeros(len(constant)), np.full(len(constant), -LARGEST_CAP), np.full(len(constant), LARGEST_CAP)
        return Calibration(np.array(leads), quantiles, likeness, constant, *plain)

    def widened(self, series: int) -> "Calibration":
        """Widen the intervals where a table has few series, by the finite-sample correction of split conformal.

        The errors then come from blocks of the same series, which are alike. So the blocks count, not the errors.
        """
        return dataclasses.replace(self, quantiles=np.round(widening(series) * self.quantiles, 6))

    @property
    def measured(self) -> bool:
        """Whether there were errors enough to go by, at any lead and of any variable."""
        return bool(self.constant.all()) or not np.allclose(self.quantiles[:, ~self.constant], NORMAL, atol=1e-5)

    def quantile(self, p: float, lead: Float[np.ndarray, "n variable"]) -> Float[np.ndarray, "n variable"]:
        """The ``p``-quantile of the standardised error of each variable at its lead."""
        upper = int(np.clip(np.searchsorted(PROBABILITIES, p), 1, len(PROBABILITIES) - 1))
        low, high = PROBABILITIES[upper - 1 : upper + 1]
        share = np.clip((p - low) / (high - low), 0, 1)
        at = (1 - share) * self.quantiles[:, :, upper - 1] + share * self.quantiles[:, :, upper]
        return self._between(at, lead)

    def uniform(self, rng: np.random.Generator, n: int) -> Float[np.ndarray, "n variable"]:
        """Numbers between 0 and 1 at random, those of a row as alike as the errors at one time are."""
        numbers = rng.standard_normal((n, self.quantiles.shape[1]))
        if len(self.likeness):
            numbers = numbers @ self._root
        uniform: np.ndarray = torch.special.ndtr(torch.from_numpy(numbers)).numpy()
        return uniform

    @cached_property
    def _root(self) -> np.ndarray:
        values, vectors = np.linalg.eigh(self.likeness)
        root: np.ndarray = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
        return root

    def draw(self, uniform: Float[np.ndarray, "n variable"], lead: Float[np.ndarray, "n variable"]) -> np.ndarray:
        """Standardised errors at random, by the inverse of their distribution."""
        upper = np.clip(np.searchsorted(PROBABILITIES, uniform), 1, len(PROBABILITIES) - 1)
        low, high = PROBABILITIES[upper - 1], PROBABILITIES[upper]
        share = np.clip((uniform - low) / (high - low), 0, 1)
        below, above = (self._between(self.quantiles, lead, at) for at in (upper - 1, upper))
        drawn: np.ndarray = (1 - share) * below + share * above
        return drawn

    def _between(
        self,
        table: Float[np.ndarray, "lead variable ..."],
        lead: Float[np.ndarray, "n variable"],
        *rest: Int64[np.ndarray, "n variable"],
    ) -> Float[np.ndarray, "n variable"]:
        """Entries of ``table``, at the further indices where it has more dimensions, interpolated along log lead."""
        inner = np.arange(len(APART), len(self.leads))
        place = np.full(lead.shape, float(APART.index(0.0)))  # where there are no others
        if len(inner):
            with np.errstate(divide="ignore"):
                place = np.interp(np.log(np.maximum(lead, 0)), np.log(self.leads[inner]), inner)
        for number, apart in enumerate(APART):
            place[lead == apart] = number
        lower = np.floor(place).astype(np.int64)
        share, variable = place - lower, np.arange(table.shape[1])
        low, high = (table[at, variable, *rest] for at in (lower, np.minimum(lower + 1, len(table) - 1)))
        mixed: np.ndarray = (1 - share) * low + share * high
        return mixed

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "leads": self.leads[len(APART) :].tolist(),
            "quantiles": self.quantiles.tolist(),
            "likeness": self.likeness.tolist(),
            "constant": self.constant.tolist(),
            "mean_weight": self.mean_weight.tolist(),
            "floor": self.floor.tolist(),
            "cap": self.cap.tolist(),
        }

    @staticmethod
    def from_dict(saved: dict[str, Any]) -> "Calibration":
        """The reverse."""
        likeness = np.array(saved["likeness"]).reshape(2 * (len(saved["likeness"]),))
        leads = np.array([*APART, *saved["leads"]])
        constant = np.array(saved["constant"], bool)
        others = (np.array(saved[key]) for key in ("mean_weight", "floor", "cap"))
        return Calibration(leads, np.array(saved["quantiles"]), likeness, constant, *others)


def _own(errors: np.ndarray, counted: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """The quantiles of each variable where it is counted, or the others where there are too few errors."""
    found = otherwise.copy()
    for k in np.flatnonzero(counted.sum(0) >= ENOUGH):
        found[k] = _quantiles(errors[counted[:, k], k])
    return found


def _nearest(errors: np.ndarray, ranges: Sequence[np.ndarray], otherwise: np.ndarray) -> np.ndarray:
    """The quantiles of each range of leads. A variable with too few errors in one takes those of the nearest range with
    enough, so that what is rarely measured, far ahead, is not taken to be as easy as the average."""
    if not ranges:
        return np.empty((0, *otherwise.shape))
    found = np.stack([_own(errors, among, otherwise) for among in ranges])
    enough = np.stack([among.sum(0) >= ENOUGH for among in ranges])  # (range, variable)
    number = np.arange(len(ranges))
    distance = np.where(enough, np.abs(number[:, None, None] - number[:, None]), len(ranges))  # (to, from, variable)
    nearest: np.ndarray = found[distance.argmin(1), np.arange(found.shape[1])]
    return nearest


def _likeness(errors: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """The correlation of the variables' errors at one time, by their normal scores; of those rarely there together it
    is taken to be smaller. Nothing where there are too few errors, or too many variables."""
    size = errors.shape[1]
    if not 2 <= size <= COUPLED or np.sum(counted.sum(1) > 1) < ENOUGH:
        return np.eye(size) if size <= COUPLED else np.empty((0, 0))
    scores = np.zeros(errors.shape)
    for k in range(size):
        among = counted[:, k]
        _, group, count = np.unique(errors[among, k], return_inverse=True, return_counts=True)
        place = (np.cumsum(count) - count / 2)[group]  # those that are equal share one
        scores[among, k] = torch.special.ndtri(torch.from_numpy(place / max(1, len(place)))).numpy()
    together = scores.T @ scores
    length = np.sqrt(np.maximum(np.diag(together), 1e-12))
    np.fill_diagonal(together, length**2)
    return np.round(together / length / length[:, None], 4)


def _shared(errors: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """The quantiles of all variables together for each of them, or the others where there are too few errors."""
    return otherwise if len(errors) < ENOUGH else np.tile(_quantiles(errors), (len(otherwise), 1))


def _quantiles(errors: np.ndarray) -> np.ndarray:
    """Weibull's: a further value lies below the p-quantile with probability p, also where there are few."""
    found: np.ndarray = np.quantile(errors, PROBABILITIES, method="weibull")
    return found
