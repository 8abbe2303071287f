"""The fit of a forecaster's model: the division of the table, the choice of settings, and the training."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from cru.data import Scaler, SeriesSet
from cru.data.random import generator
from cru.data.series import Batches
from cru.errors import InputError
from cru.evaluation import evaluate
from cru.forecaster.clock import Clock
from cru.forecaster.corrections import FOLD, draw_parts, train_corrections, with_folds
from cru.forecaster.inputs import Inputs
from cru.forecaster.kinds import Kinds
from cru.forecaster.masking import make_training_task
from cru.forecaster.queries import Predict, lead_times
from cru.forecaster.structural_options import choose_log_scales, structural_options
from cru.forecaster.table_io import check_sensible, median_gap
from cru.models import NAIVE, Model, create, spec_of
from cru.models.base import Prediction
from cru.models.corrected import CorrectedModel
from cru.models.registry import entry, is_own
from cru.models.structural import StructuralConfig
from cru.training.callbacks import Callback
from cru.training.loop import Engine, Loop
from cru.training.settings import TrainingSettings


@dataclass(frozen=True)
class FitConstants:
    """Sizes of the parts of a table, and the typical gap in the model."""

    few_series: int = 20  # with fewer series, blocks of each series are held out instead of complete series
    blocks_per_series: int = 5  # largest number of held-out blocks per series
    shortest_block: int = 10  # fewest time points held out from a series
    held_out_share: float = 0.2  # share of series held out
    max_calibration_series: int = 1000  # most held-out series
    max_validation_series: int = 200  # most series scored after an epoch
    training_window: int = 100  # most time points: short windows give more optimizer steps in the same time
    longest_part: int = 500  # longest part of a series in validation and in the structural fit, in time points
    windows_per_epoch: tuple[int, int] = (320, 1000)  # fewest and most windows of an epoch
    max_network_variables: int = 100  # most variables for a network on top of the structural model
    structural_batch: int = 128  # parts of series in a batch of the structural fit
    scored_points: tuple[int, int] = (60_000, 200_000)  # about the fewest and the most that a model is scored on
    typical_gap: float = 0.3  # the median gap after scaling of times; the CRU paper uses 0.2 to 0.6


CONSTANTS = FitConstants()
_TRAIN, _VALIDATE = 1, 2  # random streams of the training tasks; scoring.py uses 3


class Fitted(NamedTuple):
    """A trained model, and the scaled series and the function that score it."""

    model: Model
    name: str  # name in the registry
    options: dict[str, Any]
    scaler: Scaler
    scored: SeriesSet  # scaled series that score it
    predict: Predict | None  # replaces the model in scoring; None: the model itself


class Parts(NamedTuple):
    """The training part, and the validation part that selects the best epoch and calibrates the intervals."""

    train: SeriesSet
    validation: SeriesSet


def divide(series: SeriesSet, seed: int) -> Parts:
    """Divide a table into a training part and a validation part.

    Complete series are held out if there are `FitConstants.few_series` or more. With fewer series, about a fifth of
    each is held out: the ends of up to `FitConstants.blocks_per_series` parts of equal length. If all series are too
    short for that, complete series are held out.

    Args:
        series: the table.
        seed: the seed of the choice of series.

    Raises:
        ValueError: there is only one series, and it is too short to divide.
    """
    held_out = np.maximum(CONSTANTS.shortest_block, series.lengths // 5)
    held_out[(series.lengths < 2 * CONSTANTS.shortest_block) | (len(series) >= CONSTANTS.few_series)] = 0
    if held_out.any():
        count = np.clip(held_out // CONSTANTS.shortest_block, 1, CONSTANTS.blocks_per_series)
        owner = np.repeat(np.arange(len(series)), count)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
        start, end = (series.lengths[owner] * (number + k) // count[owner] for k in (0, 1))
        cut = end - held_out[owner] // count[owner]
        some = cut < end
        return Parts(
            series.excerpts(owner, start, cut - start),
            series.excerpts(owner[some], cut[some], (end - cut)[some]),
        )
    if len(series) < 2:
        raise ValueError(
            f"the table must hold at least two series, or one with {2 * CONSTANTS.shortest_block} observations, for "
            f"training and calibration, got one with {len(series.times)}."
        )
    order = generator(seed, "forecaster split").permutation(len(series))
    held = order[: max(1, min(CONSTANTS.max_calibration_series, int(CONSTANTS.held_out_share * len(series))))]
    validation = series.take(np.sort(held))
    short = np.minimum(validation.lengths, CONSTANTS.longest_part)
    return Parts(series.take(np.setdiff1d(order, held)), _part(validation, 0 * short, short))


def windows(series: SeriesSet, rng: np.random.Generator) -> SeriesSet:
    """Draw the training windows of an epoch.

    A series of up to `FitConstants.training_window` time points is one window. A longer series has a window at a random
    place. It is drawn more often, in proportion to its length.
    """
    weight = np.maximum(1.0, series.lengths / CONSTANTS.training_window)
    count = int(np.clip(np.ceil(weight.sum()), *CONSTANTS.windows_per_epoch))
    place = (np.arange(count) + rng.random()) / count * weight.sum()
    chosen = np.minimum(np.searchsorted(np.cumsum(weight), place, side="right"), len(series) - 1)
    length = np.minimum(series.lengths, CONSTANTS.training_window)[chosen]
    return series.excerpts(chosen, rng.integers(0, series.lengths[chosen] - length + 1), length)


def _part(series: SeriesSet, start: np.ndarray, length: np.ndarray) -> SeriesSet:
    """Select ``length`` time points of each series from ``start`` on. Series with length 0 are left out."""
    kept = np.flatnonzero(length)
    return series.excerpts(kept, start[kept], length[kept])


def _pieces(series: SeriesSet) -> SeriesSet:
    """Cut all series into parts of at most `FitConstants.longest_part` time points."""
    count = -(-series.lengths // CONSTANTS.longest_part)
    owner = np.repeat(np.arange(len(series)), count)
    start = CONSTANTS.longest_part * (np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count))
    return series.excerpts(owner, start, np.minimum(CONSTANTS.longest_part, series.lengths[owner] - start))


def default_options(model: str, variables: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Add the forecaster's defaults to the options of a model.

    The size of the latent state grows with the square root of the number of variables. It is 10 for up to 8 variables,
    22 for 37, and at most 32. Softplus makes the output variance positive. The square of the paper can reach zero, and
    then the likelihood of an f-CRU can diverge during training.

    Args:
        model: the name of the model.
        variables: the number of variables.
        options: the options of the user, which take precedence.
    """
    size = 2 * min(16, max(5, math.ceil(math.sqrt(3 * variables))))
    own = {"hidden_size": size, "variance_map": "softplus"}
    known = {field.name for field in dataclasses.fields(entry(model).model.Config) if field.default is None}
    return {name: value for name, value in own.items() if name in known} | dict(options)


