"""Scaling of features, and the conversion back to the user's units."""

from dataclasses import dataclass, fields
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from cru.errors import InputError
from cru.shapes import Bool, Float

Array = TypeVar("Array", np.ndarray, Tensor)
ScalingMethod = Literal["standard", "min-max"]
LARGEST_EXPONENT = 60.0  # limit for the inverse of the logarithm
ROUNDING = 1e-14  # relative rounding error of the deviation of a constant


@dataclass(frozen=True)
class Scaler:
    """A shift and a scale for each feature: scaled = (g(value) - shift) / scale.

    g is the identity, or log(1 + value / log_scale) for a feature with a ``log_scale`` above 0. Such a feature is
    never negative.

    >>> from cru.data import Scaler
    >>> values = np.array([[1.0], [2.0], [3.0]])
    >>> scaler = Scaler.fit(values, np.ones_like(values, bool))
    >>> bool(np.allclose(scaler.inverse(scaler.transform(values)), values))
    True
    """

    shift: tuple[float, ...]
    scale: tuple[float, ...]
    log_scale: tuple[float, ...] = ()  # empty: all 0

    @staticmethod
    def fit(
        values: Float[np.ndarray, "row feature"],
        mask: Bool[np.ndarray, "row feature"],
        kind: ScalingMethod = "standard",
        *,
        through_zero: bool = False,
        log_scale: tuple[float, ...] = (),
    ) -> "Scaler":
        """Fit to the observed values: mean and standard deviation, or minimum and range (``"min-max"``).

        A feature that is constant or never observed is only shifted.

        Args:
            values: the values of each feature.
            mask: True where a value is observed.
            kind: the statistics: ``"standard"`` or ``"min-max"``.
            through_zero: whether to add a zero to the values, as if missing values were zeros.
            log_scale: the ``log_scale`` of each feature. Empty: all 0.

        Raises:
            InputError: ``kind`` is neither.
        """
        if kind not in ("standard", "min-max"):
            raise InputError("kind", "be 'standard' or 'min-max'", repr(kind))
        shift, scale = [], []
        for column in range(values.shape[1]):
            seen = values[mask[:, column], column].astype(np.float64)
            if log_scale and log_scale[column] > 0:
                seen = np.log1p(np.maximum(seen, 0) / log_scale[column])
            if through_zero or seen.size == 0:
                seen = np.append(seen, 0.0)
            low, width = (seen.mean(), seen.std()) if kind == "standard" else (seen.min(), np.ptp(seen))
            shift.append(float(low))
            scale.append(float(width) if width > ROUNDING * np.abs(seen).max() else 1.0)
        return Scaler(tuple(shift), tuple(scale), log_scale)

    def of_feature(self, k: int) -> "Scaler":
        """Return the scaler of one feature alone."""
        return Scaler(**{field.name: getattr(self, field.name)[k : k + 1] for field in fields(self)})

    @property
    def is_log(self) -> Bool[np.ndarray, " feature"]:
        """Features whose logarithm is scaled."""
        return np.asarray(self.log_scale or (0.0,) * len(self.shift)) > 0

    def transform(self, values: Array) -> Array:
        """Scale values (..., feature)."""
        if self.is_log.any():
            values = self._where_log(values, self._log(values))
        scaled: Array = (values - self._like(self.shift, values)) / self._like(self.scale, values)
        return scaled

    def inverse(self, mean: Array) -> Array:
        """Convert scaled values (..., feature) to the user's units."""
        natural: Array = mean * self._like(self.scale, mean) + self._like(self.shift, mean)
        return self._where_log(natural, self._exp(natural)) if self.is_log.any() else natural

    def inverse_std(self, std: Array, mean: Array | None = None) -> Array:
        """Convert scaled standard deviations (..., feature) to the user's units.

        ``mean`` is the scaled mean of the distribution. Features with a logarithm need it.
        """
        natural: Array = std * self._like(self.scale, std)
        if mean is None or not self.is_log.any():
            return natural
        return self._where_log(natural, (self.inverse(mean + std) - self.inverse(mean - std)) / 2)

    def to_dict(self) -> dict[str, list[float]]:
        """Convert to a dict for JSON."""
        return {"shift": list(self.shift), "scale": list(self.scale), "log_scale": list(self.log_scale)}

    @staticmethod
    def from_dict(saved: dict[str, list[float]]) -> "Scaler":
        """Read the result of :meth:`to_dict`."""
        return Scaler(tuple(saved["shift"]), tuple(saved["scale"]), tuple(saved.get("log_scale", ())))

    def _log(self, values: Array) -> Array:
        ratio = values / self._like(self._divisor, values)
        if isinstance(ratio, np.ndarray):
            logged: np.ndarray = np.log1p(np.maximum(ratio, 0))
            return logged
        found: Array = ratio.clamp(min=0).log1p()
        return found

    def _exp(self, natural: Array) -> Array:
        divisor = self._like(self._divisor, natural)
        if isinstance(natural, Tensor):
            return divisor * natural.clamp(0, LARGEST_EXPONENT).expm1()
        grown: Array = divisor * np.expm1(np.clip(natural, 0, LARGEST_EXPONENT))
        return grown

    @property
    def _divisor(self) -> tuple[float, ...]:
        return tuple(number or 1.0 for number in self.log_scale)

    def _where_log(self, plain: Array, logged: Array) -> Array:
        if isinstance(plain, Tensor):
            return torch.where(torch.from_numpy(self.is_log).to(plain.device), logged, plain)
        mixed: Array = np.where(self.is_log, logged, plain)
        return mixed

    @staticmethod
    def _like(numbers: tuple[float, ...], other: Array) -> Array:
        return other.new_tensor(numbers) if isinstance(other, Tensor) else np.asarray(numbers, other.dtype)
