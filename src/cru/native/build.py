"""Compile the kernel on first use, keep it in the user's cache, load it.

The library works without a compiler: `library` then returns None and the filters run step by step in PyTorch.
"""

import atexit
import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
from platformdirs import user_cache_path

from cru.functional.belief import bounds
from cru.functional.eigen import FLOOR_SLACK
from cru.functional.expm import MAX_DOUBLINGS
from cru.functional.update import MIN_VARIANCE

_HEADERS = ("expm.h", "eigen.h", "matrix.h", "pair.h", "smooth.h")
_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
_REAL = {torch.float32: ("float", 8), torch.float64: ("double", 4)}
MAX_OBS = 128
"""Beyond this latent observation size, PyTorch's own matrix products are the faster ones."""

log = logging.getLogger(__name__)


def switched_off() -> bool:
    """Whether `CRU_NATIVE=0` says that compiled code is not to be used."""
    return os.environ.get("CRU_NATIVE", "1") == "0"


@cache
def compiler() -> tuple[str, ...] | None:
    """The C++ compiler, wanted or not: $CXX, or the first of c++, g++, clang++ on the path."""
    candidates = [shlex.split(os.environ.get("CXX", "")), ["c++"], ["g++"], ["clang++"]]
    return next((tuple(words) for words in candidates if words and shutil.which(words[0])), None)


def library(dtype: torch.dtype, obs: int) -> ctypes.CDLL | None:
    """The filter for a floating type and latent observation size, or None where there can be none."""
    if dtype not in _REAL or obs > MAX_OBS:
        return None
    real, lanes = _REAL[dtype]
    return _load("filter", real, -(-obs // lanes))


def paired_library(dtype: torch.dtype) -> ctypes.CDLL | None:
    """The paired filter and smoother for a floating type, or None where there can be none."""
    return _load("paired", _REAL[dtype][0], 1) if dtype in _REAL else None


@cache
def _load(source: str, real: str, half: int) -> ctypes.CDLL | None:
    command = compiler()
    if command is None:
        return None
    try:
        path = _built(command, source, real, half)
        try:
            native = ctypes.CDLL(str(path))
        except OSError:  # cut off, or made under another system that shares the cache: once more
            path.unlink()
            native = ctypes.CDLL(str(_built(command, source, real, half)))
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        log.warning("the compiled filter is not available, the slower one in PyTorch is used: %s\n%s", error, said)
        return None
    arrays = ctypes.POINTER(ctypes.c_void_p)
    sizes, index = ctypes.POINTER(ctypes.c_int64), ctypes.c_int64
    for name in ("cru_filter", "cru_smooth") if source == "paired" else ("cru_filter",):
        forward, backward = getattr(native, name), getattr(native, f"{name}_backward")
        forward.argtypes = [ctypes.c_int, sizes, arrays, arrays, index, index]
        backward.argtypes = [ctypes.c_int, sizes, arrays, arrays, arrays, index, index]
        forward.restype = backward.restype = None
    return native


def _built(command: tuple[str, ...], source: str, real: str, half: int) -> Path:
    """Path of the shared library, compiled for this very processor if it is not in the cache yet."""
    here = Path(__file__).parent
    native = ("-march=native",) if platform.machine() in ("x86_64", "AMD64") else ()
    flags = (*_FLAGS, *native, f"-DREAL={real}", f"-DHALF={half}", *_constants(real))
    key = hashlib.sha256(repr((command, flags, _processor())).encode())
    for name in (f"{source}.cpp", *_HEADERS):
        key.update((here / name).read_bytes())
    folder = Path(os.environ.get("CRU_CACHE_DIR") or user_cache_path("cru")) / "native"
    path = folder / f"{source}-{real}-{half}-{key.hexdigest()[:16]}.so"
    if not path.exists():
        folder = _writable(folder)
        path = folder / path.name
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            fresh = Path(scratch) / path.name
            call = [*command, *flags, str(here / f"{source}.cpp"), "-o", str(fresh)]
            subprocess.run(call, check=True, capture_output=True, timeout=300)
            fresh.replace(path)
    return path


def _writable(folder: Path) -> Path:
    """``folder``, or where nothing can be kept there a private one that ends with the process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        log.warning("the compiled filter is made anew in each process, CRU_CACHE_DIR can name a folder: %s", error)
        private = tempfile.mkdtemp(prefix="cru-")
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        return Path(private)


def _constants(real: str) -> list[str]:
    """The numbers that the kernel shares with `cru.functional`."""
    dtype = next(dtype for dtype, (name, _) in _REAL.items() if name == real)
    shared = {f"{name.upper()}_BOUND": value for name, value in bounds(dtype)._asdict().items()}
    shared |= {"MIN_VARIANCE": MIN_VARIANCE, "MAX_DOUBLINGS": MAX_DOUBLINGS, "FLOOR_SLACK": FLOOR_SLACK}
    return [f"-DCRU_{name}={value!r}" for name, value in shared.items()]


def _processor() -> str:
    """What the compiled code depends on; a cache may be shared between machines."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    lines = info.read_text().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
