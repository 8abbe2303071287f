"""The folder of a saved forecaster, without pickle: weights, configuration, observations and a model card."""

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

import cru
from cru.data import Scaler, SeriesSet
from cru.data.cache import read_series, write_series
from cru.files import is_part, is_temporary, open_part, part_name, write_atomically, write_folder
from cru.forecaster.calibration import UNMEASURED, Calibration, guarantee
from cru.forecaster.clock import Clock
from cru.forecaster.inputs import KNOWN, STATIC
from cru.forecaster.kinds import Kinds
from cru.forecaster.one_step_errors import OneStepErrorDistribution
from cru.forecaster.saved_config import CARD, CONFIG, FORMAT, HISTORY, PARTS, ROW_SCORES, WEIGHTS, Config, as_tuples
from cru.forecaster.table_io import Columns, check_plausible
from cru.models.loading import load_spec, restore_model
from cru.models.registry import check_loadable
from cru.schema import check, read_json
from cru.training.checkpoint import check_writable, pack_checkpoint, parse_checkpoint

if TYPE_CHECKING:
    from cru.forecaster.estimator import Forecaster, Loaded


_TRIES = 3  # attempts to load while another process saves


def save(forecaster: "Forecaster", folder: Path, *, history: bool) -> None:
    """Write a fitted forecaster to a folder.

    The configuration is written after the files that it names. So a reader finds either the old or the new model.

    Args:
        forecaster: a fitted forecaster.
        folder: a new or empty folder, or one with an older model.
        history: whether to save the observations of the training table.

    Raises:
        ValueError: the folder holds other files, or JSON cannot represent a parameter.
    """
    check_free(folder)
    model = forecaster.model_
    config: dict[str, Any] = {
        "format": FORMAT,
        "version": cru.__version__,
        "params": forecaster._plain_params(),
        "model": forecaster.name_,
        "options": forecaster.options_,
        "spec": {key: list(v) if isinstance(v, tuple) else v for key, v in model.spec.as_dict().items()},
        "names": list(forecaster.names_),
        "kinds": forecaster.kinds_.to_dict(),
        "gap": forecaster.gap_,
        "clock": forecaster.clock_.to_dict(),
        "columns": {key: list(v) if isinstance(v, tuple) else v for key, v in _columns(forecaster).items()},
        "inputs": None if forecaster.inputs_ is None else forecaster.inputs_.to_dict(),
        "scaler": forecaster.scaler_.to_dict(),
        "calibration": forecaster.calibration_.to_dict(),
        "errors": None if forecaster.errors_ is None else forecaster.errors_.to_dict(),
        "scores": {name: value for name, value in forecaster.scores_.items() if name not in (*ROW_SCORES, "coverage")},
        **{f"score_{name}": forecaster.scores_[name] for name in ROW_SCORES},
        "coverage": forecaster.scores_["coverage"],
    }
    try:
        _digest(config)
    except (TypeError, ValueError) as error:  # before anything is written
        raise ValueError(f"the parameters must be values that JSON can represent: {error}.") from None
    kept = forecaster.history_ if history else None
    check(Config, config | {"files": {WEIGHTS: "0" * 64}, "digest": "0" * 64}, "the model")

    def write_weights(file: BinaryIO) -> None:
        file.write(pack_checkpoint(model.state_dict(), {}))

    def write_history(file: BinaryIO) -> None:
        if kept is not None:
            write_series(file, kept, {})

    def whole(files: dict[str, str]) -> bytes:
        named = config | {"files": files}
        return (json.dumps(named | {"digest": _digest(named)}, ensure_ascii=False) + "\n").encode()

    parts = {WEIGHTS: write_weights, HISTORY: None if kept is None else write_history}
    write_folder(folder, CONFIG, parts, whole)
    write_atomically(folder / CARD, model_card(forecaster, history=kept is not None).encode())


def load(folder: Path, kind: "type[Loaded]", *, allow_code: bool = False) -> "Loaded":
    """Load a forecaster from a folder of `save`.

    Args:
        folder: the folder.
        kind: `Forecaster` or a subclass.
        allow_code: whether to allow a model outside this library, whose import runs code.

    Raises:
        FileNotFoundError: the folder or one of its files is missing.
        ValueError: a file is damaged or altered, another version wrote it, or the model needs ``allow_code``.
    """
    for attempt in range(_TRIES):
        config = read_config(folder)
        try:
            return _load(folder, config, kind, allow_code=allow_code)
        except FileNotFoundError:
            if attempt == _TRIES - 1 or read_config(folder) == config:  # otherwise another process saved: try again
                raise
    raise AssertionError


