"""A complete run in a folder: the data, the training, and the scores on the test set."""

import json
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cru.data import Splits
from cru.data.series import Batches
from cru.errors import InputError, RunError, explained
from cru.evaluation import evaluate
from cru.evaluation.metrics import rubanova_mse
from cru.files import write_atomically
from cru.locks import only_process
from cru.models import Model
from cru.models.loading import check_tensors, load_spec, restore_model
from cru.schema import check, read_json
from cru.training.callbacks import Callback, CallbackList, JsonLog
from cru.training.checkpoint import (
    pack_optimizer,
    read_checkpoint,
    under_prefix,
    unpack_optimizer,
    with_prefix,
    write_checkpoint,
)
from cru.training.experiment import data_version, load_splits, make_model
from cru.training.loop import Checkpointer, Engine, Loop, Progress
from cru.training.presets import compare_with_preset
from cru.training.provenance import find_commit, find_versions
from cru.training.schemas import RecordSchema, RunHeader
from cru.training.settings import RunSettings, differences, named_in

_INITIAL_FILES = {"settings.json", "log.jsonl", "output.txt", "tensorboard"}  # of a run before its first checkpoint


def run(
    settings: RunSettings,
    out: Path | str,
    *,
    splits: Splits | None = None,
    data_dir: Path | str | None = None,
    resume: bool = False,
    callback: Callback | None = None,
    engine: Engine | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Train and score a model in the folder ``out``, or continue its run.

    >>> from cru.training import run
    >>> settings = cru.training.settings_for("pendulum-regression", "gru-dt", changes=["training.epochs=5"])
    >>> run(settings, "runs/try")["scores"]["best"]["test"]["all"]["mse"]  # doctest: +SKIP

    Args:
        settings: settings of the run.
        out: folder of the run.
        splits: series that replace the dataset of the settings.
        data_dir: folder of the raw files.
        resume: whether to continue the run in ``out``.
        callback: the callback of the training.
        engine: the processes that train together.
        progress: whether to show a progress bar while the data are loaded.

    Returns:
        The record of the run, as in result.json and in the ledger.

    Raises:
        ValueError: the settings or the folder are not valid.
        RunError: the training fails.
    """
    out, engine, own = Path(out), engine or Engine(), splits is not None
    out.mkdir(parents=True, exist_ok=True)
    commit = find_commit()  # at the start, because the source can change during the run
    with only_process(out / ".lock", ValueError(f"another process uses {out}.")) if engine.main else nullcontext():
        checkpoint = check_folder(out, settings, resume=resume)
        result = out / "result.json"
        if result.is_file():
            record = read_record(result)
        else:
            if splits is None:
                with engine.first():
                    splits = load_splits(settings, data_dir=data_dir, progress=progress and engine.main)
            record = _train_and_score(settings, out, splits, checkpoint, engine, callback)
            record |= {"commit": commit} | compare_with_preset(settings, own_series=own)
            if not own:
                _add_rubanova(record, splits)
            if engine.main:
                write_atomically(result, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    return record


def check_folder(out: Path, settings: RunSettings, *, resume: bool) -> Path | None:
    """Check the folder of a run.

    Args:
        out: the folder.
        settings: the settings of the run.
        resume: whether to continue a run.

    Returns:
        The checkpoint to continue from. None: a new run.

    Raises:
        ValueError: the folder holds other files or another run.
    """
    last, result = out / "last.safetensors", out / "result.json"
    if not (last.exists() or result.exists()):
        other = [path.name for path in out.glob("[!.]*") if path.name not in _INITIAL_FILES]
        if other:
            raise InputError("out", "be a new or empty folder, or hold a run", f"{out}, which has {sorted(other)[0]}")
        return None
    if not resume:
        hint = "Give {resume=True} to continue the run, or another {out}."
        raise InputError("out", "be a new folder", f"{out}, which already holds a run", hint)
    found = read_record(result) if result.exists() else check(RunHeader, read_checkpoint(last)[1], last).model_dump()
    try:
        changed = differences(settings, RunSettings.from_dict(found["settings"]))
    except ValueError as error:
        raise explained(ValueError(f"{out} holds a run with settings of another version."), error) from None
    if found.get("data_version", 1) != data_version(settings):
        raise InputError("out", "be a new folder", f"{out}, which holds a run on an earlier version of the data")
    if changed:
        difference = f"they differ in {', '.join(changed)}"
        raise InputError("out", "hold a run with the same settings", f"{out}: {difference}")
    return last


def read_record(path: Path) -> dict[str, Any]:
    """Read the result.json of a finished run."""
    found = read_json(path)
    check(RecordSchema, found, path)
    return found


def load_model(path: Path | str, *, allow_code: bool = False) -> Model:
    """Load the trained model of a run.

    >>> model = load_model("runs/pendulum-regression/cru-0")  # doctest: +SKIP

    Args:
        path: folder of the run (the best epoch), or one of its checkpoints.
        allow_code: whether a model outside this library, "module:Class", may be imported. An import runs code.

    Raises:
        ValueError: the checkpoint is damaged, or names a model outside this library.
        FileNotFoundError: there is no checkpoint.
    """
    path = Path(path)
    tensors, header = read_checkpoint(path / "best.safetensors" if path.is_dir() else path)
    if "settings" not in header:
        raise ValueError(f"{path} is not a checkpoint of a run.")
    found = check(RunHeader, header, path)
    try:
        settings = RunSettings.from_dict(found.settings)
    except ValueError as error:
        raise explained(ValueError(f"{path} must hold valid settings of a run."), error) from None
    return restore_model(
        settings.model.name,
        load_spec(found.spec, path),
        dict(settings.model.options),
        under_prefix("model.", tensors),
        path,
        allow_code=allow_code,
        dtype=getattr(torch, settings.training.dtype),
    )


class RunCheckpointer(Checkpointer):
    """A store of the best and the last epoch of a run in its folder. Only one process writes."""

    def __init__(self, folder: Path, settings: RunSettings) -> None:
        self.folder, self.settings = folder, settings
        self.best, self.last = folder / "best.safetensors", folder / "last.safetensors"

    def save(self, loop: Loop, *, better: bool) -> None:
        """Write the weights, and the state for a continuation."""
        if better:
            self.write_best(loop)
        self._write(loop, self.last, with_prefix("optimizer.", pack_optimizer(loop.optimizer)))

    def write_best(self, loop: Loop) -> None:
        """Write the weights of the model as those of the best epoch."""
        self._write(loop, self.best, {})

    def best_weights(self) -> dict[str, Tensor]:
        """Read the weights of the best epoch."""
        return under_prefix("model.", read_checkpoint(self.best)[0])

    def restore(self, loop: Loop) -> None:
        """Restore the state of the last epoch."""
        tensors, header = read_checkpoint(self.last)
        check(RunHeader, header, self.last)
        weights = under_prefix("model.", tensors)
        check_tensors(weights, loop.model.state_dict(), self.last)
        loop.model.load_state_dict(weights)
        unpack_optimizer(loop.optimizer, under_prefix("optimizer.", tensors))
        loop.progress = Progress(**header["progress"])
        epochs = loop.engine.total(torch.tensor([float(loop.progress.epoch)]))
        if float(epochs) != loop.progress.epoch * loop.engine.share[1]:
            raise RunError(f"the processes read different checkpoints: {self.folder} must be on a shared disk.")

    def _write(self, loop: Loop, path: Path, more: dict[str, Tensor]) -> None:
        if not loop.engine.main:
            return
        header = {
            "settings": self.settings.as_dict(),
            "data_version": data_version(self.settings),
            "spec": loop.model.spec.as_dict(),
            "progress": vars(loop.progress),
        }
        write_checkpoint(path, with_prefix("model.", loop.model.state_dict()) | more, header)


def _train_and_score(
    settings: RunSettings,
    out: Path,
    splits: Splits,
    checkpoint: Path | None,
    engine: Engine,
    callback: Callback | None,
) -> dict[str, Any]:
    model = make_model(settings, splits.train)
    callbacks = (JsonLog(out / "log.jsonl"), *([callback] if callback else [])) if engine.main else ()
    checkpointer = RunCheckpointer(out, settings)
    with named_in("training", ("monitor",)):
        loop = Loop(
            settings.training,
            model,
            splits.train,
            splits.validation,
            seed=settings.seed,
            engine=engine,
            checkpointer=checkpointer,
            callback=CallbackList(*callbacks),
        )
    if checkpoint is not None:
        checkpointer.restore(loop)
    else:
        model.prepare(Batches(splits.train, settings.training.batch_size, model.dtype, engine.device))
        if engine.main:
            write_atomically(out / "settings.json", (json.dumps(settings.as_dict(), indent=1) + "\n").encode())
    if model.num_parameters == 0:
        checkpointer.write_best(loop)
    else:
        try:
            loop.run()
        except OSError as error:  # for example a full disk
            raise RunError(f"the run could not continue: {error}.") from error
    return _record(settings, loop, splits)


def _record(settings: RunSettings, loop: Loop, splits: Splits) -> dict[str, Any]:
    progress, engine, model = loop.progress, loop.engine, loop.model

    def scored(epoch: int) -> tuple[dict[str, Any], dict[str, Any]]:
        size, device, share, total = settings.training.batch_size, engine.device, engine.share, engine.total
        validation, test = (
            evaluate(model, part, batch_size=size, device=device, share=share, total=total) for part in splits[1:]
        )
        return {"epoch": epoch, "validation": validation.as_dict(), "test": test.as_dict()}, test.features

    last, features = scored(progress.epoch)
    best = last
    if progress.best_epoch != progress.epoch:
        model.load_state_dict(loop.checkpointer.best_weights())
        best, features = scored(progress.best_epoch)
    seconds = sorted(record["seconds"] for record in progress.history)
    return {
        "run": f"{settings.hash[:16]}-{os.urandom(4).hex()}",
        "preset": settings.preset,
        "model": settings.model.name,
        "seed": settings.seed,
        "hash": settings.hash,
        "data_version": data_version(settings),
        "scores": {"best": best, "last": last},
        "epochs": progress.epoch,
        "skipped_steps": progress.skipped,
        "seconds_per_epoch": seconds[len(seconds) // 2] if seconds else 0.0,
        "parameters": model.num_parameters,
        "series": dict(zip(splits._fields, map(len, splits), strict=True)),
        "processes": engine.share[1],
        "threads": torch.get_num_threads(),
        "device": engine.device.type,
        "versions": find_versions(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "settings": settings.as_dict(),
        "features": dict(names=splits.test.names, **features),  # test scores of the best epoch
    }


def _add_rubanova(record: dict[str, Any], splits: Splits) -> None:
    """Add the score of Rubanova et al., which the paper quotes, for data that are scaled to [0, 1]."""
    scalers = [part.scaler for part in splits]
    test = record["scores"]["best"]["test"]
    found = record["features"].get(test["scored"], {}).get("mse_of_series")
    if found is None or splits.test.scaler is None or record["settings"]["data"]["task"] == "regression":
        return
    ranges = [(one.shift, np.add(one.shift, one.scale).tolist()) for one in scalers if one is not None]
    test[test["scored"]]["rubanova"] = rubanova_mse(found, splits.test.scaler.scale, ranges)
