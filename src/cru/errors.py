"""What can go wrong in a way that a user is told in one sentence, without a traceback."""

import difflib
import re
from collections.abc import Iterable, Sequence

# Also other ends of lines, marks that turn the direction of a text, and bytes of a file name that are no text.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


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


def printable(text: str, *, keep: str = "") -> str:
    """The text with its control characters written as escapes, but for those in ``keep``: a terminal obeys them.

    >>> printable("a\\x1b[2Jb\\n")
    'a\\\\x1b[2Jb\\\\n'
    """
    return _CONTROL.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)


class NotFittedError(ValueError, AttributeError):
    """Something was asked of an estimator that has learned nothing yet. scikit-learn's has the same bases."""
