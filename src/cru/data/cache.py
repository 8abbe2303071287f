"""A cache of prepared series on disk: plain arrays, written atomically, verified when read, never unpickled."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import platformdirs

from cru.arrays import read_arrays
from cru.data.series import SeriesSet, make_series
from cru.files import open_regular, replacing, sha256
from cru.logs import make_logger

_FORMAT = 1
_ROW_ARRAYS = ("times", "values", "mask", "offsets")
_LABELS = ("names", "units", "time_unit", "origin")
_log = make_logger(__name__)


def cache_dir(chosen: Path | str | None = None) -> Path:
    """Return the folder of prepared data: ``chosen``, else ``CRU_CACHE_DIR``, else the user's cache folder."""
    return Path(chosen or os.environ.get("CRU_CACHE_DIR") or platformdirs.user_cache_path("cru"))


def prepared(dataset: str) -> list[str]:
    """List the cached files of a dataset, without suffix. "ushcn-folder" comes from a folder of the user."""
    return sorted(path.stem for path in cache_dir().glob(f"{dataset}*.npz"))


def cached(path: Path, key: dict[str, Any], build: Callable[[], tuple[SeriesSet, dict[str, Any]]]) -> SeriesSet:
    """Load series from ``path``, or build and save them if the file is missing, damaged, or made for another key.

    Args:
        path: the file.
        key: the properties that the series must have.
        build: the function that makes the series and their full key, which can have more entries than ``key``.
    """
    series = load_series(path, key)
    if series is None:
        series, made_for = build()
        try:
            save_series(path, series, made_for)
        except OSError as error:
            _log.warning("%s cannot be saved, so it is made again next time: %s.", path, error.strerror or error)
    return series


def save_series(path: Path, series: SeriesSet, key: dict[str, Any]) -> None:
    """Write series without their scaling and task. The write is atomic: ``path`` is either complete or unchanged."""
    with replacing(path) as file:
        write_series(file, series, key)


def write_series(file: BinaryIO, series: SeriesSet, key: dict[str, Any]) -> None:
    """Write series and their key into an open file."""
    arrays = {name: getattr(series, name) for name in _ROW_ARRAYS}
    arrays |= {f"per_time/{name}": a for name, a in series.per_time.items()}
    arrays |= {f"per_series/{name}": a for name, a in series.per_series.items()}
    arrays["ids"] = np.array(series.ids, dtype=np.str_)
    header = {
        "format": _FORMAT,
        "key": key,
        "labels": {name: getattr(series, name) for name in _LABELS},
        "sha256": {name: _array_checksum(a) for name, a in arrays.items()},
    }
    np.savez(file, header=np.array(json.dumps(header)), **arrays)


def load_series(path: Path, key: dict[str, Any]) -> SeriesSet | None:
    """Load series from ``path``, or return None if the file is missing, damaged, or made for another key."""
    if not path.is_file():
        return None
    try:
        with open_regular(path) as file:
            series, made_for = read_series(file)
    except (ValueError, OSError) as error:
        _log.warning("%s is damaged (%s) and is made again.", path, error)
        return None
    return series if made_for | json.loads(json.dumps(key)) == made_for else None


def read_series(file: BinaryIO) -> tuple[SeriesSet, dict[str, Any]]:
    """Read series and their key, as `write_series` writes them. Every field is checked.

    Raises:
        ValueError: the file is damaged.
    """
    from cru.data.cache_schema import Header
    from cru.schema import check, parse_json

    arrays = read_arrays(file)
    text = arrays.pop("header", np.array(0))
    if text.dtype.kind != "U" or text.ndim:
        raise ValueError("the file is damaged: it has no header")
    header = check(Header, parse_json(str(text), "the header"), "the header")
    if header.format != _FORMAT:
        raise ValueError(f"its format is {header.format}, not {_FORMAT}")
    if {name: _array_checksum(array) for name, array in arrays.items()} != header.sha256:
        raise ValueError("a checksum differs")
    missing = [name for name in (*_ROW_ARRAYS, "ids") if name not in arrays]
    if missing:
        raise ValueError(f"there is no array {missing[0]!r}")
    found: dict[str, Any] = {name: arrays.pop(name) for name in (*_ROW_ARRAYS, "ids")}
    extras: dict[str, Any] = {"per_time": {}, "per_series": {}}
    for name, array in arrays.items():
        kind, slash, inner = name.partition("/")
        if kind not in extras or not slash:
            raise ValueError(f"it has an unknown array {name!r:.50}")
        extras[kind][inner] = array
    labels = header.labels
    if found["ids"].dtype.kind != "U" or found["ids"].ndim != 1:
        raise ValueError("`ids` must be text")
    ids = tuple(found.pop("ids").tolist())
    _check_rows(found, ids, labels.names, labels.units, extras)
    series = SeriesSet(
        **found,
        ids=ids,
        names=tuple(labels.names),
        units=tuple(labels.units),
        time_unit=labels.time_unit,
        origin=labels.origin,
        **extras,
    )
    return series, header.key


def _check_rows(
    rows: Mapping[str, np.ndarray],
    ids: Sequence[str],
    names: Sequence[str],
    units: Sequence[str],
    extras: Mapping[str, Any],
) -> None:
    """Check types, shapes, order of times, and that each series has one id."""
    times, values, mask, offsets = (rows[name] for name in _ROW_ARRAYS)
    picture = values.ndim == 4 and values.dtype == np.uint8
    if times.dtype != np.float64 or offsets.dtype != np.int64 or mask.dtype != np.bool_:
        raise ValueError("`times`, `offsets` and `mask` must be float64, int64 and bool")
    if not picture and (values.ndim != 2 or values.dtype not in (np.float32, np.float64)):
        raise ValueError(f"`values` must be numbers for each row and feature, got {values.dtype} {values.shape}")
    if mask.shape != ((len(values), 1, 1, 1) if picture else values.shape):
        raise ValueError(f"`mask` must have the shape of `values`, got {mask.shape}")
    if len(set(ids)) != len(ids):
        raise ValueError("`ids` must differ from each other")
    plain = np.zeros((len(values), len(names))) if picture else np.where(mask, values, np.nan)
    make_series(times, plain, offsets, ids=ids, names=names, units=units, **extras)
    if not picture and (np.isnan(values).any() or (values[~mask] != 0).any()):
        raise ValueError("`values` must be 0 where nothing is observed")


def _array_checksum(array: np.ndarray) -> str:
    """Compute the checksum of type, shape and content of an array."""
    content = np.ascontiguousarray(array).view(np.uint8).data if array.size else b""
    return sha256([f"{array.dtype.str} {array.shape}".encode(), content])
