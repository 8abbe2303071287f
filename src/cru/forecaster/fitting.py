"""The fit of a forecaster: the division of the table, the choice of settings, the training and the calibration."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from cru.data import Scaler, SeriesSet
from cru.data.random import generator
from cru.data.series import Batches
from cru.errors import InputError
from cru.evaluation import evaluate
from cru.forecaster.anomalies import fit_errors
from cru.forecaster.calibration import fit_calibration
from cru.forecaster.clock import Clock
from cru.forecaster.corrections import FOLD, draw_segments, train_corrections, with_folds
from cru.forecaster.inputs import Inputs
from cru.forecaster.kinds import Kind, Kinds
from cru.forecaster.masking import FEW_SERIES, RandomStream, make_training_task
from cru.forecaster.predictive_distribution import fit_mean_weight
from cru.forecaster.queries import Predict, lead_times
from cru.forecaster.scoring import (
    compare_held_out,
    compared_part,
    compute_scores,
    constant,
    errors_of,
    find_better_naive_models,
    score_rows,
)
from cru.forecaster.structural_options import choose_log_scales, structural_options
from cru.forecaster.table_io import Columns, check_plausible, find_outliers, give_warnings, median_gap
from cru.models import NAIVE, Model, create, spec_of
from cru.models.base import Prediction
from cru.models.corrected import CorrectedModel, default_network_options
from cru.models.registry import entry, is_own
from cru.models.structural import TYPICAL_GAP, StructuralConfig
from cru.training.callbacks import Callback, StopOnInterrupt
from cru.training.loop import Engine, Loop
from cru.training.settings import TrainingSettings, build

if TYPE_CHECKING:
    from cru.forecaster.estimator import Forecaster


@dataclass(frozen=True)
class FitConstants:
    """Constants of the division of a table and of the fit."""

    blocks_per_series: int = 5  # largest number of held-out blocks per series
    shortest_block: int = 10  # fewest time points held out from a series
    held_out_part: int = 5  # one of this many series, or time points of a series, is held out
    max_calibration_series: int = 1000  # most held-out series
    max_validation_series: int = 200  # most series scored after an epoch
    training_segment: int = 100  # most time points: short segments give more optimizer steps in the same time
    longest_segment: int = 500  # most time points of a segment in validation and in the structural fit
    segments_per_epoch: tuple[int, int] = (320, 1000)  # fewest and most segments of an epoch
    max_network_variables: int = 100  # most variables for a network on top of the structural model
    epochs: int = 100  # default of a network with a memory
    structural_batch: int = 128  # segments in a batch of the structural fit
    scored_points: tuple[int, int] = (60_000, 200_000)  # about the fewest and the most that a model is scored on
    longest_lead_quantile: float = 0.99  # of the lead times of training; predictions beyond it give a warning


FIT = FitConstants()


class FittedModel(NamedTuple):
    """A trained model, and the scaled series and the function that score it."""

    model: Model
    name: str  # name in the registry
    options: dict[str, Any]
    scaler: Scaler
    scored: SeriesSet  # scaled series that score it
    predict: Predict | None  # replaces the model in scoring; None: the model itself


class TrainValidation(NamedTuple):
    """The training part, and the validation part that selects the best epoch and calibrates the intervals."""

    train: SeriesSet
    validation: SeriesSet


def split_for_validation(series: SeriesSet, seed: int) -> TrainValidation:
    """Divide a table into a training part and a validation part.

    Complete series are held out if there are `FEW_SERIES` or more. With fewer series, about a fifth of each is held
    out: the ends of up to `FitConstants.blocks_per_series` blocks of equal length. If all series are too short for
    that, complete series are held out.

    Args:
        series: the table.
        seed: the seed of the choice of series.

    Raises:
        ValueError: there is only one series, and it is too short to divide.
    """
    held_out = np.maximum(FIT.shortest_block, series.lengths // FIT.held_out_part)
    held_out[(series.lengths < 2 * FIT.shortest_block) | (len(series) >= FEW_SERIES)] = 0
    if held_out.any():
        count = np.clip(held_out // FIT.shortest_block, 1, FIT.blocks_per_series)
        owner = np.repeat(np.arange(len(series)), count)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
        start, end = (series.lengths[owner] * (number + k) // count[owner] for k in (0, 1))
        cut = end - held_out[owner] // count[owner]
        some = cut < end
        return TrainValidation(
            series.excerpts(owner, start, cut - start),
            series.excerpts(owner[some], cut[some], (end - cut)[some]),
        )
    if len(series) < 2:
        raise ValueError(
            f"the table must hold at least two series, or one with {2 * FIT.shortest_block} observations, for "
            f"training and calibration, got one with {len(series.times)}."
        )
    order = generator(seed, "forecaster split").permutation(len(series))
    held = order[: max(1, min(FIT.max_calibration_series, len(series) // FIT.held_out_part))]
    validation = series.take(np.sort(held))
    short = np.minimum(validation.lengths, FIT.longest_segment)
    return TrainValidation(series.take(np.setdiff1d(order, held)), _starts(validation, short))


def draw_training_segments(series: SeriesSet, rng: np.random.Generator) -> SeriesSet:
    """Draw the training segments of an epoch.

    A series of up to `FitConstants.training_segment` time points is one segment. A longer series has a segment at a
    random place. It is drawn more often, in proportion to its length.
    """
    weight = np.maximum(1.0, series.lengths / FIT.training_segment)
    count = int(np.clip(np.ceil(weight.sum()), *FIT.segments_per_epoch))
    place = (np.arange(count) + rng.random()) / count * weight.sum()
    chosen = np.minimum(np.searchsorted(np.cumsum(weight), place, side="right"), len(series) - 1)
    length = np.minimum(series.lengths, FIT.training_segment)[chosen]
    return series.excerpts(chosen, rng.integers(0, series.lengths[chosen] - length + 1), length)


def _starts(series: SeriesSet, length: np.ndarray) -> SeriesSet:
    """Select the first ``length`` time points of each series. Series with length 0 are left out."""
    kept = np.flatnonzero(length)
    return series.excerpts(kept, np.zeros_like(kept), length[kept])


def cut_segments(series: SeriesSet) -> SeriesSet:
    """Cut all series into segments of at most `FitConstants.longest_segment` time points."""
    count = -(-series.lengths // FIT.longest_segment)
    owner = np.repeat(np.arange(len(series)), count)
    start = FIT.longest_segment * (np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count))
    return series.excerpts(owner, start, np.minimum(FIT.longest_segment, series.lengths[owner] - start))


def default_options(model: str, variables: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Add the defaults of a network to the options of the user, which take precedence."""
    return default_network_options(model, variables) | dict(options)


