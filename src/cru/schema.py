"""The validation of the contents of files with schemas: types, ranges and lengths.

A schema is a `Schema` class with one annotated field for each key. To add a key to a file, add a field.
"""

import json
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from cru.files import MOST_TEXT, read_bounded

SchemaType = TypeVar("SchemaType", bound="Schema")
PositiveNumber = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0, lt=2**62)]
Size = Annotated[int, Field(ge=1, lt=2**62)]
Checksum = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
AnyNumber = Annotated[float, Field(allow_inf_nan=True)]  # a score may be NaN
Plain = None | bool | int | float | str
Options = dict[str, Plain | list[Plain]]  # options of a model, which its config validates further
_OPTIONS: TypeAdapter[Options] = TypeAdapter(Options, config=ConfigDict(strict=True))


class Schema(BaseModel):
    """Base class of all schemas: no conversion between types, no unknown key, no NaN and no infinity."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


class OpenSchema(Schema):
    """A schema that allows other keys."""

    model_config = ConfigDict(extra="allow")


def check(kind: type[SchemaType], found: Any, where: Path | str) -> SchemaType:
    """Validate a value with a schema.

    Args:
        kind: the schema.
        found: the value.
        where: the source of the value, for errors.

    Raises:
        ValueError: the value is not valid. The message has the source, the key, the rule and the value.
    """
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        raise ValueError(_sentence(error, where)) from None
    except RecursionError:
        raise ValueError(f"{where} must not be nested so deeply.") from None


def check_options(found: Any, where: Path | str) -> Options:
    """Return options. Raise ValueError unless they are plain values by name."""
    try:
        return _OPTIONS.validate_python(found)
    except ValidationError as error:
        raise ValueError(_sentence(error, where)) from None


def read_json(path: Path, most: int = MOST_TEXT) -> dict[str, Any]:
    """Read a JSON object from a file of at most ``most`` bytes."""
    return parse_json(read_bounded(path, most), path)


def parse_json(text: bytes | str, where: Path | str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ValueError: the text is not a JSON object.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{where} is damaged: it is truncated or not JSON.") from None
    if not isinstance(found, dict):
        raise ValueError(f"{where} must hold a JSON object, got {type(found).__name__}.")
    return found


def check_array(name: str, found: Any, shape: tuple[int, ...], *, most: float = 1e30) -> np.ndarray:
    """Make an array from nested lists.

    Args:
        name: the name of the array, for errors.
        found: the nested lists.
        shape: the expected shape.
        most: the largest absolute value.

    Raises:
        ValueError: the array has another shape, or a number is not finite or too large.
    """
    try:
        array = np.array(found, np.float64)
    except (ValueError, TypeError, OverflowError):  # ragged, or not numbers
        raise ValueError(f"`{name}` must be numbers of the shape {shape}.") from None
    if array.size == 0 == np.prod(shape):
        array = array.reshape(shape)
    if array.shape != shape or not (np.abs(array) <= most).all():
        raise ValueError(f"`{name}` must be finite numbers of the shape {shape}, got the shape {array.shape}.")
    return array


def _sentence(error: ValidationError, where: Path | str) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    place = f"`{key:.100}` in {where}" if key else str(where)
    rule = first["msg"].removeprefix("Value error, ").removeprefix("Input ").rstrip(".")
    if first["type"] == "value_error":
        return f"{where} is damaged: {rule}."
    if first["type"] in ("missing", "extra_forbidden"):
        return f"{place} must {'be given' if first['type'] == 'missing' else 'not be given'}: the file is damaged."
    rule = rule if rule.startswith("should") else f"should be valid ({rule})"
    return f"{place} must {rule.removeprefix('should ')}, got {first['input']!r:.60}."
