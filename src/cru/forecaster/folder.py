"""The folder of a fitted forecaster: weights, configuration, readings and a card. Nothing in it is ever unpickled."""

import hashlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import cru
from cru.data import Scaler
from cru.data.cache import load_series, save_series
from cru.files import write_atomically
from cru.forecaster.calibration import UNMEASURED, Calibration
from cru.forecaster.clock import Clock
from cru.forecaster.frames import Columns
from cru.models import Spec, create
from cru.training.checkpoint import check_writable, read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from cru.forecaster.estimator import Fitted, Forecaster

FORMAT = 2  # rises when one version cannot read the folders of the other
_WEIGHTS, _CONFIG, _HISTORY, _CARD = "model.safetensors", "config.json", "history.npz", "README.md"


def save(forecaster: "Forecaster", folder: Path, *, history: bool) -> None:
    """Write everything; the configuration goes to its place last, because it holds the checksums of the others."""
    check_free(folder)
    model = forecaster.model_
    config: dict[str, Any] = {
        "format": FORMAT,
        "version": cru.__version__,
        "params": forecaster._plain_params(),
        "model": forecaster.name_,
        "options": forecaster.options_,
        "spec": model.spec.as_dict(),
        "names": forecaster.names_,
        "gap": forecaster.gap_,
        "clock": forecaster.clock_.to_dict(),
        "columns": vars(forecaster.columns_),
        "scaler": forecaster.scaler_.to_dict(),
        "calibration": forecaster.calibration_.to_dict(),
        "scores": forecaster.scores_,
    }
    try:
        _digest(config)
    except (TypeError, ValueError) as error:  # before anything is written
        raise ValueError(f"the parameters must be such that JSON can hold them, to be saved: {error}.") from None
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".new-", dir=folder) as made:  # whole, before anything of an older one is replaced
        new = Path(made)
        write_checkpoint(new / _WEIGHTS, model.state_dict(), {})
        if history and forecaster.history_ is not None:
            save_series(new / _HISTORY, forecaster.history_, {})
        config["sha256"] = {path.name: _file_digest(path) for path in sorted(new.iterdir())}
        write_atomically(new / _CARD, _card(forecaster, config).encode())
        whole = config | {"digest": _digest(config)}
        write_atomically(new / _CONFIG, (json.dumps(whole, ensure_ascii=False) + "\n").encode())
        if _HISTORY not in config["sha256"]:
            (folder / _HISTORY).unlink(missing_ok=True)
        for name in (*config["sha256"], _CARD, _CONFIG):
            (new / name).replace(folder / name)


def load(folder: Path, kind: "type[Fitted]") -> "Fitted":
    """Read it; one sentence if a file is missing or altered, or if another version wrote it."""
    config = read_config(folder)
    for name, digest in config["sha256"].items():
        if not (folder / name).is_file():
            raise FileNotFoundError(f"the model folder {folder} is not whole: there is no {name}.")
        if _file_digest(folder / name) != digest:
            raise ValueError(f"{folder / name} was altered or damaged after it was saved: its checksum differs.")
    forecaster = kind(**config["params"])
    forecaster.name_ = config["model"]
    model = create(forecaster.name_, Spec.from_dict(config["spec"]), **config["options"])
    model.load_state_dict(read_checkpoint(folder / _WEIGHTS)[0])
    columns = config["columns"]
    values = None if columns["values"] is None else tuple(columns["values"])
    forecaster.model_, forecaster.options_ = model.eval(), config["options"]
    forecaster.scaler_ = Scaler.from_dict(config["scaler"])
    forecaster.calibration_ = Calibration.from_dict(config["calibration"])
    forecaster.clock_ = Clock(**config["clock"])
    forecaster.columns_ = Columns(**columns | {"values": values})
    forecaster.names_, forecaster.gap_ = tuple(config["names"]), config["gap"]
    forecaster.scores_ = config["scores"]
    forecaster.history_ = load_series(folder / _HISTORY, {}) if _HISTORY in config["sha256"] else None
    return forecaster


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration, if it is whole and this version can read it."""
    path = folder / _CONFIG
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no model folder {folder}.")
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not the folder of a model, or not whole: there is no {_CONFIG}.")
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found, version = int(config["format"]), str(config["version"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is damaged or not the configuration of a model of this library.") from None
    if found > FORMAT:
        raise ValueError(
            f"{folder} was saved by cru {version}, which is newer than this one, {cru.__version__}: "
            "install that version or a later one."
        )
    if found < FORMAT:
        raise ValueError(f"{folder} was saved by an older cru, {version}, which kept less of a model: fit it again.")
    digest = config.pop("digest", None)
    if digest != _digest(config):
        raise ValueError(f"{path} was altered or damaged after it was saved: its checksum differs.")
    return config


def fingerprint(forecaster: "Forecaster") -> str:
    """What tells one fitted model from another."""
    parts = [forecaster.names_, forecaster.scaler_.to_dict(), forecaster.clock_.to_dict(), forecaster.options_]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    for name, tensor in sorted(forecaster.model_.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def check_free(folder: Path) -> None:
    """Whether a model can be kept there, without a loss of anything else."""
    other = folder.is_dir() and any(folder.iterdir()) and not _is_ours(folder / _CONFIG)
    if other or (folder.exists() and not folder.is_dir()):
        raise ValueError(f"{folder} must be a new or empty folder, or one with a model of this library.")
    check_writable(folder)


def _is_ours(path: Path) -> bool:
    """Whether a configuration is one that `save` wrote, of whatever version."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and {"format", "version", "sha256"} <= config.keys()


def _digest(config: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _card(forecaster: "Forecaster", config: dict[str, Any]) -> str:
    scores, columns = forecaster.scores_, forecaster.columns_
    series = forecaster.history_
    rows = [
        ("R²", f"{scores['r2']:.3f}"),
        ("R² of the last value seen, to compare", f"{scores['r2_last_value']:.3f}"),
        ("mean absolute error, in standard deviations", f"{scores['mae']:.3f}"),
        *(
            (f"inside the {n} % interval", f"{scores[f'coverage{n}']:.1%}")
            for n in (50, 90)
            if f"coverage{n}" in scores
        ),
    ]
    doubt = "" if forecaster.calibration_.measured else f"\n{UNMEASURED}\n"
    table = "\n".join(f"| {name} | {figure} |" for name, figure in rows)
    size = f"{len(series):,} series, {len(series.times):,} time points" if series is not None else "a table"
    readings = (
        f"`{_HISTORY}` holds the readings of the training table, from whose end `forecast` starts. Think of that "
        "before you pass the folder on; `save(folder, history=False)` leaves them out."
        if _HISTORY in config["sha256"]
        else "The folder holds no readings: give `forecast` a table."
    )
    names = ", ".join(f"`{name}`" for name in forecaster.names_[:20]) + (" ..." if len(forecaster.names_) > 20 else "")
    return f"""# A forecaster for irregular series

`{forecaster.name_}` with {forecaster.model_.num_parameters:,} parameters, fitted by cru {config["version"]} to {size}:
{names}, with times in `{columns.time}`{f" and series named by `{columns.id}`" if columns.id else ""}.

| on {scores["count"]:,} withheld values of {scores["series"]:,} validation series | |
|---|---|
{table}
{doubt}
```python
from cru import Forecaster

model = Forecaster.load(".")
```

{readings}
"""
