"""Prepared series on disk: plain arrays, written atomically, verified when read, never unpickled."""

import hashlib
import json
import logging
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from cru.data.series import SeriesSet
from cru.files import replacing

_FORMAT = 1
_ROW_ARRAYS = ("times", "values", "mask", "offsets")
_LABELS = ("names", "units", "time_unit", "origin")
_log = logging.getLogger(__name__)


def cache_dir(chosen: Path | str | None = None) -> Path:
    """Where prepared data is kept: ``chosen``, else ``CRU_CACHE_DIR``, else the user's cache folder."""
    return Path(chosen or os.environ.get("CRU_CACHE_DIR") or platformdirs.user_cache_path("cru"))


def prepared(dataset: str) -> list[str]:
    """What is kept of a dataset: "ushcn-folder" is that of a folder of the user's, say."""
    return sorted(path.stem for path in cache_dir().glob(f"{dataset}*.npz"))


def cached(path: Path, key: dict[str, Any], build: Callable[[], tuple[SeriesSet, dict[str, Any]]]) -> SeriesSet:
    """The series kept in ``path`` if they are whole and made for ``key``, else those that ``build`` makes.

    ``build`` also gives the full key of what it made, which may say more than was asked for.
    """
    series = load_series(path, key)
    if series is None:
        series, made_for = build()
        try:
            save_series(path, series, made_for)
        except OSError as error:
            _log.warning("%s is not kept, and is made again when it is needed: %s.", path, error.strerror or error)
    return series


def save_series(path: Path, series: SeriesSet, key: dict[str, Any]) -> None:
    """Write series (before any scaling or task) so that ``path`` is either complete or as it was."""
    arrays = {name: getattr(series, name) for name in _ROW_ARRAYS}
    arrays |= {f"per_time/{name}": a for name, a in series.per_time.items()}
    arrays |= {f"per_series/{name}": a for name, a in series.per_series.items()}
    arrays["ids"] = np.array(series.ids, dtype=np.str_)
    header = {
        "format": _FORMAT,
        "key": key,
        "labels": {name: getattr(series, name) for name in _LABELS},
        "sha256": {name: _digest(a) for name, a in arrays.items()},
    }
    with replacing(path) as file:
        np.savez(file, header=np.array(json.dumps(header)), **arrays)


def load_series(path: Path, key: dict[str, Any]) -> SeriesSet | None:
    """Series from ``path``, or None if there are none, if they were made for another key, or if the file is damaged."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as whole, np.load(whole, allow_pickle=False) as file:
            header = json.loads(str(file["header"]))
            made_for = header["key"]
            if header["format"] != _FORMAT or made_for | json.loads(json.dumps(key)) != made_for:
                return None
            arrays = {name: file[name] for name in header["sha256"]}
        if any(_digest(a) != header["sha256"][name] for name, a in arrays.items()):
            raise ValueError("a checksum differs")
        labels = header["labels"] | {name: tuple(header["labels"][name]) for name in ("names", "units")}
        return SeriesSet(
            **{name: arrays[name] for name in _ROW_ARRAYS},
            **labels,
            ids=tuple(arrays["ids"].tolist()),
            per_time={name.split("/", 1)[1]: a for name, a in arrays.items() if name.startswith("per_time/")},
            per_series={name.split("/", 1)[1]: a for name, a in arrays.items() if name.startswith("per_series/")},
        )
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        _log.warning("%s is damaged (%s) and is made again.", path, error)
        return None


def _digest(array: np.ndarray) -> str:
    """Kind, shape and content of an array in one number."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    return digest.hexdigest()
