"""Real files with every field changed, and their checksums made right again."""

import copy
import hashlib
import io
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save

from cru.data.cache import _array_checksum as array_digest
from cru.files import part_name
from cru.forecaster.serialization import _digest as config_digest
from cru.training.checkpoint import pack_checkpoint

EVIL = "evil_module:Model"
PLAIN: list[Any] = [
    None,
    True,
    -1,
    0,
    10**30,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    "",
    "text",
    EVIL,
    "/proc/kmsg",
    "../../config.json",
    "x" * 10_000,
    "\ud800",
    "line\nbreak\u2028",
    [],
    {},
    [[[[[[1]]]]]],
    {"a": {"b": {"c": {}}}},
]


def paths_of(tree: Any, most: int = 3) -> Iterator[tuple[Any, ...]]:
    """Every key of nested tables, and the first entries of each list."""
    entries: list[Any] = list(tree) if isinstance(tree, dict) else list(range(min(most, len(tree))))
    for key in entries:
        yield (key,)
        if isinstance(tree[key], dict | list):
            yield from ((key, *rest) for rest in paths_of(tree[key], 1))


WORDS = ("removed", "negated", "longer", "shorter", "extra", "scaled")


def changes_of(tree: Any) -> Iterator[tuple[str, Any]]:
    """Name and result of each change of one field: removed, negated, of another type, longer, shorter, repeated."""
    for path in paths_of(tree):
        for value in PLAIN:
            yield f"{'.'.join(map(str, path))} {value!r:.20}", with_value(tree, path, value)
        for word in WORDS:
            if (changed := with_change(tree, path, word)) is not None:
                yield f"{'.'.join(map(str, path))} {word}", changed


def with_value(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value in one field."""
    changed, holder = _copied(tree, path)
    holder[path[-1]] = value
    return changed


def with_change(tree: Any, path: tuple[Any, ...], word: str) -> Any:
    """A copy with one field changed in one of the ways of `WORDS`; None where it cannot be."""
    changed, holder = _copied(tree, path)
    key, old = path[-1], holder[path[-1]]
    if word == "removed":
        del holder[key]
    elif word in ("negated", "scaled") and type(old) in (int, float):
        holder[key] = -old if word == "negated" else old * 3
    elif word == "longer" and isinstance(old, list) and old:
        holder[key] = [*old, old[-1]]
    elif word == "shorter" and isinstance(old, list) and old:
        holder[key] = old[:-1]
    elif word == "extra" and isinstance(old, dict):
        holder[key] = old | {"extra": 1}
    else:
        return None
    return changed


def _copied(tree: Any, path: tuple[Any, ...]) -> tuple[Any, Any]:
    """A copy, and in it the table or list that holds the last key of the path."""
    changed = copy.copy(tree)
    holder = changed
    for key in path[:-1]:
        holder[key] = copy.copy(holder[key])
        holder = holder[key]
    return changed, holder


def array_changes(array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """An array with other contents, shapes and types."""
    yield "longer", np.concatenate([array, array[-1:]]) if array.ndim else np.stack([array, array])
    yield "shorter", array[:-1] if array.ndim else array.reshape(1)[:0]
    yield "flat", array.reshape(-1)
    yield "deeper", array[None]
    yield "empty", array.reshape(-1)[:0]
    if array.dtype.kind in "fiu":
        yield "reversed", array[::-1].copy() if array.ndim else -array
        yield "text", array.astype(str)
        yield "big-endian", array.astype(array.dtype.newbyteorder(">"))
        yield "complex", array.astype(complex)
        yield "negated", -array
        for value in (10**6, -1, *((np.nan, np.inf, 1e300, 1e-320) if array.dtype.kind == "f" else ())):
            with np.errstate(over="ignore"):
                changed = array.copy()
                changed.reshape(-1)[: max(1, array.size // 2)] = np.array(value).astype(array.dtype)
            yield str(value), changed
    if array.dtype.kind == "U":
        yield "repeated", np.full_like(array, array.reshape(-1)[0])
        yield "numbers", np.arange(array.size)
        yield "objects", array.astype(object)
    if array.dtype.kind == "b":
        yield "inverted", ~array


def tensor_changes(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Tensors of a checkpoint with one of them changed, removed or added."""
    yield "extra", tensors | {"extra": torch.zeros(1)}
    for name, tensor in tensors.items():
        yield f"{name} removed", {key: value for key, value in tensors.items() if key != name}
        yield f"{name} int8", tensors | {name: tensor.to(torch.int8)}
        yield f"{name} double", tensors | {name: tensor.to(torch.complex64)}
        for what, array in array_changes(tensor.numpy()):
            if array.dtype.kind in "fiub" and array.dtype.isnative:
                yield f"{name} {what}", tensors | {name: torch.from_numpy(np.ascontiguousarray(array))}


def write_config(folder: Path, config: Any) -> None:
    """A configuration with a checksum that is right, as far as one can be made."""
    if isinstance(config, dict) and isinstance(config.get("digest"), str):
        kept = {key: value for key, value in config.items() if key != "digest"}
        try:
            config = kept | {"digest": config_digest(kept)}
        except ValueError:
            config = kept | {"digest": "0" * 64}
    (folder / "config.json").write_text(json.dumps(config))


def replace_part(folder: Path, name: str, content: bytes) -> None:
    """Other content for a part, named by the configuration with its new checksum."""
    config = json.loads((folder / "config.json").read_text())
    (folder / part_name(name, config["files"][name])).unlink()
    config["files"][name] = hashlib.sha256(content).hexdigest()
    (folder / part_name(name, config["files"][name])).write_bytes(content)
    write_config(folder, config)


def series_bytes(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> bytes:
    """A file of series with its inner checksums made right."""
    sums = {name: array_digest(a) if a.dtype != object else "0" * 64 for name, a in arrays.items()}
    header = header | ({"sha256": sums} if isinstance(header.get("sha256"), dict) else {})
    buffer = io.BytesIO()
    np.savez(buffer, header=np.array(json.dumps(header)), **arrays)
    return buffer.getvalue()


def checkpoint_bytes(tensors: dict[str, torch.Tensor], header: Any) -> bytes:
    """A checkpoint with any header, and its checksum right."""
    return pack_checkpoint(tensors, header)


def unpacked(content: bytes) -> tuple[dict[str, torch.Tensor], Any]:
    """Tensors and header of a checkpoint."""
    size = int.from_bytes(content[:8], "little")
    return load(content), json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["header"])


def raw_bytes(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> bytes:
    """A safetensors file with any metadata."""
    return save(tensors, metadata)


@contextmanager
def in_time(seconds: int = 60) -> Iterator[None]:
    """A hang is a failure."""

    def late(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def one_sentence(error: BaseException) -> bool:
    """Whether an error is one that a user is told, in one line."""
    return isinstance(error, ValueError | OSError) and "\n" not in str(error) and len(str(error)) < 1000
