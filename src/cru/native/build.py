"""Compile the C++ code on first use, cache it in a folder of the user, and load it.

Without a compiler the functions here return None, and the filters run in PyTorch.
"""

import atexit
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from platformdirs import user_cache_path

from cru.logs import make_logger
from cru.native import layout
from cru.native.layout import REAL, generated_header

_HEADERS = ("common.h", "pair.h", "matrix.h", "expm.h", "eigen.h", "smooth.h")
_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math")
MAX_OBS = 128
"""For larger latent observations, the matrix products of PyTorch are faster."""
_FUNCTIONS: dict[str, dict[str, tuple[type[ctypes.Structure], ...]]] = {
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


@cache
def compiler() -> tuple[str, ...] | None:
    """Find the C++ compiler: $CXX, or the first of c++, g++, clang++ on the path.

    Returns:
        The words of its command, or None.
    """
    candidates = [shlex.split(os.environ.get("CXX", "")), ["c++"], ["g++"], ["clang++"]]
    return next((tuple(words) for words in candidates if words and shutil.which(words[0])), None)


@cache
def library(dtype: torch.dtype, obs: int) -> ctypes.CDLL | None:
    """Load the filter of CRU, f-CRU and RKN for a floating type and a latent observation size.

    Returns:
        The library, or None if the type or size is not supported or nothing can be compiled.
    """
    if dtype not in REAL or obs > MAX_OBS:
        return None
    return _load("locally_linear", dtype, -(-obs // REAL[dtype][1]))


@cache
def paired_library(dtype: torch.dtype) -> ctypes.CDLL | None:
    """Load the paired filter and smoother for a floating type.

    Returns:
        The library, or None if the type is not supported or nothing can be compiled.
    """
    return _load("paired", dtype, 1) if dtype in REAL else None


@cache
def structural_library() -> ctypes.CDLL | None:
    """Load the structural filter, smoother and likelihood.

    Returns:
        The library, or None if nothing can be compiled.
    """
    return _load("structural", torch.float64, 1)


@cache
def _load(source: str, dtype: torch.dtype, half: int) -> ctypes.CDLL | None:
    command = compiler()
    if command is None:
        return None
    try:
        native = _cached_or_compiled(command, source, dtype, half)
    except (OSError, subprocess.SubprocessError) as error:
        output = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        log.warning("the compiled filter is not available, the slower one in PyTorch is used: %s\n%s", error, output)
        return None
    for name, structures in _FUNCTIONS[source].items():
        function = getattr(native, name)
        function.argtypes = [*map(ctypes.POINTER, structures), ctypes.c_int64, ctypes.c_int64]
        function.restype = None
    return native


def _cached_or_compiled(command: tuple[str, ...], source: str, dtype: torch.dtype, half: int) -> ctypes.CDLL:
    """Load the library for this processor from the cache, or compile it into the cache."""
    here, header = Path(__file__).parent, generated_header(dtype, half)
    native = ("-march=native",) if platform.machine() in ("x86_64", "AMD64") else ()
    flags = (*_FLAGS, *native)
    key = hashlib.sha256(repr((command, flags, header, _processor())).encode())
    for file in (f"{source}.cpp", *_HEADERS):
        key.update((here / file).read_bytes())
    name = f"{source}-{REAL[dtype][0]}-{half}-{key.hexdigest()[:16]}"
    folder = Path(os.environ.get("CRU_CACHE_DIR") or user_cache_path("cru")) / "native"
    cached = _open_cached(folder, name)
    if cached is not None:
        return cached
    folder = _writable(folder)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        fresh, generated = Path(scratch) / "fresh.so", Path(scratch) / "generated.h"
        generated.write_text(header)
        call = [*command, *flags, "-include", str(generated), str(here / f"{source}.cpp"), "-o", str(fresh)]
        subprocess.run(call, check=True, capture_output=True, timeout=300)
        fresh.chmod(0o700)  # whatever the umask
        path = folder / f"{name}-{hashlib.sha256(fresh.read_bytes()).hexdigest()}.so"
        for other in set(folder.glob(f"{name}-*.so")) - {path}:  # written while other users could write the folder
            other.unlink(missing_ok=True)
        fresh.replace(path)
    compiled = _open_cached(folder, name)
    if compiled is None:
        raise OSError(f"the library that was just compiled cannot be loaded from {folder}")
    return compiled


def _open_cached(folder: Path, name: str) -> ctypes.CDLL | None:
    """Load ``name``-SHA256.so if only this user or root can have written it and its contents have that hash.

    The check of owner and mode keeps out the code of other users. The hash detects damage.
    """
    if not folder.is_dir() or not (_owned(folder.lstat()) and _private(folder.stat())):
        return None
    for path in folder.glob(f"{name}-*.so"):
        file = None
        try:
            # Follow no link, and do not wait for the other end of a pipe.
            file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
            info = os.fstat(file)
            if not stat.S_ISREG(info.st_mode) or not _private(info):
                raise OSError("another user can write it")
            with open(file, "rb", closefd=False) as whole:
                if hashlib.sha256(whole.read()).hexdigest() != path.stem.rpartition("-")[2]:
                    raise OSError("it is damaged")
            # Load the file that was checked, even if another file has its name by now. The descriptor stays open,
            # because the linker treats equal names as equal libraries.
            checked = Path(f"/proc/self/fd/{file}")
            return ctypes.CDLL(str(checked if checked.exists() else path))
        except OSError as error:
            if file is not None:
                os.close(file)
            log.warning("%s is not loaded and compiled again: %s", path, error)
            with suppress(OSError):
                path.unlink()
    return None


def _owned(info: os.stat_result) -> bool:
    """Return whether a file belongs to this user or to root."""
    return not hasattr(os, "geteuid") or info.st_uid in (0, os.geteuid())


def _private(info: os.stat_result) -> bool:
    """Return whether only this user and root can write a file."""
    return _owned(info) and (not hasattr(os, "geteuid") or not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _writable(folder: Path) -> Path:
    """Return ``folder``, or a temporary private one if ``folder`` is not writable or not safe."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _owned(folder.lstat()) or not _owned(folder.stat()):
            raise OSError(f"another user owns {folder}")
        folder.chmod(0o700)  # whatever the umask
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        log.warning("the compiled filter is made anew in each process, CRU_CACHE_DIR can name a folder: %s", error)
        private = tempfile.mkdtemp(prefix="cru-")
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        return Path(private)


def _processor() -> str:
    """Return what the compiled code depends on. Machines may share a cache."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    lines = info.read_text().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
