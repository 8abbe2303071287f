"""What a model says of each series of a set, as plain arrays in the data's own units: for pictures and pages."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Shaped
from torch import Tensor

from cru.data import Batch, SeriesSet
from cru.evaluation.evaluate import predict
from cru.functional import VARIANCE_FLOOR
from cru.models import Model, Prediction


class Output(NamedTuple):
    """One series and what a model says of it; arrays run over its time points.

    Features are in the units that the data came in where it knows them (``Scaler``); images lie in [0, 1].
    ``std`` is None where the likelihood is Bernoulli, ``gain`` where the model has no Kalman gain; at time points with
    nothing observed ``gain`` is NaN. ``noise`` is the share of an image that is noise, where the data knows it.
    """

    id: str
    times: Float64[np.ndarray, " time"]
    values: Float[np.ndarray, "time *feature"]  # what the model saw
    mask: Bool[np.ndarray, "time *mask"]
    targets: Float[np.ndarray, "time *target"]
    target_mask: Bool[np.ndarray, "time *target_mask"]
    hidden: Bool[np.ndarray, "time *target_mask"]
    mean: Float[np.ndarray, "time *target"]
    std: Float[np.ndarray, "time *target"] | None
    gain: Float[np.ndarray, " time"] | None
    noise: Float[np.ndarray, " time"] | None

    @property
    def observed(self) -> Bool[np.ndarray, " time"]:
        """Time points at which the model saw anything."""
        seen: np.ndarray = np.any(self.mask.reshape(len(self.times), -1), axis=1)
        return seen

    @property
    def is_image(self) -> bool:
        """Whether the inputs are pictures."""
        return self.values.ndim > 2


def outputs(model: Model, series: SeriesSet, *, batch_size: int = 50) -> Iterator[Output]:
    """Every series in order with what the model says of it.

    >>> next(outputs(model, splits.test)).mean  # doctest: +SKIP
    """
    for batch, prediction in predict(model, series, batch_size=batch_size, intermediates=True):
        for number in range(len(batch)):
            yield _output(batch, prediction, number, series)


def gain_norm(prediction: Prediction) -> Float[Tensor, "batch time"] | None:
    """‖K‖ at each time, the two diagonals of the gain together; None for a model without one."""
    if "gain" not in prediction.intermediates:
        return None
    gain = prediction.intermediates["gain"]
    norm: Tensor = torch.cat([gain.upper, gain.lower], -1).norm(dim=-1)
    return norm


def _output(batch: Batch, prediction: Prediction, number: int, series: SeriesSet) -> Output:
    count = int(batch.lengths[number])

    def plain(tensor: Tensor) -> Shaped[np.ndarray, "..."]:
        array: np.ndarray = tensor[number, :count].detach().cpu().numpy()
        return array.astype(np.float64) if array.dtype.kind == "f" else array

    values, targets, mean = plain(batch.values), plain(batch.targets), plain(prediction.mean)
    std = None if prediction.var is None else np.sqrt(np.maximum(plain(prediction.var), VARIANCE_FLOOR))  # as scored
    scaler = series.scaler
    if scaler is not None:
        values = scaler.inverse(values)
        if series.task is not None and series.task.name != "regression":  # labels are never scaled
            targets, mean = scaler.inverse(targets), scaler.inverse(mean)
            std = None if std is None else scaler.inverse_std(std)
    norm = gain_norm(prediction)
    gain = None if norm is None else np.where(plain(batch.observed), plain(norm), np.nan)
    noise = 1 - plain(batch.extras["noise"]) if "noise" in batch.extras else None
    return Output(
        id=batch.ids[number],
        times=plain(batch.times),
        values=values,
        mask=plain(batch.mask),
        targets=targets,
        target_mask=plain(batch.target_mask),
        hidden=plain(batch.hidden),
        mean=mean,
        std=std,
        gain=gain,
        noise=noise,
    )