def needs_base(model: str, base: str | None) -> bool:
    """Return whether a model is trained on top of a structural model. Naive models and user models never are."""
    return base is not None and not (is_own(model) or model in (*NAIVE, "corrected") or model.startswith("structural"))


def fit_model(
    series: SeriesSet,
    clock: Clock,
    parts: Parts,
    scaler: Scaler,
    kinds: Kinds,
    *,
    model: str,
    base: str | None,
    options: Mapping[str, Any],
    training: TrainingSettings,
    epochs: int | None,
    seed: int,
    callback: Callback | None,
    calendar: bool = True,
    inputs: Inputs | None = None,
) -> Fitted:
    """Scale a table, and fit a model to it: alone, or on top of a structural model.

    Args:
        series: the table in the user's units.
        clock: the clock of the table. Dates have calendar periods.
        parts: training and validation part from `divide`, for models that need a validation part.
        scaler: the scaler of the training part.
        kinds: the kinds of the variables.
        model: the name in the registry, or "module:Class".
        base: "structural", or None for the model alone.
        options: the options of the model.
        training: the settings of the training loop, for models with a memory.
        epochs: the number of epochs for a network without a memory. None: the default.
        seed: the seed of all random numbers.
        callback: the callback of the training.
        calendar: whether to use calendar periods if times are dates.
        inputs: the encoder of the inputs besides the observations, which the series hold in ``per_time``.

    Returns:
        The model, and the series that score it.

    Raises:
        InputError: there are inputs, and the model cannot use them.
    """
    wide = len(series.names) > CONSTANTS.max_network_variables
    above = needs_base(model, base) and not wide
    alone = model == "mlp" and base is not None and wide
    if inputs is not None and not above:
        raise _unusable(inputs, wide=needs_base(model, base))
    if not (above or alone or model.startswith("structural")):
        parts = Parts(*(part.scaled_by(scaler) for part in parts))
        made = learn(parts, model=model, options=options, training=training, seed=seed, callback=callback)
        return Fitted(made, model, dict(options), scaler, parts.validation, None)
    name = "corrected" if above else "structural" if alone else model
    chosen = structural_options(series, clock if calendar else Clock())
    phases = chosen.pop("calendar")
    pieces = _pieces(series)
    gap = median_gap(series)
    config = StructuralConfig(**chosen)
    scales = choose_log_scales(pieces, kinds, config, CONSTANTS.typical_gap / gap, seed)
    scaler = Scaler.fit(series.values, series.mask, log_scale=scales)
    check_sensible(series, scaler)
    if above:
        given = [f"{key}={json.dumps(value)}" for key, value in options.items()]
        chosen |= {"network": model, "network_options": given, "gap": gap, "calendar": phases}
        if inputs is not None:
            chosen |= {"inputs": inputs.size, "later_inputs": inputs.later}
        if not entry(model).model.pointwise:
            scaled = Parts(*(part.scaled_by(scaler) for part in parts))
            made = learn(scaled, model=name, options=chosen, training=training, seed=seed, callback=callback)
            return Fitted(made, name, chosen, scaler, scaled.validation, None)
    else:
        chosen |= dict(options)
    made = _create(name, pieces.scaled_by(scaler), chosen, gap, seed)
    made.prepare(Batches(pieces.scaled_by(scaler), CONSTANTS.structural_batch, made.dtype, torch.device("cpu")))
    rows = int(np.clip(len(series.times), *CONSTANTS.scored_points))
    if not isinstance(made, CorrectedModel):
        scored = draw_parts(pieces.scaled_by(scaler), rows, CONSTANTS.longest_part, generator(seed, "judged"))
        return Fitted(made.eval(), name, chosen, scaler, scored, None)
    folded = with_folds(series.scaled_by(scaler), made.members, seed)
    limits = {"epochs": epochs, "minutes": training.minutes, "patience": training.patience}
    train_corrections(made, folded, seed=seed, callback=callback, **limits)  # type: ignore[arg-type]
    corrected = made

    def predict(batch: Any) -> Prediction:
        return corrected.held_out(batch, batch.extras[FOLD])

    scored = draw_parts(folded, rows, CONSTANTS.longest_part, generator(seed, "judged"))
    return Fitted(made.eval(), name, chosen, scaler, scored, predict)


