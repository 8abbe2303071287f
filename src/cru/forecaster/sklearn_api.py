"""The manners of a scikit-learn estimator, without scikit-learn."""

import inspect
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from cru.errors import NotFittedError, did_you_mean

T = TypeVar("T", bound="Estimator")


class Estimator:
    """Constructor arguments are parameters, kept as they came; what is learned ends in an underscore."""

    @classmethod
    def _parameters(cls) -> dict[str, Any]:
        """Names and defaults of the constructor's arguments."""
        return {name: p.default for name, p in inspect.signature(cls).parameters.items()}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments; ``deep`` changes nothing, there are no estimators inside."""
        return {name: getattr(self, name) for name in sorted(self._parameters())}

    def _plain_params(self) -> dict[str, Any]:
        """The same with numpy's numbers as Python's, which JSON and the checks of settings want."""
        return {name: _plain(value) for name, value in self.get_params().items()}

    def set_params(self: T, **params: Any) -> T:
        """Change some of them; they count from the next `fit` on."""
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
        from sklearn.utils import InputTags, Tags, TargetTags  # only scikit-learn asks

        inputs = InputTags(two_d_array=False, string=True, allow_nan=True)
        return Tags(estimator_type=None, target_tags=TargetTags(required=False), input_tags=inputs, no_validation=True)

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            theirs = sys.modules.get("sklearn.exceptions")  # whoever has it loaded may want to catch its error
            kind: type[Exception] = getattr(theirs, "NotFittedError", NotFittedError)
            raise kind(f"this {type(self).__name__} is not fitted yet: call `fit` with a table first.")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return value.item() if isinstance(value, np.generic) else value
