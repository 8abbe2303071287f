"""Errors for users, and helpers for their messages."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["InputError", "MissingExtraError", "NotFittedError", "RunError"]  # the errors that users catch

# Control characters, line separators, marks of the text direction, and undecodable bytes of file names.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


_ARGUMENT = re.compile(r"\{\{|\}\}|\{(\w+)(=[^{}]*)?\}")


class InputError(ValueError):
    """Wrong input: the argument, the rule that it breaks, the value found, and a hint.

    `render` makes the text at each boundary, because an argument has several names: `horizon` in Python, --horizon on
    the command line. ``rule`` and ``hint`` name other arguments in braces: "Give {duplicates='mean'}." Pass data of the
    user as ``found`` or through `literal`. Notes of the error (`add_note`) follow its text, see `full_message`.

    Args:
        argument: the Python argument. Without it, the error is about the ``column`` of a table, or about the table.
        rule: the rule, after the word "must".
        found: the value that breaks the rule.
        hint: the correction.
        column: the wrong column of the table.
        time: the time of the wrong value.
        otherwise: the hint for a call that does not have the arguments of ``hint``.

    >>> from cru.errors import InputError
    >>> print(InputError("horizon", "be positive", "'-3D'"))
    `horizon` must be positive, got '-3D'.
    >>> InputError("horizon", "be positive", "'-3D'").render({"horizon": "--horizon"})
    "--horizon must be positive, got '-3D'."
    >>> print(InputError(rule="be finite", found="inf in series a", column="tmax", time=3.0))
    column 'tmax' must be finite, got inf in series a at time 3.
    """

    def __init__(
        self,
        argument: str = "",
        rule: str = "",
        found: object = None,
        hint: str = "",
        *,
        column: str | None = None,
        time: object = None,
        otherwise: str = "",
    ) -> None:
        self.argument, self.rule, self.found, self.hint = argument, rule, found, hint
        self.column, self.time, self.otherwise = column, time, otherwise
        super().__init__(self.render({}))

    def render(self, names: Mapping[str, str]) -> str:
        """Make the message.

        Args:
            names: the names of the arguments at this boundary. An entry "duplicates=" is the text before a value.
        """

        def substitute(text: str) -> str:
            return _ARGUMENT.sub(lambda found: _name(found, names), text)

        if self.argument:
            subject = names.get(self.argument, f"`{self.argument}`")
            subject += f" of {self.column!r}" if self.column is not None else ""
        else:
            subject = "the table" if self.column is None else f"column {self.column!r}"
        got = f", got {self.found}" if self.found is not None else ""
        time = f"{self.time:.15g}" if isinstance(self.time, float) else self.time
        at = "" if time is None else f" at time {time}"
        hint = f" {self.hint[0].upper()}{self.hint[1:]}" if self.hint else ""
        return f"{subject} must {substitute(self.rule)}{got}{at}.{substitute(hint)}"

    def replace(self, **changes: Any) -> "InputError":
        """Make a copy with changed fields."""
        return _rebuild(vars(self) | changes)

    def without_arguments(self) -> "InputError":
        """Make a copy for a call that does not have the arguments of the hint."""
        return self.replace(hint=self.otherwise)

    def __reduce__(self) -> Any:
        return _rebuild, (vars(self),)


def _rebuild(parts: dict[str, Any]) -> InputError:
    made = InputError(**{name: part for name, part in parts.items() if name != "__notes__"})
    for note in parts.get("__notes__", ()):
        made.add_note(note)
    return made


def _name(found: re.Match[str], names: Mapping[str, str]) -> str:
    if found[1] is None:
        return found[0][0]  # a doubled brace
    value = (found[2] or "=")[1:].strip("'")
    if value and f"{found[1]}=" in names:
        return names[f"{found[1]}="] + value
    return names.get(found[1], f"`{found[1]}{found[2] or ''}`")


def full_message(error: BaseException, names: Mapping[str, str] | None = None) -> str:
    """Make one line of an error and its notes.

    Args:
        error: the error.
        names: the names of the arguments at this boundary, see `InputError.render`.

    >>> from cru.errors import InputError, full_message
    >>> error = InputError("epochs", "be at least 1", 0)
    >>> error.add_note("The file settings.json is damaged.")
    >>> full_message(error, {"epochs": "--epochs"})
    '--epochs must be at least 1, got 0. The file settings.json is damaged.'
    """
    text = error.render(names or {}) if isinstance(error, InputError) else str(error)
    return " ".join(" ".join([text, *getattr(error, "__notes__", ())]).split())


def explained(error: ValueError, reason: BaseException) -> ValueError:
    """Return ``error`` with another error, its reason, as a note of one short line."""
    error.add_note(f"The reason: {shorten(full_message(reason))}")
    return error


def literal(text: object) -> str:
    """Escape the braces of a text in a rule or a hint.

    >>> from cru.errors import InputError, literal
    >>> print(InputError("id", "be known", hint=literal("There is {id}.")))
    `id` must be known. There is {id}.
    """
    return str(text).replace("{", "{{").replace("}", "}}")


class RunError(RuntimeError):
    """A run that started but cannot continue, such as a diverged model or a lost process."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest the closest known name, or list the known names.

    >>> from cru.errors import did_you_mean
    >>> did_you_mean("crue", ["cru", "gru-d"])
    "did you mean 'cru'?"
    """
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"there are {some(known, 30)}."


def some(names: Sequence[object], most: int = 10) -> str:
    """Join the first names of a list for a message.

    >>> from cru.errors import some
    >>> some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def printable(text: str, *, keep: str = "") -> str:
    """Escape control characters, which could control a terminal, except those in ``keep``.

    >>> from cru.errors import printable
    >>> printable("a\\x1b[2Jb\\n")
    'a\\\\x1b[2Jb\\\\n'
    """
    return _CONTROL.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)


def shorten(text: object, most: int = 400) -> str:
    """Make one line of at most ``most`` characters.

    >>> from cru.errors import shorten
    >>> shorten("one\\ntwo", 5)
    'one t…'
    """
    line = " ".join(str(text).split())
    return line if len(line) <= most else line[:most] + "…"


class NotFittedError(ValueError, AttributeError):
    """An estimator is used before `fit`. The class has the same bases as that of scikit-learn."""


class MissingExtraError(ImportError, ValueError):
    """A package of an optional dependency is not installed. The message names the extra that installs it."""


def require_extra(module: str, extra: str) -> Any:
    """Import an optional dependency.

    Args:
        module: the module to import.
        extra: the extra of this package that installs it.

    Returns:
        The module.

    Raises:
        MissingExtraError: the module is not installed.

    >>> from cru.errors import require_extra
    >>> require_extra("no_such_module", "plots")
    Traceback (most recent call last):
    cru.errors.MissingExtraError: no_such_module is not installed: pip install 'cru[plots]'.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise  # a package that is installed, but damaged
        package = {"PIL": "pillow"}.get(error.name, error.name.split(".")[0])
        raise MissingExtraError(f"{package} is not installed: pip install 'cru[{extra}]'.") from None
