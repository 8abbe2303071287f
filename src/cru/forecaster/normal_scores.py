"""Normal scores of skewed variables and counts, whose errors depend on the predicted mean, and event probabilities."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from cru.shapes import Bool, Float


@dataclass(frozen=True)
class NormalScoreConstants:
    """Constants of normal scores and of the probabilities of events."""

    ranges: int = 10  # largest number of ranges of predicted means
    errors_per_range: int = 500  # with fewer errors in total, a variable has no normal scores
    min_lowest: int = 100  # fewest lowest values, and fewest others, for a probability of their own
    min_probability: float = 5e-4  # smallest probability of a normal score
    certainty: float = 0.005  # smallest probability that enters the logistic regression, and 1 minus the largest
    ridge: float = 1.0  # weight of the penalty on the distance of the logistic regression from the identity
    newton_steps: int = 30  # of the logistic regression
    rows_at_once: int = 1 << 16  # rows that are converted at a time


NORMAL_SCORE = NormalScoreConstants()
_TAIL = np.array([0.001, 0.0025, 0.005, 0.01, 0.025])
CALIBRATION_PROBABILITIES = np.concatenate([_TAIL, np.arange(1, 20) / 20, 1 - _TAIL[::-1]])  # of stored quantiles
DECIMALS = 6  # of the numbers of a calibration in a saved file


@dataclass(frozen=True, eq=False)
class NormalScores:
    """Conversion of standardised errors to normal scores, by range of the predicted mean, and event probabilities.

    The errors of rain on a day that is probably dry differ from those on a wet day. For variables that are never
    negative, the standardised error z becomes a normal score w = Φ⁻¹(F(z)). F is the distribution function of the
    errors of predictions with a similar mean. It is interpolated linearly between ranges of means.

    A quantile below the probability of the lowest possible value, such as no rain, is this value. The probability
    depends on the error that the lowest value would have, and rises with it.

    The probability of an event is 1 / (1 + exp(-a - b · logit(m))), where m is the predicted mean.
    """

    used: Bool[np.ndarray, " variable"]  # whether a variable has normal scores instead of errors
    means: Float[np.ndarray, "variable range"]  # mean of the predicted means in each range, in scaled units
    edges: Float[np.ndarray, "variable edge"]  # errors that the lowest possible value would have
    lowest: Float[np.ndarray, "variable edge"]  # probability of this value at each of them
    quantiles: Float[
        np.ndarray, "variable range probability"
    ]  # of the standardised error, at `CALIBRATION_PROBABILITIES`
    logistic: Float[np.ndarray, "variable 2"]  # a and b

    @staticmethod
    def none(variables: int) -> "NormalScores":
        """Return a conversion that changes nothing."""
        return NormalScores(
            np.zeros(variables, bool),
            np.zeros((variables, 1)),
            np.zeros((variables, len(CALIBRATION_PROBABILITIES))),
            np.zeros((variables, len(CALIBRATION_PROBABILITIES))),
            np.zeros((variables, 1, len(CALIBRATION_PROBABILITIES))),
            np.tile([0.0, 1.0], (variables, 1)),
        )

    @staticmethod
    def fit(
        errors: Float[np.ndarray, "row variable"],
        mean: Float[np.ndarray, "row variable"],
        edge: Float[np.ndarray, "row variable"],
        counted: Bool[np.ndarray, "row variable"],
        skewed: Bool[np.ndarray, " variable"],
        at_lowest: Bool[np.ndarray, "row variable"],
    ) -> "NormalScores":
        """Estimate the quantiles of the errors in each range of predicted means, and the probability of lowest values.

        Args:
            errors: standardised errors.
            mean: predicted means, in scaled units.
            edge: the standardised error that the lowest possible value would have.
            counted: mask of the errors to use.
            skewed: mask of the variables with normal scores.
            at_lowest: mask of the errors of the lowest possible value of a continuous variable.
        """
        found = {}
        made = NormalScores.none(len(skewed))
        for k in np.flatnonzero(skewed & (counted.sum(0) >= NORMAL_SCORE.errors_per_range)):
            own, near, limit, lowest = (part[counted[:, k], k] for part in (errors, mean, edge, at_lowest))
            if min(lowest.sum(), (~lowest).sum()) >= NORMAL_SCORE.min_lowest:
                made.edges[k], made.lowest[k] = _rising_share(limit, lowest)
            found[k] = _by_mean(own, near)
        most = max((len(means) for means, _ in found.values()), default=1)
        means, quantiles = (np.repeat(part, most, 1) for part in (made.means, made.quantiles))
        for k, (places, rows) in found.items():
            rest = most - len(places)  # the last range is repeated
            means[k] = np.append(places, np.full(rest, places[-1]))
            quantiles[k] = np.concatenate([rows, np.tile(rows[-1], (rest, 1))])
        used = np.isin(np.arange(len(skewed)), list(found))
        means, edges, lowest, quantiles = (
            np.round(part, DECIMALS) for part in (means, made.edges, made.lowest, quantiles)
        )
        return NormalScores(used, means, edges, lowest, quantiles, made.logistic)

    def of_variable(self, k: int) -> "NormalScores":
        """Return the normal scores of one variable alone."""
        only = slice(k, k + 1)
        return NormalScores(*(getattr(self, name)[only] for name in FIELDS))

    def scores(
        self,
        errors: Float[np.ndarray, "row variable"],
        mean: Float[np.ndarray, "row variable"],
        counted: Bool[np.ndarray, "row variable"],
    ) -> Float[np.ndarray, "row variable"]:
        """Convert standardised errors to normal scores. Equal errors have scores in random order.

        Args:
            errors: standardised errors.
            mean: predicted means, in scaled units.
            counted: mask of the errors to convert.
        """
        scores = errors.copy()
        rng = np.random.default_rng(0)
        for k in np.flatnonzero(self.used):
            every = np.flatnonzero(counted[:, k])
            for rows in np.array_split(every, 1 + len(every) // NORMAL_SCORE.rows_at_once):
                z = errors[rows, k]
                low, share = self._place(mean[rows, k : k + 1], np.array([k]))
                table, next_table = (self.quantiles[k, at[:, 0]] for at in (low, self._next(low)))
                table = table + share * (next_table - table)
                below, upto = (compare(table, z[:, None]).sum(1) for compare in (np.less, np.less_equal))
                equal = _between(below, upto - 1, rng.random(len(z)))  # any probability of the equal quantiles
                chance = np.where(below < upto, equal, _inside(table, z, below))
                scores[rows, k] = _normal(chance.clip(NORMAL_SCORE.min_probability, 1 - NORMAL_SCORE.min_probability))
        return scores

    def errors(
        self, scores: Float[np.ndarray, "row variable"], mean: Float[np.ndarray, "row variable"]
    ) -> Float[np.ndarray, "row variable"]:
        """Convert normal scores to standardised errors: the inverse of `scores`."""
        k = np.flatnonzero(self.used)
        if not len(k):
            return scores
        chance = _probability(scores[:, k])
        upper = np.clip(np.searchsorted(CALIBRATION_PROBABILITIES, chance), 1, len(CALIBRATION_PROBABILITIES) - 1)
        step = np.clip(
            (chance - CALIBRATION_PROBABILITIES[upper - 1])
            / (CALIBRATION_PROBABILITIES[upper] - CALIBRATION_PROBABILITIES[upper - 1]),
            0,
            1,
        )
        low, share = self._place(mean[:, k], k)
        high = self._next(low)
        found = [
            (1 - step) * self.quantiles[k, at, upper - 1] + step * self.quantiles[k, at, upper] for at in (low, high)
        ]
        errors = scores.copy()
        errors[:, k] = found[0] + share * (found[1] - found[0])
        return errors

    def at_lowest(
        self, scores: Float[np.ndarray, "row variable"], edge: Float[np.ndarray, "row variable"]
    ) -> Bool[np.ndarray, "row variable"]:
        """Return the mask of the quantiles that are the lowest possible value.

        Args:
            scores: normal scores of the quantiles.
            edge: the standardised error that the lowest possible value would have.
        """
        found = np.zeros(scores.shape, bool)
        for k in np.flatnonzero(self.lowest.any(1)):
            found[:, k] = _probability(scores[:, k]) <= np.interp(edge[:, k], self.edges[k], self.lowest[k])
        return found

    def probability(self, mean: Float[np.ndarray, "row variable"]) -> Float[np.ndarray, "row variable"]:
        """Convert predicted means of events, in the user's units, to calibrated probabilities."""
        number: np.ndarray = _sigmoid(self.logistic[:, 0] + self.logistic[:, 1] * _logit(mean))
        return number

    def _place(self, mean: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the range below each mean, and the share of the way to the next one."""
        means = self.means[k]
        low = np.clip((mean[..., None] > means).sum(-1) - 1, 0, None)
        start, end = (means[np.arange(len(k)), at] for at in (low, self._next(low)))
        return low, np.clip((mean - start) / np.maximum(end - start, 1e-12), 0, 1)

    def _next(self, low: np.ndarray) -> np.ndarray:
        following: np.ndarray = np.minimum(low + 1, self.means.shape[1] - 1)
        return following

    def to_dict(self) -> dict[str, Any]:
        """Return the quantiles as a dictionary that can be written as JSON."""
        return {name: getattr(self, name).tolist() for name in FIELDS}

    @staticmethod
    def from_dict(saved: dict[str, Any]) -> "NormalScores":
        """Restore normal scores from the output of `to_dict`."""
        return NormalScores(*(np.array(saved[name], bool if name == "used" else float) for name in FIELDS))


FIELDS = tuple(field.name for field in fields(NormalScores))


def fit_logistic(mean: Float[np.ndarray, " n"], event: Float[np.ndarray, " n"]) -> Float[np.ndarray, " 2"]:
    """Fit a and b of P = 1 / (1 + exp(-a - b · logit(mean))) by penalised likelihood.

    With few events, the penalty leads to a near 0 and b near 1. A probability never decreases with the mean.

    Args:
        mean: predicted means of an event.
        event: 1 where the event occurred, else 0.
    """
    x = np.stack([np.ones_like(mean), _logit(mean)], 1)
    start = found = np.array([0.0, 1.0])
    for _ in range(NORMAL_SCORE.newton_steps):
        chance = _sigmoid(x @ found)
        slope = x.T @ (event - chance) - NORMAL_SCORE.ridge * (found - start)
        curvature = (x * (chance * (1 - chance))[:, None]).T @ x + NORMAL_SCORE.ridge * np.eye(2)
        found = found + np.clip(np.linalg.solve(curvature, slope), -1, 1)
    return np.round(np.array([found[0], max(found[1], 0.0)]), DECIMALS)


def _by_mean(errors: np.ndarray, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Divide errors into ranges of the predicted mean. Return the mean and the quantiles of each range."""
    count = int(np.clip(len(errors) // NORMAL_SCORE.errors_per_range, 1, NORMAL_SCORE.ranges))
    edges = np.unique(np.quantile(mean, np.arange(1, count) / count))
    group = np.searchsorted(edges, mean)
    parts = [group == g for g in np.unique(group)]
    means = np.array([mean[part].mean() for part in parts])
    return means, np.stack([np.quantile(errors[part], CALIBRATION_PROBABILITIES, method="weibull") for part in parts])


def _rising_share(x: Float[np.ndarray, " n"], event: Bool[np.ndarray, " n"]) -> tuple[np.ndarray, np.ndarray]:
    """Return quantiles of ``x``, and the share of events near each, which never decreases.

    The shares are an isotonic regression: neighbours with decreasing shares are averaged.
    """
    order = np.argsort(x, kind="stable")
    bounds = np.round(len(x) * (CALIBRATION_PROBABILITIES[1:] + CALIBRATION_PROBABILITIES[:-1]) / 2).astype(int)
    parts = [part for part in np.split(order, bounds) if len(part)]
    blocks: list[tuple[float, int, int]] = []  # events, size, number of parts
    for part in parts:
        block = (float(event[part].sum()), len(part), 1)
        while blocks and blocks[-1][0] * block[1] > block[0] * blocks[-1][1]:
            last = blocks.pop()
            block = (last[0] + block[0], last[1] + block[1], last[2] + block[2])
        blocks.append(block)
    share = np.repeat([events / size for events, size, _ in blocks], [number for *_, number in blocks])
    places = np.maximum.accumulate([x[part].mean() for part in parts])
    rest = len(CALIBRATION_PROBABILITIES) - len(parts)
    return np.pad(places, (0, rest), "edge"), np.pad(share, (0, rest), "edge")


def _between(first: np.ndarray, last: np.ndarray, share: np.ndarray) -> np.ndarray:
    size = len(CALIBRATION_PROBABILITIES) - 1
    low, high = (CALIBRATION_PROBABILITIES[at.clip(0, size)] for at in (first, last))
    mixed: np.ndarray = low + share * (high - low)
    return mixed


def _inside(table: np.ndarray, z: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Interpolate the probability of ``z`` between the quantiles on both sides of it."""
    rows, size = np.arange(len(z)), table.shape[1] - 1
    at = upper.clip(1, size)
    low, high = table[rows, at - 1], table[rows, at]
    share = np.clip((z - low) / np.maximum(high - low, 1e-300), 0, 1)
    inner = CALIBRATION_PROBABILITIES[at - 1] + share * (
        CALIBRATION_PROBABILITIES[at] - CALIBRATION_PROBABILITIES[at - 1]
    )
    return np.where(upper == 0, 0.0, np.where(upper > size, 1.0, inner))


def _normal(chance: np.ndarray) -> np.ndarray:
    score: np.ndarray = torch.special.ndtri(torch.from_numpy(chance)).numpy()
    return score


def _probability(score: np.ndarray) -> np.ndarray:
    chance: np.ndarray = torch.special.ndtr(torch.from_numpy(np.ascontiguousarray(score))).numpy()
    return chance


def _logit(mean: np.ndarray) -> np.ndarray:
    chance = np.clip(mean, NORMAL_SCORE.certainty, 1 - NORMAL_SCORE.certainty)
    logit: np.ndarray = np.log(chance / (1 - chance))
    return logit


def _sigmoid(x: np.ndarray) -> np.ndarray:
    sigmoid: np.ndarray = torch.from_numpy(np.ascontiguousarray(x)).sigmoid().numpy()
    return sigmoid