def _load(folder: Path, config: Config, kind: "type[Loaded]", *, allow_code: bool) -> "Loaded":
    path = folder / CONFIG
    check_loadable(config.model, path, allow_code=allow_code)
    params = config.params.model_dump()
    strange = params.keys() ^ kind._parameters().keys()
    if strange:
        raise ValueError(f"`params` in {path} must be those of {kind.__name__}: {sorted(strange)[0]!r:.60} differs.")
    check_loadable(config.params.model, path, allow_code=allow_code)  # a later `fit` would import it
    spec = load_spec(config.spec, path)
    if (spec.input_shape, spec.target_shape, spec.likelihood) != (2 * ((len(config.names),),) + ("gaussian",)):
        raise ValueError(f"`spec` in {path} must be that of {len(config.names)} variables.")
    weights = folder / part_name(WEIGHTS, config.files[WEIGHTS])
    with open_part(folder, WEIGHTS, config.files[WEIGHTS]) as file:
        tensors, _ = parse_checkpoint(file.read(), weights)
    forecaster = kind(**params)
    forecaster.name_, forecaster.options_ = config.model, dict(config.options)
    forecaster.model_ = restore_model(config.model, spec, config.options, tensors, folder, allow_code=allow_code)
    forecaster.scaler_ = Scaler.from_dict(config.scaler.model_dump())
    forecaster.kinds_ = Kinds.from_dict(config.kinds.model_dump())
    forecaster.calibration_ = Calibration.from_dict(config.calibration.model_dump(), forecaster.kinds_)
    errors = config.errors
    forecaster.errors_ = None if errors is None else OneStepErrorDistribution.from_dict(errors.model_dump())
    forecaster.clock_ = Clock(**config.clock.model_dump())
    columns = config.columns.model_dump()
    values = None if columns["values"] is None else tuple(columns["values"])
    columns |= {"values": values, "categories": forecaster.kinds_.categories, "static": as_tuples(columns["static"])}
    forecaster.columns_ = Columns(**columns)
    forecaster.inputs_ = config.encoder
    forecaster.names_, forecaster.gap_ = tuple(config.names), config.gap
    rows = {name: getattr(config, f"score_{name}") for name in ROW_SCORES}
    forecaster.scores_ = {**config.scores, **rows, "coverage": [row.model_dump() for row in config.coverage]}
    forecaster.history_ = _load_history(folder, config, forecaster) if HISTORY in config.files else None
    return forecaster


def _load_history(folder: Path, config: Config, forecaster: "Forecaster") -> SeriesSet:
    path = folder / part_name(HISTORY, config.files[HISTORY])
    with open_part(folder, HISTORY, config.files[HISTORY]) as file:
        try:
            series, _ = read_series(file)
            check_history(series, forecaster)
        except ValueError as error:
            raise ValueError(f"{path} was altered or damaged: {str(error).rstrip('.')}.") from None
    return series


def check_history(series: SeriesSet, forecaster: "Forecaster") -> None:
    """Check that the variables, ids, times and sizes of saved observations match the model.

    Raises:
        ValueError: they do not match.
    """
    clock, single = forecaster.clock_, forecaster.columns_.id is None
    if series.names != forecaster.names_ or series.is_image:
        raise ValueError("its variables are not those of the model")
    if (series.time_unit, series.origin) != (clock.unit, clock.origin):
        raise ValueError("its times have another unit or origin than those of the model")
    if (single and series.ids != ("0",)) or not len(series) or not (series.lengths > 0).all():
        raise ValueError("it must hold at least one observation of each series, and one series if there are no ids")
    if forecaster.columns_.whole_ids and not all(re.fullmatch(r"-?[0-9]{1,18}", name) for name in series.ids):
        raise ValueError("its ids must be integers")
    _check_known(series, forecaster.columns_)
    check_plausible(series, forecaster.scaler_)
    clock.check_range(series.times)


def _check_known(series: SeriesSet, columns: Columns) -> None:
    """Raise ValueError if the known and static values of saved observations do not match the columns."""
    if not (columns.known or columns.static):
        return
    known, static = series.per_time.get(KNOWN, np.empty(0)), series.per_series.get(STATIC, np.empty(0))
    shapes = (len(series.times), len(columns.known)), (len(series), len(columns.static))
    if (known.shape, static.shape) != shapes or {known.dtype, static.dtype} != {np.dtype(np.float64)}:
        raise ValueError("its known and static values must be those of the columns")
    if np.isinf(known).any() or np.isinf(static).any():
        raise ValueError("its known and static values must be finite")
    for column, fill in zip(known.T, columns.known.values(), strict=True):
        if fill is None and np.isnan(column).any():
            raise ValueError("its known values must not be missing")
    for column, found in zip(static.T, columns.static.values(), strict=True):
        if found is not None and not np.isin(column[~np.isnan(column)], np.arange(len(found))).all():
            raise ValueError("its static values must be categories of the columns")


