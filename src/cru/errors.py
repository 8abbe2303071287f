"""What can go wrong in a way that a user is told in one sentence, without a traceback."""

import difflib
from collections.abc import Iterable, Sequence


class RunError(RuntimeError):
    """A run that began well and cannot go on: a diverged model, a lost worker. `ValueError` is for wrong input."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name.

    >>> did_you_mean("crue", ["cru", "gru-d"])
    "did you mean 'cru'?"
    """
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"there are {some(known, 30)}."


def some(names: Sequence[object], most: int = 10) -> str:
    """The first of many, for a sentence.

    >>> some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


class NotFittedError(ValueError, AttributeError):
    """Something was asked of an estimator that has learned nothing yet. scikit-learn's has the same bases."""
