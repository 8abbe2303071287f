"""The application of a model to a set of series: scores, batches of predictions, and predictions by series."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cru.data import Batch, SeriesSet
from cru.errors import InputError
from cru.evaluation.metrics import Scores, ScoreSums
from cru.functional import VARIANCE_FLOOR
from cru.models import Model, Prediction
from cru.shapes import Bool, Float, Float64, Shaped


def evaluate(
    model: Model,
    series: SeriesSet,
    *,
    batch_size: int = 50,
    device: torch.device | str | None = None,
    share: tuple[int, int] = (0, 1),
    total: Callable[[Tensor], Tensor] | None = None,
) -> Scores:
    """Score a model on a set of series.

    >>> evaluate(model, splits.test)["mse"]  # doctest: +SKIP

    Args:
        model: the model.
        series: series with a task.
        batch_size: the number of series in a batch.
        device: the device of the model.
        share: the index of this process and the number of processes. Each process scores its own batches.
        total: the function that sums a tensor over the processes.

    Returns:
        The scores.

    Raises:
        ValueError: ``series`` has no task.
    """
    if series.task is None:
        raise InputError("series", "have a task", hint="Apply one, such as cru.data.interpolation(series).")
    score_sums = ScoreSums(series.target_shape, series.task.likelihood, scored=series.task.scored)
    for batch, prediction in predict(model, series, batch_size=batch_size, device=device, share=share):
        score_sums.add(prediction, batch)
    if total is not None:
        score_sums.reduce(total)
    return score_sums.scores()


def predict(
    model: Model,
    series: SeriesSet,
    *,
    batch_size: int = 50,
    device: torch.device | str | None = None,
    share: tuple[int, int] = (0, 1),
    intermediates: bool = False,
) -> Iterator[tuple[Batch, Prediction]]:
    """Predict batches of series, in order.

    Args:
        model: the model.
        series: the series.
        batch_size: the number of series in a batch.
        device: the device of the model.
        share: the index of this process and the number of processes. Each process predicts its own batches.
        intermediates: whether the predictions also have the intermediate results of the model.

    Yields:
        A batch and its prediction.
    """
    largest = series.largest_batch(batch_size)
    for start in range(0, len(series), batch_size)[share[0] :: share[1]]:
        chosen = np.arange(start, min(start + batch_size, len(series)))
        batch = series.batch(chosen, dtype=model.dtype).to(device)
        with model.inference(*largest):  # not around `yield`, where it would change the code of the caller
            prediction = model(batch, intermediates=intermediates)
        yield batch, prediction


class SeriesPrediction(NamedTuple):
    """One series and the predictions of a model at its time points.

    Features have their original units if the data has a ``Scaler``. Pixels of images are in [0, 1].
    """

    id: str
    times: Float64[np.ndarray, " time"]
    values: Float[np.ndarray, "time *feature"]  # inputs of the model
    mask: Bool[np.ndarray, "time *mask"]
    targets: Float[np.ndarray, "time *target"]
    target_mask: Bool[np.ndarray, "time *target_mask"]
    hidden: Bool[np.ndarray, "time *target_mask"]
    mean: Float[np.ndarray, "time *target"]
    std: Float[np.ndarray, "time *target"] | None  # None for a Bernoulli likelihood
    gain: Float[np.ndarray, " time"] | None  # norm of the Kalman gain, NaN without an observation; None without a gain
    noise: Float[np.ndarray, " time"] | None  # fraction of noise in an image; None if unknown

    @property
    def observed(self) -> Bool[np.ndarray, " time"]:
        """Mask of the time points with at least one observed input."""
        seen: np.ndarray = np.any(self.mask.reshape(len(self.times), -1), axis=1)
        return seen

    @property
    def is_image(self) -> bool:
        """Whether the inputs are images."""
        return self.values.ndim > 2


def predict_series(model: Model, series: SeriesSet, *, batch_size: int = 50) -> Iterator[SeriesPrediction]:
    """Predict every series, in order. The arguments are those of `predict`.

    >>> next(predict_series(model, splits.test)).mean  # doctest: +SKIP
    """
    for batch, prediction in predict(model, series, batch_size=batch_size, intermediates=True):
        for number in range(len(batch)):
            yield _series_prediction(batch, prediction, number, series)


def gain_norm(prediction: Prediction) -> Float[Tensor, "batch time"] | None:
    """Compute ‖K‖ at each time, over both diagonals of the gain. Return None for a model without a gain."""
    if "gain" not in prediction.intermediates:
        return None
    gain = prediction.intermediates["gain"]
    norm: Tensor = torch.cat([gain.upper, gain.lower], -1).norm(dim=-1)
    return norm


def _series_prediction(batch: Batch, prediction: Prediction, number: int, series: SeriesSet) -> SeriesPrediction:
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
    return SeriesPrediction(
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
