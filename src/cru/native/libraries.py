"""The compiled libraries: prebuilt ones from the wheel, or else compiled on first use."""

import ctypes
import os
import subprocess
from functools import cache
from typing import NamedTuple

import torch

from cru.logs import make_logger
from cru.native import layout
from cru.native.build import cached_or_compiled, compiler
from cru.native.layout import REAL
from cru.native.prebuilt import open_prebuilt

MAX_OBS = 128
"""For larger latent observations, the matrix products of PyTorch are faster."""
FUNCTIONS: dict[str, dict[str, tuple[type[ctypes.Structure], ...]]] = {
    "locally_linear": {
        "cru_locally_linear_filter": (
            layout.LocallyLinearSizes,
            layout.LocallyLinearInputs,
            layout.FilterOutputs,
        ),
        "cru_locally_linear_filter_backward": (
            layout.LocallyLinearSizes,
            layout.LocallyLinearInputs,
            layout.FilterSaved,
            layout.LocallyLinearGradients,
        ),
    },
    "paired": {
        "cru_paired_filter": (layout.PairedSizes, layout.PairedInputs, layout.FilterOutputs),
        "cru_paired_filter_backward": (
            layout.PairedSizes,
            layout.PairedInputs,
            layout.FilterSaved,
            layout.PairedGradients,
        ),
        "cru_paired_smooth": (layout.PairedSizes, layout.SmoothInputs, layout.Beliefs),
        "cru_paired_smooth_backward": (
            layout.PairedSizes,
            layout.SmoothInputs,
            layout.Beliefs,
            layout.SmoothGradients,
        ),
    },
    "structural": {
        "cru_structural_filter": (
            layout.StructuralSizes,
            layout.StructuralInputs,
            layout.StructuralFilterOutputs,
        ),
        "cru_structural_smooth": (
            layout.StructuralSizes,
            layout.StructuralInputs,
            layout.StructuralSmoothOutputs,
        ),
        "cru_structural_likelihood": (
            layout.StructuralSizes,
            layout.StructuralInputs,
            layout.StructuralLikelihoodOutputs,
        ),
    },
}
"""The functions of each library. Each takes pointers to these structures, and the first and last item to work on."""

log = make_logger(__name__)


class LoadedLibrary(NamedTuple):
    """A library or None, and its origin with the reason."""

    library: ctypes.CDLL | None
    origin: str


@cache
def library(dtype: torch.dtype, obs: int) -> ctypes.CDLL | None:
    """Load the filter of CRU, f-CRU and RKN for a floating type and a latent observation size.

    Returns:
        The library, or None if the type or size is not supported or there is no library.
    """
    if dtype not in REAL or obs > MAX_OBS:
        return None
    multiple = REAL[dtype][1]
    return load("locally_linear", dtype, -(-obs // multiple) * multiple).library


@cache
def paired_library(dtype: torch.dtype) -> ctypes.CDLL | None:
    """Load the paired filter and smoother for a floating type.

    Returns:
        The library, or None if the type is not supported or there is no library.
    """
    return load("paired", dtype, REAL[dtype][1]).library if dtype in REAL else None


@cache
def structural_library() -> ctypes.CDLL | None:
    """Load the structural filter, smoother and likelihood.

    Returns:
        The library, or None if there is none.
    """
    return load("structural", torch.float64, REAL[torch.float64][1]).library


@cache
def load(source: str, dtype: torch.dtype, padded: int) -> LoadedLibrary:
    """Load a library: a prebuilt one, unless ``CRU_NATIVE=compile`` is set, else a compiled one, else none.

    Args:
        source: a key of `FUNCTIONS`.
        dtype: its floating type.
        padded: the size of the latent observation, padded to a multiple of the number in `REAL`.
    """
    if os.environ.get("CRU_NATIVE") == "compile":
        found, why = None, "CRU_NATIVE=compile"
    else:
        found, why = open_prebuilt(source, dtype, padded)
    loaded = _compiled(source, dtype, padded, why) if found is None else LoadedLibrary(found, why)
    for name, structures in FUNCTIONS[source].items() if loaded.library is not None else ():
        function = getattr(loaded.library, name)
        function.argtypes = [*map(ctypes.POINTER, structures), ctypes.c_int64, ctypes.c_int64]
        function.restype = None
    return loaded


def _compiled(source: str, dtype: torch.dtype, padded: int, why: str) -> LoadedLibrary:
    command = compiler()
    if command is None:
        return LoadedLibrary(None, f"no C++ compiler, and {why}")
    try:
        native = cached_or_compiled(command, source, dtype, padded)
    except (OSError, subprocess.SubprocessError) as error:
        output = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        log.warning("the compiled filter is not available, the slower one in PyTorch is used: %s\n%s", error, output)
        return LoadedLibrary(None, f"{' '.join(command)} failed, and {why}")
    return LoadedLibrary(native, f"compiled for this processor by {' '.join(command)}: {why}")
