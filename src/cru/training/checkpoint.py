"""Checkpoints: one safetensors file each, tensors and a JSON header, written atomically. Nothing is ever unpickled."""

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from cru.files import write_atomically

_FORMAT = "cru checkpoint 2"


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write so that ``path`` is either complete or as it was, whatever happens meanwhile."""
    kept = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(header)
    metadata = {"format": _FORMAT, "sha256": _digest(kept, text), "header": text}
    write_atomically(path, save(kept, metadata))


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header; one sentence if the file is missing, truncated, altered or not a checkpoint at all."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}.")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                raise ValueError(f"{path} is not a checkpoint of this library: its format is not {_FORMAT!r}.")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = json.loads(metadata["header"])
    except (SafetensorError, json.JSONDecodeError, KeyError):
        raise ValueError(f"{path} is truncated or not a checkpoint of this library; it was not read.") from None
    if _digest(tensors, metadata["header"]) != metadata.get("sha256"):
        raise ValueError(f"{path} is damaged: its checksum differs; it was not used.")
    return tensors, header


def check_writable(path: Path) -> None:
    """Whether something can be written there later, tried out in the nearest folder that exists: before a long part."""
    whole = path.absolute()
    folder = whole if whole.is_dir() else next(parent for parent in whole.parents if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}, {folder}.") from None


def pack_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The moments and step counts, named by parameter number and kind."""
    state = optimizer.state_dict()["state"]
    return {f"{number}.{name}": torch.as_tensor(value) for number in state for name, value in state[number].items()}


def unpack_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put them back."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names moved under ``prefix``."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def under_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those under ``prefix``, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _digest(tensors: Mapping[str, Tensor], header: str) -> str:
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
