"""Compile the kernel on first use, keep it in the user's cache, load it.

The library works without a compiler: `library` then returns None and the filters run step by step in PyTorch.
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

from cru.functional.belief import bounds
from cru.functional.eigen import FLOOR_SLACK
from cru.functional.expm import MAX_DOUBLINGS
from cru.functional.update import MIN_VARIANCE
from cru.logs import make_logger

_HEADERS = ("expm.h", "eigen.h", "matrix.h", "pair.h", "smooth.h")
_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
_REAL = {torch.float32: ("float", 8), torch.float64: ("double", 4)}
MAX_OBS = 128
"""Beyond this latent observation size, PyTorch's own matrix products are the faster ones."""

log = make_logger(__name__)


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


def structural_library() -> ctypes.CDLL | None:
    """The structural filter, smoother and likelihood, or None where there can be none."""
    return _load("structural", "double", 1)


@cache
def _load(source: str, real: str, half: int) -> ctypes.CDLL | None:
    command = compiler()
    if command is None:
        return None
    try:
        native = _kept_or_made(command, source, real, half)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        log.warning("the compiled filter is not available, the slower one in PyTorch is used: %s\n%s", error, said)
        return None
    arrays = ctypes.POINTER(ctypes.c_void_p)
    sizes, index = ctypes.POINTER(ctypes.c_int64), ctypes.c_int64
    if source == "structural":
        for name in ("filter", "smooth", "likelihood"):
            run = getattr(native, f"cru_structural_{name}")
            run.argtypes, run.restype = [sizes, arrays, arrays, index, index], None
        return native
    for name in ("cru_filter", "cru_smooth") if source == "paired" else ("cru_filter",):
        forward, backward = getattr(native, name), getattr(native, f"{name}_backward")
        forward.argtypes = [ctypes.c_int, sizes, arrays, arrays, index, index]
        backward.argtypes = [ctypes.c_int, sizes, arrays, arrays, arrays, index, index]
        forward.restype = backward.restype = None
    return native


def _kept_or_made(command: tuple[str, ...], source: str, real: str, half: int) -> ctypes.CDLL:
    """The shared library for this very processor, out of the cache, or compiled into it."""
    here = Path(__file__).parent
    native = ("-march=native",) if platform.machine() in ("x86_64", "AMD64") else ()
    flags = (*_FLAGS, *native, f"-DREAL={real}", f"-DHALF={half}", *_constants(real))
    key = hashlib.sha256(repr((command, flags, _processor())).encode())
    for file in (f"{source}.cpp", *_HEADERS):
        key.update((here / file).read_bytes())
    name = f"{source}-{real}-{half}-{key.hexdigest()[:16]}"
    folder = Path(os.environ.get("CRU_CACHE_DIR") or user_cache_path("cru")) / "native"
    kept = _open_kept(folder, name)
    if kept is not None:
        return kept
    folder = _writable(folder)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        fresh = Path(scratch) / "fresh.so"
        call = [*command, *flags, str(here / f"{source}.cpp"), "-o", str(fresh)]
        subprocess.run(call, check=True, capture_output=True, timeout=300)
        fresh.chmod(0o700)  # whatever the umask
        path = folder / f"{name}-{hashlib.sha256(fresh.read_bytes()).hexdigest()}.so"
        for other in set(folder.glob(f"{name}-*.so")) - {path}:  # from before the folder was closed to others
            other.unlink(missing_ok=True)
        fresh.replace(path)
    made = _open_kept(folder, name)
    if made is None:
        raise OSError(f"the library that was just compiled cannot be loaded from {folder}")
    return made


def _open_kept(folder: Path, name: str) -> ctypes.CDLL | None:
    """Load ``name``-SHA256.so if only this user or root can have written it and its contents have that hash.

    The check of owner and mode keeps out the code of other users. The hash detects damage.
    """
    if not folder.is_dir() or not (_owned(folder.lstat()) and _private(folder.stat())):
        return None
    for path in folder.glob(f"{name}-*.so"):
        file = None
        try:
            # No link to elsewhere, and no wait for the other end of a pipe.
            file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
            info = os.fstat(file)
            if not stat.S_ISREG(info.st_mode) or not _private(info):
                raise OSError("another user can write it")
            with open(file, "rb", closefd=False) as whole:
                if hashlib.sha256(whole.read()).hexdigest() != path.stem.rpartition("-")[2]:
                    raise OSError("it is damaged")
            # The very file that was checked, whatever bears its name now. The descriptor stays open because the
            # linker takes equal names for equal libraries.
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
    """Whether a file belongs to this user, or to root, who can do everything anyway."""
    return not hasattr(os, "geteuid") or info.st_uid in (0, os.geteuid())


def _private(info: os.stat_result) -> bool:
    """Whether nobody but this user and root can write a file."""
    return _owned(info) and (not hasattr(os, "geteuid") or not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _writable(folder: Path) -> Path:
    """``folder``, or where nothing can be kept there safely a private one that ends with the process."""
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
