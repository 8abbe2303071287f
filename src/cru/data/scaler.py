"""Scaling of features, and the way back to the user's units."""

from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

Array = TypeVar("Array", np.ndarray, Tensor)
Kind = Literal["standard", "min-max"]
ROUNDING = 1e-14  # of the largest value: the deviation of a constant that is not a binary fraction


@dataclass(frozen=True)
class Scaler:
    """One shift and one scale a feature: scaled = (value - shift) / scale.

    >>> scaler = Scaler.fit(series.values, series.mask)
    >>> bool(np.allclose(scaler.inverse(scaler.transform(series.values)), series.values))
    True
    """

    shift: tuple[float, ...]
    scale: tuple[float, ...]

    @staticmethod
    def fit(
        values: Float[np.ndarray, "row feature"],
        mask: Bool[np.ndarray, "row feature"],
        kind: Kind = "standard",
        *,
        through_zero: bool = False,
    ) -> "Scaler":
        """Learn from the observed values: mean and standard deviation, or minimum and range (``"min-max"``).

        A feature that never varies, or that is never observed, is only shifted. With ``through_zero`` the minimum is at
        most 0 and the maximum at least 0, as if missing values were zeros.
        """
        if kind not in ("standard", "min-max"):
            raise ValueError(f"`kind` must be 'standard' or 'min-max', got {kind!r}.")
        shift, scale = [], []
        for column in range(values.shape[1]):
            seen = values[mask[:, column], column].astype(np.float64)
            if through_zero or seen.size == 0:
                seen = np.append(seen, 0.0)
            low, width = (seen.mean(), seen.std()) if kind == "standard" else (seen.min(), np.ptp(seen))
            shift.append(float(low))
            scale.append(float(width) if width > ROUNDING * np.abs(seen).max() else 1.0)
        return Scaler(tuple(shift), tuple(scale))

    def transform(self, values: Array) -> Array:
        """Values (..., feature) in scaled units."""
        scaled: Array = (values - self._like(self.shift, values)) / self._like(self.scale, values)
        return scaled

    def inverse(self, mean: Array) -> Array:
        """Scaled values (..., feature) in the user's units."""
        natural: Array = mean * self._like(self.scale, mean) + self._like(self.shift, mean)
        return natural

    def inverse_std(self, std: Array) -> Array:
        """Scaled standard deviations (..., feature) in the user's units; of a variance, take the square root first."""
        natural: Array = std * self._like(self.scale, std)
        return natural

    def to_dict(self) -> dict[str, list[float]]:
        """For JSON, beside a model's weights."""
        return {"shift": list(self.shift), "scale": list(self.scale)}

    @staticmethod
    def from_dict(saved: dict[str, list[float]]) -> "Scaler":
        """The reverse of :meth:`to_dict`."""
        return Scaler(tuple(saved["shift"]), tuple(saved["scale"]))

    @staticmethod
    def _like(numbers: tuple[float, ...], other: Array) -> Array:
        return other.new_tensor(numbers) if isinstance(other, Tensor) else np.asarray(numbers, other.dtype)
