"""Checkpoints: one safetensors file with tensors and a JSON header, written atomically. Nothing is unpickled."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from cru.files import read_bounded, sha256, write_atomically

_FORMAT = "cru checkpoint 2"


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a JSON header atomically: ``path`` is either complete or unchanged."""
    write_atomically(path, pack_checkpoint(tensors, header))


def pack_checkpoint(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> bytes:
    """Serialize a checkpoint."""
    kept = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(header)
    metadata = {"format": _FORMAT, "sha256": _tensor_checksum(kept, text), "header": text}
    return save(kept, metadata)


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and header.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is truncated, damaged or not a checkpoint.
    """
    try:
        return parse_checkpoint(read_bounded(path), path)
    except (FileNotFoundError, IsADirectoryError):
        raise FileNotFoundError(f"there is no checkpoint {path}.") from None


def parse_checkpoint(content: bytes, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and header from the content of a checkpoint. ``path`` is for error messages."""
    try:
        size = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + size]).get("__metadata__") or {}
        known = metadata.get("format") == _FORMAT
        tensors = load(content) if known else {}
        text = metadata["header"] if known else "{}"
        header = json.loads(text)
    except Exception:  # JSON and safetensors raise many types of errors for manipulated bytes
        raise ValueError(f"{path} is truncated or not a checkpoint of this library; it was not read.") from None
    if not known:
        raise ValueError(f"{path} is not a checkpoint of this library: its format is not {_FORMAT!r}.")
    if not isinstance(header, dict) or _tensor_checksum(tensors, text) != metadata.get("sha256"):
        raise ValueError(f"{path} is damaged: its checksum differs; it was not used.")
    return tensors, header


def check_writable(path: Path) -> None:
    """Raise ValueError if ``path`` cannot be written. Call this function before a long computation.

    The check writes a temporary file to the nearest folder that exists.
    """
    whole = path.absolute()
    folder = whole if whole.is_dir() else next(parent for parent in whole.parents if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}, {folder}.") from None


def pack_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return moments and step counts, named by parameter number and kind."""
    state = optimizer.state_dict()["state"]
    return {f"{number}.{name}": torch.as_tensor(value) for number in state for name, value in state[number].items()}


def unpack_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore moments and step counts. They must have the shapes of the parameters."""
    state: dict[int, dict[str, Tensor]] = {}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for key, tensor in tensors.items():
        number, _, name = key.partition(".")
        parameter = parameters[int(number)] if number.isdecimal() and int(number) < len(parameters) else None
        if parameter is None or tensor.shape not in (parameter.shape, ()) or not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"the checkpoint must hold the state of the optimizer of this run, got {key!r:.100}.")
        state.setdefault(int(number), {})[name] = tensor
    if len({frozenset(moments) for moments in state.values()}) > 1:
        raise ValueError("the checkpoint must hold the same state of the optimizer for every parameter.")
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add ``prefix`` to the names."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def under_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Select the names that start with ``prefix`` and remove it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _tensor_checksum(tensors: Mapping[str, Tensor], header: str) -> str:
    """Compute the checksum of a header and of names, types, shapes and content of tensors."""

    def parts() -> Iterator[bytes]:
        yield header.encode()
        for name, tensor in sorted(tensors.items()):
            yield f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
            flat = tensor.reshape(-1).clone(memory_format=torch.contiguous_format)  # an empty one may have any strides
            yield flat.view(torch.uint8).numpy().tobytes()

    return sha256(parts())
