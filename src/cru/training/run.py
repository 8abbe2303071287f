"""A whole run in a folder: data, training, scores on the test set, one line in the ledger."""

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch

from cru.data import Batch, SeriesSet, Splits
from cru.errors import RunError
from cru.evaluation import evaluate, ledger
from cru.evaluation.metrics import rubanova_mse
from cru.files import write_atomically
from cru.locks import only_process
from cru.models import Model
from cru.models.loading import load_spec, restore_model
from cru.models.registry import is_own
from cru.schema import check, read_json, shorten
from cru.training.checkpoint import read_checkpoint, under_prefix
from cru.training.engine import Engine
from cru.training.experiment import data_version, load_splits, make_model
from cru.training.listener import Listener, Several
from cru.training.log import Log
from cru.training.loop import Loop
from cru.training.presets import presets, settings_for
from cru.training.schemas import Record, RunHeader
from cru.training.settings import RunSettings, differences

_BEFORE_AN_EPOCH = {"settings.json", "log.jsonl", "output.txt", "tensorboard"}


def run(
    settings: RunSettings,
    out: Path | str,
    *,
    splits: Splits | None = None,
    data_dir: Path | str | None = None,
    resume: bool = False,
    ledger_path: Path | str | None = None,
    listener: Listener | None = None,
    engine: Engine | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Train and score, or go on with what ``out`` holds; returns the entry for the ledger.

    ``splits`` takes the place of the dataset of the settings. ``ledger_path`` is where the entry is added.

    >>> settings = settings_for("pendulum-regression", "gru-dt", changes=["training.epochs=5"])
    >>> run(settings, "runs/try")["scores"]["best"]["test"]["all"]["mse"]  # doctest: +SKIP
    """
    out, engine, own = Path(out), engine or Engine(), splits is not None
    out.mkdir(parents=True, exist_ok=True)
    commit = ledger.commit()  # now: it may be another when the run ends
    with only_process(out / ".lock", f"another process is at work in {out}.") if engine.main else nullcontext():
        checkpoint = check_folder(out, settings, resume=resume)
        result = out / "result.json"
        if result.is_file():
            record = read_record(result)
        else:
            if splits is None:
                with engine.first():
                    splits = load_splits(settings, data_dir=data_dir, progress=progress and engine.main)
            record = _train_and_score(settings, out, splits, checkpoint, engine, listener)
            record |= {"commit": commit} | _against_preset(settings, own_series=own)
            if not own:
                _add_rubanova(record, splits)
            if engine.main:
                write_atomically(result, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
        if engine.main and ledger_path is not None:
            ledger.append(Path(ledger_path), {key: value for key, value in record.items() if key != "features"})
    return record


def check_folder(out: Path, settings: RunSettings, *, resume: bool) -> Path | None:
    """The checkpoint to go on from, None to begin. A folder with another run in it is refused."""
    last, result = out / "last.safetensors", out / "result.json"
    if not (last.exists() or result.exists()):
        other = [path.name for path in out.glob("[!.]*") if path.name not in _BEFORE_AN_EPOCH]
        if other:
            raise ValueError(f"{out} must be a new or empty folder, or hold a run, but has {sorted(other)[0]}.")
        return None
    if not resume:
        raise ValueError(f"{out} already holds a run: `resume` it (--resume) or choose another folder (--out).")
    found = (
        read_record(result)["settings"]
        if result.exists()
        else check(RunHeader, read_checkpoint(last)[1], last).settings
    )
    try:
        changed = differences(settings, RunSettings.from_dict(found))
    except ValueError as error:
        raise ValueError(f"{out} holds a run with settings of another version: {error}") from None
    if found.get("data_version", 1) != data_version(settings):
        raise ValueError(f"{out} holds a run on an earlier version of the data: choose another folder (--out).")
    if changed:
        raise ValueError(f"{out} holds a run with other settings: they differ in {', '.join(changed)}.")
    return last


def read_record(path: Path) -> dict[str, Any]:
    """Read the result.json of a finished run."""
    found = read_json(path)
    check(Record, found, path)
    return found


def load_model(path: Path | str, *, allow_code: bool = False) -> Model:
    """Load the trained model of a run: its folder (the best epoch), or one of the checkpoints in it.

    A model outside this library, "module:Class", is refused unless ``allow_code`` is True: to import it is to run it.

    >>> model = load_model("runs/pendulum-regression/cru-0")  # doctest: +SKIP
    """
    path = Path(path)
    tensors, header = read_checkpoint(path / "best.safetensors" if path.is_dir() else path)
    if "settings" not in header:
        raise ValueError(f"{path} is not a checkpoint of a run.")
    found = check(RunHeader, header, path)
    try:
        settings = RunSettings.from_dict(found.settings)
    except ValueError as error:
        raise ValueError(shorten(f"{path}: {error}")) from None
    return restore_model(
        settings.model.name,
        load_spec(found.spec, path),
        dict(settings.model.options),
        under_prefix("model.", tensors),
        path,
        allow_code=allow_code,
        dtype=getattr(torch, settings.training.dtype),
    )


def _train_and_score(
    settings: RunSettings,
    out: Path,
    splits: Splits,
    checkpoint: Path | None,
    engine: Engine,
    listener: Listener | None,
) -> dict[str, Any]:
    model = make_model(settings, splits.train)
    listeners = (Log(out / "log.jsonl"), *([listener] if listener else [])) if engine.main else ()
    loop = Loop(
        settings, model, splits.train, splits.validation, engine=engine, folder=out, listener=Several(*listeners)
    )
    if checkpoint is not None:
        loop.restore(*read_checkpoint(checkpoint))
    else:
        model.prepare(Batches(splits.train, settings.training.batch_size, model.dtype, engine.device))
        if engine.main:
            write_atomically(out / "settings.json", (json.dumps(settings.as_dict(), indent=1) + "\n").encode())
    if model.num_parameters == 0:
        if engine.main:
            loop.save(loop.best)
    else:
        try:
            loop.run()
        except OSError as error:  # a full disk, say
            raise RunError(f"the run could not go on: {error}.") from error
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
        model.load_state_dict(under_prefix("model.", read_checkpoint(loop.best)[0]))
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
        "versions": ledger.versions(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "settings": settings.as_dict(),
        "features": dict(names=splits.test.names, **features),  # test scores of the best epoch
    }


def _add_rubanova(record: dict[str, Any], splits: Splits) -> None:
    """Add the score by which the paper's quoted numbers were taken, where sets are scaled to [0, 1]."""
    scalers = [part.scaler for part in splits]
    test = record["scores"]["best"]["test"]
    found = record["features"].get(test["scored"], {}).get("mse_of_series")
    if found is None or splits.test.scaler is None or record["settings"]["data"]["task"] == "regression":
        return
    ranges = [(one.shift, np.add(one.shift, one.scale).tolist()) for one in scalers if one is not None]
    test[test["scored"]]["rubanova"] = rubanova_mse(found, splits.test.scaler.scale, ranges)


_SHORTENING = ("training.epochs", "data.train", "data.validation", "data.test")


def changed_from_preset(settings: RunSettings) -> list[str]:
    """The settings that differ from those of the preset; ["preset"] where there is no such preset."""
    if str(settings.preset) not in presets():  # which may come from a file, and must not be read as a path
        return ["preset"]
    try:
        original = settings_for(str(settings.preset), settings.model.name, seed=settings.seed)
    except (ValueError, OSError):
        return ["preset"]
    return differences(settings, original)


def as_of_now(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Entries of a ledger, compared with the presets as they are now, which may have changed since a run.

    ``outdated`` runs had an earlier version of the data.
    """
    found = []
    for entry in entries:
        now: dict[str, Any] = {"changed": ["settings"], "shortened": False, "outdated": False}  # of another version
        with suppress(KeyError, ValueError, TypeError, AttributeError):
            settings = RunSettings.from_dict(entry["settings"])
            if is_own(settings.model.name):  # whose class may not be here
                now |= {name: entry[name] for name in ("changed", "shortened")}
            else:
                now |= _against_preset(settings, own_series="splits" in entry["changed"])
            now["outdated"] = entry.get("data_version", 1) != data_version(settings)
        found.append(dict(entry) | now)
    return found


def _against_preset(settings: RunSettings, *, own_series: bool) -> dict[str, Any]:
    changed = [*changed_from_preset(settings), *(["splits"] if own_series else [])]
    return {"changed": changed, "shortened": any(key in _SHORTENING for key in changed)}


class Batches(Sequence[Batch]):
    """The batches of a set in order, each made when it is asked for."""

    def __init__(self, series: SeriesSet, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.series, self.size, self.dtype, self.device = series, size, dtype, device

    def __len__(self) -> int:
        return -(-len(self.series) // self.size)

    @overload
    def __getitem__(self, index: int) -> Batch: ...
    @overload
    def __getitem__(self, index: slice) -> list[Batch]: ...
    def __getitem__(self, index: int | slice) -> Batch | list[Batch]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        start = range(len(self))[index] * self.size
        chosen = range(start, min(start + self.size, len(self.series)))
        return self.series.batch(chosen, dtype=self.dtype).to(self.device)