def _unusable(inputs: Inputs, *, wide: bool) -> InputError:
    """Make the error for a model that cannot use known and static columns."""
    argument = "known" if inputs.known else "static"
    if wide:
        return InputError(
            argument, f"be left out of a table with more than {CONSTANTS.max_network_variables} variables"
        )
    rule = "be left out, because this model cannot use it"
    return InputError(argument, rule, hint="Use a network with {base='structural'}, as the default model does.")


def _create(name: str, series: SeriesSet, options: Mapping[str, Any], gap: float, seed: int) -> Model:
    spec = spec_of(make_training_task(series, seed), time_scale=CONSTANTS.typical_gap / gap)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return create(name, spec, **options)


def _some(series: SeriesSet, most: int) -> SeriesSet:
    """Select at most ``most`` series, evenly spaced."""
    return series.take(np.unique(np.linspace(0, len(series) - 1, most).round().astype(np.int64)))


def longest_lead(task: SeriesSet) -> float | None:
    """Return the 99 % quantile of the positive lead times in a training task, or None if there are none."""
    assert task.hidden is not None
    lead = lead_times(task, causal=True)[task.hidden]
    lead = lead[(lead > 0) & np.isfinite(lead)]
    return float(np.quantile(lead, 0.99)) if len(lead) else None


def learn(
    parts: Parts,
    *,
    model: str,
    options: Mapping[str, Any],
    training: TrainingSettings,
    seed: int,
    callback: Callback | None,
) -> Model:
    """Train a model on new training tasks in each epoch, and return it with the weights of the best epoch.

    Args:
        parts: scaled training and validation part.
        model: the name in the registry, or "module:Class".
        options: the options of the model.
        training: the settings of the training loop.
        seed: the seed of all random numbers.
        callback: the callback of the training.
    """
    pieces = _pieces(parts.validation)
    watched = np.unique(np.linspace(0, len(pieces) - 1, CONSTANTS.max_validation_series).round().astype(np.int64))
    validation = make_training_task(pieces.take(watched), (seed, _VALIDATE))
    whole = make_training_task(parts.train, (seed, _TRAIN))

    def renew(epoch: int) -> SeriesSet:
        return make_training_task(windows(parts.train, generator((seed, epoch), "windows")), (seed, _TRAIN, epoch))

    spec = spec_of(whole, time_scale=CONSTANTS.typical_gap / median_gap(parts.train))
    spec = dataclasses.replace(spec, longest_gap=longest_lead(renew(0)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = create(model, spec, **options)
    engine = Engine()
    made.to(engine.device).prepare(Batches(whole, training.batch_size, made.dtype, engine.device))
    del whole, pieces  # free memory before training
    if made.num_parameters:
        loop = Loop(training, made, renew(0), validation, seed=seed, engine=engine, callback=callback, renew=renew)
        start = {name: tensor.clone() for name, tensor in made.state_dict().items()}
        untrained = evaluate(made, validation, batch_size=training.batch_size, device=engine.device).as_dict()
        loop.run()
        if not (loop.progress.epoch or isinstance(made, CorrectedModel)):
            raise KeyboardInterrupt  # the callback ended the training before the first epoch was complete
        # An untrained corrected model equals the structural model, which counts as epoch 0.
        trained = not isinstance(made, CorrectedModel) or loop.progress.best_score < untrained["hidden"]["nll"]
        made.load_state_dict(loop.checkpointer.best_weights() if trained else start)
    return made.cpu().eval()
