"""Check what files say against schemas: types, ranges and lengths. What is wrong becomes one sentence.

A schema is a `Schema` class with one annotated field for each key. To add a key to a file, add a field.
"""

import json
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from cru.files import MOST_TEXT, read_bounded

Kind = TypeVar("Kind", bound="Schema")
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0, lt=2**62)]
Size = Annotated[int, Field(ge=1, lt=2**62)]
Checksum = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
AnyNumber = Annotated[float, Field(allow_inf_nan=True)]  # a score may be NaN
Plain = None | bool | int | float | str
Options = dict[str, Plain | list[Plain]]  # of a model: its own config checks them further
_OPTIONS: TypeAdapter[Options] = TypeAdapter(Options, config=ConfigDict(strict=True))


class Schema(BaseModel):
    """Base of all schemas: no conversion between types, no unknown key, no NaN and no infinity."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


class OpenSchema(Schema):
    """A schema of the keys that are read; others may be there."""

    model_config = ConfigDict(extra="allow")


def check(kind: type[Kind], found: Any, where: Path | str) -> Kind:
    """Check ``found`` against a schema.

    Raises:
        ValueError: one sentence with the place ``where`` it is from, the key, the rule and the value.
    """
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        raise ValueError(_sentence(error, where)) from None
    except RecursionError:
        raise ValueError(f"{where} must not be nested so deeply.") from None


def check_options(found: Any, where: Path | str) -> Options:
    """Check that options are plain values by name."""
    try:
        return _OPTIONS.validate_python(found)
    except ValidationError as error:
        raise ValueError(_sentence(error, where)) from None


def read_json(path: Path, most: int = MOST_TEXT) -> dict[str, Any]:
    """Read a JSON object from a file of bounded size."""
    return parse_json(read_bounded(path, most), path)


def parse_json(text: bytes | str, where: Path | str) -> dict[str, Any]:
    """Read a JSON object; whatever is wrong with it is one sentence."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{where} is damaged: it is cut off or not JSON.") from None
    if not isinstance(found, dict):
        raise ValueError(f"{where} must hold a JSON object, got {type(found).__name__}.")
    return found


def check_array(name: str, found: Any, shape: tuple[int, ...], *, most: float = 1e30) -> np.ndarray:
    """Make an array of nested lists, which must have the ``shape`` and finite numbers of a size up to ``most``."""
    try:
        array = np.array(found, np.float64)
    except (ValueError, TypeError, OverflowError):  # ragged, or no numbers
        raise ValueError(f"`{name}` must be numbers of the shape {shape}.") from None
    if array.size == 0 == np.prod(shape):
        array = array.reshape(shape)
    if array.shape != shape or not (np.abs(array) <= most).all():
        raise ValueError(f"`{name}` must be finite numbers of the shape {shape}, got the shape {array.shape}.")
    return array


def shorten(text: object, most: int = 400) -> str:
    """Make one line of at most so many characters: a forged value may be long.

    >>> shorten("one\\ntwo", 5)
    'one t…'
    """
    line = " ".join(str(text).split())
    return line if len(line) <= most else line[:most] + "…"


def _sentence(error: ValidationError, where: Path | str) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    place = f"`{key:.100}` in {where}" if key else str(where)
    rule = first["msg"].removeprefix("Value error, ").removeprefix("Input ").rstrip(".")
    if first["type"] == "value_error":
        return f"{where} is damaged: {rule}."
    if first["type"] in ("missing", "extra_forbidden"):
        return f"{place} must {'be there' if first['type'] == 'missing' else 'not be there'}: the file is damaged."
    rule = rule if rule.startswith("should") else f"should be valid ({rule})"
    return f"{place} must {rule.removeprefix('should ')}, got {first['input']!r:.60}."