def needs_base(model: str, base: str | None) -> bool:
    """Return whether a model is trained on top of a structural model. Naive models and user models never are."""
    return base is not None and not (is_own(model) or model in (*NAIVE, "corrected") or model.startswith("structural"))


def fit_model(
    series: SeriesSet,
    clock: Clock,
    parts: TrainValidation,
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
) -> FittedModel:
    """Scale a table, and fit a model to it: alone, or on top of a structural model.

    Args:
        series: the table in the user's units.
        clock: the clock of the table. Dates have calendar periods.
        parts: training and validation part from `split_for_validation`, for models that need a validation part.
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
    wide = len(series.names) > FIT.max_network_variables
    above = needs_base(model, base) and not wide
    alone = model == "mlp" and base is not None and wide
    if inputs is not None and not above:
        raise _unusable(inputs, wide=needs_base(model, base))
    if not (above or alone or model.startswith("structural")):
        parts = TrainValidation(*(part.scaled_by(scaler) for part in parts))
        made = learn(parts, model=model, options=options, training=training, seed=seed, callback=callback)
        return FittedModel(made, model, dict(options), scaler, parts.validation, None)
    name = "corrected" if above else "structural" if alone else model
    chosen = structural_options(series, clock if calendar else Clock())
    phases = chosen.pop("calendar")
    segments = cut_segments(series)
    gap = median_gap(series)
    config = StructuralConfig(**chosen)
    scales = choose_log_scales(segments, kinds, config, TYPICAL_GAP / gap, seed)
    scaler = Scaler.fit(series.values, series.mask, log_scale=scales)
    check_plausible(series, scaler)
    if above:
        given = [f"{key}={json.dumps(value)}" for key, value in options.items()]
        chosen |= {"network": model, "network_options": given, "gap": gap, "calendar": phases}
        if inputs is not None:
            chosen |= {"inputs": inputs.size, "later_inputs": inputs.later}
        if not entry(model).model.pointwise:
            scaled = TrainValidation(*(part.scaled_by(scaler) for part in parts))
            made = learn(scaled, model=name, options=chosen, training=training, seed=seed, callback=callback)
            return FittedModel(made, name, chosen, scaler, scaled.validation, None)
    else:
        chosen |= dict(options)
    made = _create(name, segments.scaled_by(scaler), chosen, gap, seed)
    made.prepare(Batches(segments.scaled_by(scaler), FIT.structural_batch, made.dtype, torch.device("cpu")))
    rows = int(np.clip(len(series.times), *FIT.scored_points))
    if not isinstance(made, CorrectedModel):
        scored = draw_segments(segments.scaled_by(scaler), rows, FIT.longest_segment, generator(seed, "judged"))
        return FittedModel(made.eval(), name, chosen, scaler, scored, None)
    folded = with_folds(series.scaled_by(scaler), made.members, seed)
    limits = {"epochs": epochs, "minutes": training.minutes, "patience": training.patience}
    train_corrections(made, folded, seed=seed, callback=callback, **limits)  # type: ignore[arg-type]
    corrected = made

    def predict(batch: Any) -> Prediction:
        return corrected.held_out(batch, batch.extras[FOLD])

    scored = draw_segments(folded, rows, FIT.longest_segment, generator(seed, "judged"))
    return FittedModel(made.eval(), name, chosen, scaler, scored, predict)


def _unusable(inputs: Inputs, *, wide: bool) -> InputError:
    """Make the error for a model that cannot use known and static columns."""
    argument = "known" if inputs.known else "static"
    if wide:
        return InputError(argument, f"be left out of a table with more than {FIT.max_network_variables} variables")
    rule = "be left out, because this model cannot use it"
    return InputError(argument, rule, hint="Use a network with {base='structural'}, as the default model does.")


def _create(name: str, series: SeriesSet, options: Mapping[str, Any], gap: float, seed: int) -> Model:
    spec = spec_of(make_training_task(series, seed), time_scale=TYPICAL_GAP / gap)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return create(name, spec, **options)


def longest_lead(task: SeriesSet) -> float | None:
    """Return nearly the longest of the positive lead times in a training task, or None if there are none."""
    assert task.hidden is not None
    lead = lead_times(task, causal=True)[task.hidden]
    lead = lead[(lead > 0) & np.isfinite(lead)]
    return float(np.quantile(lead, FIT.longest_lead_quantile)) if len(lead) else None


def learn(
    parts: TrainValidation,
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
    segments = cut_segments(parts.validation)
    watched = np.unique(np.linspace(0, len(segments) - 1, FIT.max_validation_series).round().astype(np.int64))
    validation = make_training_task(segments.take(watched), (seed, RandomStream.VALIDATION))
    whole = make_training_task(parts.train, (seed, RandomStream.TRAINING))

    def renew(epoch: int) -> SeriesSet:
        return make_training_task(
            draw_training_segments(parts.train, generator((seed, epoch), "windows")),
            (seed, RandomStream.TRAINING, epoch),
        )

    spec = spec_of(whole, time_scale=TYPICAL_GAP / median_gap(parts.train))
    spec = dataclasses.replace(spec, longest_gap=longest_lead(renew(0)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = create(model, spec, **options)
    engine = Engine()
    made.to(engine.device).prepare(Batches(whole, training.batch_size, made.dtype, engine.device))
    del whole, segments  # free memory before training
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


def fit_forecaster(
    forecaster: "Forecaster", series: SeriesSet, clock: Clock, columns: Columns, declared: Mapping[str, Kind]
) -> None:
    """Fit the model of a forecaster, calibrate and score it, and set the fitted attributes.

    Args:
        forecaster: the forecaster with its parameters.
        series: the training table in the user's units.
        clock: the clock of its times.
        columns: the roles of its columns.
        declared: the kinds that the user declares.

    Raises:
        ValueError: a parameter is wrong, or the table cannot be used.
    """
    params = forecaster._plain_params()
    name, seed = params["model"], params["seed"]
    empty = [name for k, name in enumerate(series.names) if not series.mask[:, k].any()]
    if empty:
        raise InputError(rule="hold at least one observation", hint="Leave it out.", column=empty[0])
    kinds = Kinds.infer(series, declared, columns.categories)
    kinds.check(series, clock)
    if params["base"] not in (None, "structural"):
        raise InputError("base", "be 'structural' or None", f"{params['base']!r}")
    history, inputs = series, None
    if columns.known or columns.static:
        inputs = Inputs.fit(series, columns.known, columns.static, median_gap(series))
        series = inputs.encode(series)
    given = params["options"] or {}
    alone = not needs_base(name, params["base"])
    own = {key: params[key] for key in ("batch_size", "learning_rate", "patience", "minutes")}
    own["epochs"] = FIT.epochs if params["epochs"] is None else params["epochs"]
    training = build(TrainingSettings, own | {"schedule": "cosine", "clip": 1.0, "monitor": "nll"})
    parts = split_for_validation(series, seed)
    with np.errstate(over="ignore", invalid="ignore"):  # `check_plausible` refuses values that overflow
        scaler = Scaler.fit(parts.train.values, parts.train.mask)
    check_plausible(series, scaler)
    give_warnings(find_outliers(series), stacklevel=4)
    with StopOnInterrupt(forecaster._callback()) as callback:
        callback.on_stage("preparation")
        fitted = fit_model(
            series,
            clock,
            parts,
            scaler,
            kinds,
            model=name,
            base=params["base"],
            options=default_options(name, len(series.names), given) if alone else given,
            training=training,
            epochs=params["epochs"],
            seed=seed,
            callback=callback,
            calendar=bool(params["calendar"]),
            inputs=inputs,
        )
        give_warnings([callback.warning] if callback.warning else [], stacklevel=4)
        callback.on_stage("calibration")
        errors = errors_of(fitted.model, fitted.scored, constant(series), seed=seed, predict=fitted.predict)
        forecaster.name_, forecaster.model_, forecaster.scaler_ = fitted.name, fitted.model, fitted.scaler
        forecaster.clock_, forecaster.columns_ = clock, columns
        forecaster.names_, forecaster.options_, forecaster.history_ = series.names, fitted.options, history
        forecaster.inputs_, forecaster.kinds_ = inputs, kinds
        forecaster.gap_ = gap = median_gap(series)
        calibration = fit_calibration(errors, fitted.scaler, kinds).widened(len(series))
        forecaster.calibration_ = fit_mean_weight(calibration, errors, fitted.scaler, series)
        scaled = series.scaled_by(fitted.scaler)
        forecaster.errors_ = fit_errors(fitted.model, fitted.scored, scaled, errors.constant, gap, seed)
        errors = compared_part(errors)
        compared = compare_held_out(
            errors,
            fitted,
            parts,
            plain=scaler,
            calibration=forecaster.calibration_,
            clock=clock,
            gap=gap,
            series=len(series),
            seed=seed,
        )
        forecaster.scores_ = compute_scores(errors, len(series), gap, fitted.scaler, kinds)
        forecaster.scores_ |= {"r2_last_value": compared.r2_last_value} | score_rows(compared.comparison)
        give_warnings(find_better_naive_models(compared.comparison, fitted.name), stacklevel=4)
