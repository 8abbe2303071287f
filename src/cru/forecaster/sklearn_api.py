"""The estimator interface of scikit-learn, without a dependency on it."""

import inspect
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from cru.errors import NotFittedError, did_you_mean

T = TypeVar("T", bound="Estimator")


class Estimator:
    """Base class with the parameter methods of a scikit-learn estimator.

    The constructor stores its arguments unchanged. Names of fitted attributes end in an underscore.
    """

    @classmethod
    def _parameters(cls) -> dict[str, Any]:
        """Return the names and defaults of the constructor's arguments."""
        return {name: p.default for name, p in inspect.signature(cls).parameters.items()}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments. ``deep`` has no effect, because there are no nested estimators."""
        return {name: getattr(self, name) for name in sorted(self._parameters())}

    def _plain_params(self) -> dict[str, Any]:
        """Return the parameters with NumPy numbers as Python numbers, as JSON and the settings need them."""
        return {name: _plain(value) for name, value in self.get_params().items()}

    def set_params(self: T, **params: Any) -> T:
        """Set parameters. They take effect at the next `fit`.

        Args:
            params: new values by name.

        Returns:
            The estimator itself.

        Raises:
            ValueError: a name is not a parameter.
        """
        for name, value in params.items():
            if name not in self._parameters():
                known = self._parameters()
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}; {did_you_mean(name, known)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        changed = {
            k: v for k, v in self.get_params().items() if v is not self._parameters()[k] and v != self._parameters()[k]
        }
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags  # only scikit-learn calls this

        inputs = InputTags(two_d_array=False, string=True, allow_nan=True)
        return Tags(estimator_type=None, target_tags=TargetTags(required=False), input_tags=inputs, no_validation=True)

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            theirs = sys.modules.get("sklearn.exceptions")  # users of scikit-learn catch this class
            kind: type[Exception] = getattr(theirs, "NotFittedError", NotFittedError)
            raise kind(f"this {type(self).__name__} is not fitted yet: call `fit` with a table first.")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return value.item() if isinstance(value, np.generic) else value