def read_config(folder: Path) -> Config:
    """Read and check the configuration of a model folder.

    Raises:
        FileNotFoundError: the folder or its configuration is missing.
        ValueError: the configuration is damaged or altered, or another version wrote it.
    """
    path = folder / CONFIG
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no model folder {folder}.")
    try:
        found = read_json(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} is not the complete folder of a model: there is no {CONFIG}.") from None
    form, version = found.get("format"), found.get("version")
    if type(form) is not int or not isinstance(version, str):
        raise ValueError(f"{path} is damaged or not the configuration of a model of this library.")
    if form > FORMAT:
        raise ValueError(
            f"{folder} was saved by cru {version!s:.20}, which is newer than this one, {cru.__version__}: "
            "install that version or a later one."
        )
    if form < FORMAT:
        raise ValueError(
            f"{folder} must have the format {FORMAT}, got {form} of cru {version!s:.20}. Fit the model again."
        )
    config = check(Config, found, path)
    found.pop("digest")
    try:
        same = config.digest == _digest(found)
    except (TypeError, ValueError):  # text that JSON or UTF-8 cannot represent
        same = False
    if not same:
        raise ValueError(f"{path} was altered or damaged after it was saved: its checksum differs.")
    return config


def fingerprint(forecaster: "Forecaster") -> str:
    """Return a checksum of a fitted model: variables, scaler, clock, options and weights."""
    parts = [forecaster.names_, forecaster.scaler_.to_dict(), forecaster.clock_.to_dict(), forecaster.options_]
    if forecaster.inputs_ is not None:
        parts += [_columns(forecaster), forecaster.inputs_.to_dict()]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    for name, tensor in sorted(forecaster.model_.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def check_free(folder: Path) -> None:
    """Raise an error unless a folder is writable, and is new, empty or holds a model of this library."""
    ours = folder.is_dir() and _is_ours(folder / CONFIG)
    other = folder.is_dir() and not ours and not all(_is_leftover(path.name) for path in folder.iterdir())
    if other or (folder.exists() and not folder.is_dir()):
        raise ValueError(f"{folder} must be a new or empty folder, or one with a model of this library.")
    check_writable(folder)


def _is_ours(path: Path) -> bool:
    """Check whether `save` of any version wrote a configuration."""
    try:
        return {"format", "version", "params", "scaler"} <= read_json(path).keys()
    except (OSError, ValueError):
        return False


def _is_leftover(name: str) -> bool:
    """Check whether a file comes from a save that stopped before it wrote the configuration."""
    return is_temporary(name) or is_part(name, PARTS)


def _columns(forecaster: "Forecaster") -> dict[str, Any]:
    """Return the fields of `Columns`. `Kinds` has the categories."""
    fields = {name: value for name, value in vars(forecaster.columns_).items() if name != "categories"}
    static = {name: None if found is None else list(found) for name, found in fields["static"].items()}
    return fields | {"known": dict(fields["known"]), "static": static}


def _digest(config: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _describe_roles(columns: Columns) -> str:
    """Return the sentences of the card about known and static columns."""
    sentences = [
        f"{title}: {', '.join(f'`{name}`' for name in names)}.\n"
        for title, names in (("Known at every time", columns.known), ("Static", columns.static))
        if names
    ]
    return "".join(sentences)


def model_card(forecaster: "Forecaster", *, history: bool) -> str:
    """Write the card in Markdown: scores, variables, and how to load the folder.

    Args:
        forecaster: a fitted forecaster.
        history: whether the folder holds the observations of the training table.
    """
    scores, columns = forecaster.scores_, forecaster.columns_
    series = forecaster.history_
    rows = [
        ("R²", f"{scores['r2']:.3f}"),
        ("R² of the last value, for comparison", f"{scores['r2_last_value']:.3f}"),
        ("mean absolute error, in standard deviations", f"{scores['mae']:.3f}"),
        *(
            (f"inside the {n} % interval", f"{scores[f'coverage{n}']:.1%}")
            for n in (50, 90)
            if f"coverage{n}" in scores
        ),
    ]
    measured = forecaster.calibration_.measured
    doubt = f"\n{guarantee(int(scores['series'])) if measured else UNMEASURED}\n"
    table = "\n".join(f"| {name} | {figure} |" for name, figure in rows)
    size = f"{len(series):,} series, {len(series.times):,} time points" if series is not None else "a table"
    observations = (
        "`history-….npz` holds the observations of the training table, and `forecast` starts at its end. They may be "
        "confidential: `save(folder, history=False)` leaves them out."
        if history
        else "The folder holds no observations: pass a table to `forecast`."
    )
    known = list(forecaster.kinds_)
    names = ", ".join(f"`{name}`" for name in known[:20]) + (" ..." if len(known) > 20 else "")
    return f"""# A forecaster for irregular series

`{forecaster.name_}` with {forecaster.model_.num_parameters:,} parameters, fitted by cru {cru.__version__} to {size}:
{names}, with times in `{columns.time}`{f" and series named by `{columns.id}`" if columns.id else ""}.

| on {scores["count"]:,} withheld values of {scores["series"]:,} validation series | |
|---|---|
{table}
{doubt}
Kinds of values: {forecaster.kinds_.describe()}.
{_describe_roles(columns)}
```python
from cru import Forecaster

model = Forecaster.load(".")
```

{observations}
"""
