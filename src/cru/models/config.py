"""The base class of model options, with checks of types and ranges."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import UnionType
from typing import get_args, get_type_hints

from torch import nn

from cru.layers.checks import check_count, require

_PLAIN = {bool: "True or False", str: "a text", nn.Module: "a module", type(None): "None"}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Base class of all configs. Each class checks its own options when it is created."""

    def __post_init__(self) -> None:
        """Check the types of options that are not numbers. The methods below check numbers."""
        for name, hint in get_type_hints(type(self)).items():
            kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
            if {*kinds} <= _PLAIN.keys() and not isinstance(getattr(self, name), kinds):
                rule = " or ".join(_PLAIN[kind] for kind in kinds)
                raise ValueError(f"`{name}` must be {rule}, got {getattr(self, name)!r}.")

    def check_counts(self, *names: str) -> None:
        """Raise unless these options are whole numbers of at least 1."""
        for name in names:
            check_count(name, getattr(self, name))

    def check_positive(self, *names: str) -> None:
        """Raise unless these options are above 0."""
        self._check(names, lambda value: value > 0, "positive")

    def check_not_negative(self, *names: str) -> None:
        """Raise unless these options are at least 0."""
        self._check(names, lambda value: 0 <= value < math.inf, "a number of at least 0")

    def check_shares(self, *names: str) -> None:
        """Raise unless these options are at least 0 and below 1."""
        self._check(names, lambda value: 0 <= value < 1, "at least 0 and below 1")

    def _check(self, names: tuple[str, ...], rule: Callable[[float], bool], words: str) -> None:
        for name in names:
            value = getattr(self, name)
            fits = isinstance(value, int | float) and rule(value)
            require(fits, f"`{name}` must be {words}, got {value!r}.")
