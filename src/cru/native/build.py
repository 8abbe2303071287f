"""The compilation of the C++ code, its cache in a folder of the user, and its loading."""

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
from cru.native.layout import REAL, generated_header

_HERE = Path(__file__).parent
_HEADERS = ("common.h", "pair.h", "matrix.h", "expm.h", "eigen.h", "smooth.h")
_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math")

log = make_logger(__name__)


@cache
def compiler() -> tuple[str, ...] | None:
    """Find the C++ compiler: $CXX, or the first of c++, g++, clang++ on the path.

    Returns:
        The words of its command, or None.
    """
    candidates = [shlex.split(os.environ.get("CXX", "")), ["c++"], ["g++"], ["clang++"]]
    return next((tuple(words) for words in candidates if words and shutil.which(words[0])), None)


def library_name(source: str, dtype: torch.dtype, padded: int, flags: tuple[str, ...], *more: object) -> str:
    """Name a library by its floating type and size, and by a hash of its sources, its flags and ``more``.

    Args:
        source: the name of the C++ file.
        dtype: the floating type.
        padded: the padded size of an observation.
        flags: further flags of the compiler.
        more: further properties that the code depends on.
    """
    key = hashlib.sha256(repr((_FLAGS, flags, generated_header(dtype, padded), *more)).encode())
    for file in (f"{source}.cpp", *_HEADERS):
        key.update((_HERE / file).read_bytes())
    return f"{source}-{REAL[dtype][0]}-{padded}-{key.hexdigest()[:16]}"


def compile_library(
    command: tuple[str, ...],
    source: str,
    dtype: torch.dtype,
    padded: int,
    flags: tuple[str, ...],
    folder: Path,
    name: str,
) -> Path:
    """Compile a library to the file ``name``-SHA256.so in ``folder``.

    Args:
        command: the command of the compiler.
        source: the name of the C++ file.
        dtype: the floating type.
        padded: the padded size of an observation.
        flags: further flags of the compiler.
        folder: the folder of the library.
        name: the first part of the name of the file.

    Returns:
        The path of the file.

    Raises:
        OSError: the file cannot be written, or the compiler cannot be started.
        subprocess.SubprocessError: the compiler failed.
    """
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        fresh, generated = Path(scratch) / "fresh.so", Path(scratch) / "generated.h"
        generated.write_text(generated_header(dtype, padded))
        call = [*command, *_FLAGS, *flags, "-include", str(generated), str(_HERE / f"{source}.cpp"), "-o", str(fresh)]
        subprocess.run(call, check=True, capture_output=True, timeout=300)
        fresh.chmod(0o700)  # for any umask
        path = folder / f"{name}-{hashlib.sha256(fresh.read_bytes()).hexdigest()}.so"
        for other in set(folder.glob(f"{name}-*.so")) - {path}:  # perhaps written by another user
            other.unlink(missing_ok=True)
        fresh.replace(path)
    return path


def cached_or_compiled(command: tuple[str, ...], source: str, dtype: torch.dtype, padded: int) -> ctypes.CDLL:
    """Load the library for this processor from the cache, or compile it into the cache.

    Args:
        command: the command of the compiler.
        source: the name of the C++ file.
        dtype: the floating type.
        padded: the padded size of an observation.

    Raises:
        OSError: the library cannot be written or loaded, or the compiler cannot be started.
        subprocess.SubprocessError: the compiler failed.
    """
    flags = ("-march=native",) if platform.machine() in ("x86_64", "AMD64") else ()
    name = library_name(source, dtype, padded, flags, command, processor_features())
    folder = Path(os.environ.get("CRU_CACHE_DIR") or user_cache_path("cru")) / "native"
    cached = _open_cached(folder, name)
    if cached is not None:
        return cached
    folder = _writable(folder)
    compile_library(command, source, dtype, padded, flags, folder, name)
    compiled = _open_cached(folder, name)
    if compiled is None:
        raise OSError(f"the library that was just compiled cannot be loaded from {folder}")
    return compiled


def _open_cached(folder: Path, name: str) -> ctypes.CDLL | None:
    """Load ``name``-SHA256.so if only this user or root can have written it and its contents have that hash.

    The check of owner and mode excludes the code of other users. The hash detects damage.
    """
    if not folder.is_dir() or not (_owned(folder.lstat()) and _private(folder.stat())):
        return None
    for path in folder.glob(f"{name}-*.so"):
        try:
            return open_checked(path, private=True)
        except OSError as error:
            log.warning("%s is not loaded and compiled again: %s", path, error)
            with suppress(OSError):
                path.unlink()
    return None


def open_checked(path: Path, *, private: bool = False) -> ctypes.CDLL:
    """Load ``NAME-SHA256.so`` if its contents have that hash.

    Args:
        path: the file.
        private: whether to refuse links, and files that other users can write.

    Raises:
        OSError: the file is refused or cannot be loaded.
    """
    follow = getattr(os, "O_NOFOLLOW", 0) if private else 0
    file = os.open(path, os.O_RDONLY | follow | getattr(os, "O_NONBLOCK", 0))  # do not wait for a pipe
    try:
        info = os.fstat(file)
        if not stat.S_ISREG(info.st_mode) or (private and not _private(info)):
            raise OSError("another user can write it")
        with open(file, "rb", closefd=False) as whole:
            if hashlib.sha256(whole.read()).hexdigest() != path.stem.rpartition("-")[2]:
                raise OSError("it is damaged")
        # Load the checked file, even if another file has its name by now. The descriptor stays open, because the linker
        # treats equal names as equal libraries.
        checked = Path(f"/proc/self/fd/{file}")
        return ctypes.CDLL(str(checked if checked.exists() else path))
    except OSError:
        os.close(file)
        raise


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
        folder.chmod(0o700)  # for any umask
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        log.warning("each process compiles the filter again; set CRU_CACHE_DIR to a folder of yours: %s", error)
        private = tempfile.mkdtemp(prefix="cru-")
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        return Path(private)


@cache
def processor_features() -> str:
    """Return the features of the processor. Compiled code depends on them, and machines may share a cache."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    lines = info.read_text().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
