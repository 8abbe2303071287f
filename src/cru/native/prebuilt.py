"""Libraries that are compiled for the wheel, one for each level of the x86-64 architecture.

A file is named like one in the cache of `cru.native.build`: by its contents and by all its sources and flags. After a
change of a source, no file matches.
"""

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch

from cru.logs import make_logger
from cru.native.build import compile_library, compiler, library_name, open_checked, processor_features
from cru.native.layout import REAL

FOLDER = Path(__file__).parent / "prebuilt"
LEVELS = {
    "x86-64-v2": "cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3",
    "x86-64-v3": "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave",
    "x86-64-v4": "avx512bw avx512cd avx512dq avx512f avx512vl",
}
"""The features that each level adds to the level before, in the words of ``/proc/cpuinfo``."""
SIZES = {torch.float32: (8, 16, 24, 32, 56, 80, 104, 128), torch.float64: (8, 12, 16, 32, 128)}
"""Padded observation sizes of the filter of CRU, f-CRU and RKN. Others use the next larger library."""

log = make_logger(__name__)


@cache
def best_level() -> tuple[str | None, str]:
    """Find the highest level that this processor supports.

    Returns:
        The level or None, and the reason.
    """
    features, best = set(processor_features().split()), None
    for level, words in LEVELS.items():
        if missing := sorted(set(words.split()) - features):
            return best, f"{level} needs {', '.join(missing)}"
        best = level
    return best, "the highest level"


def open_prebuilt(source: str, dtype: torch.dtype, padded: int) -> tuple[ctypes.CDLL | None, str]:
    """Load a prebuilt library for this processor.

    Args:
        source: the name of the C++ file.
        dtype: the floating type.
        padded: the padded size of an observation.

    Returns:
        The library or None, and the reason.
    """
    if not FOLDER.is_dir():
        return None, "this install has no prebuilt libraries"
    level, reason = best_level()
    if level is None:
        return None, f"no prebuilt library fits this processor ({reason})"
    size = next((size for size in SIZES[dtype] if size >= padded), padded) if source == "locally_linear" else padded
    for path in FOLDER.glob(f"{_name(level, source, dtype, size)}-*.so"):
        try:
            return open_checked(path), f"prebuilt for {level} ({reason})"
        except OSError as error:
            log.warning("%s is not loaded: %s", path, error)
    return None, f"the prebuilt libraries for {level} are damaged or of other sources"


def build_prebuilt(folder: Path) -> list[Path]:
    """Compile all libraries of a wheel into ``folder``, except those that exist already.

    Returns:
        Their paths. There are none on other systems than Linux on x86-64.

    Raises:
        RuntimeError: there is no C++ compiler.
        subprocess.CalledProcessError: the compiler failed.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return []
    command = compiler()
    if command is None:
        raise RuntimeError("a wheel with compiled libraries needs a C++ compiler (c++, g++ or clang++) on the path.")
    folder.mkdir(parents=True, exist_ok=True)

    def build(item: tuple[str, str, torch.dtype, int]) -> Path:
        level, source, dtype, size = item
        name = _name(level, source, dtype, size)
        there = next(folder.glob(f"{name}-*.so"), None)
        return there or compile_library(command, source, dtype, size, _flags(level), folder, name)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(build, _all()))


def _all() -> Iterator[tuple[str, str, torch.dtype, int]]:
    """Iterate over level, source, floating type and padded size of all libraries of a wheel."""
    for level in LEVELS:
        yield level, "structural", torch.float64, REAL[torch.float64][1]
        for dtype, sizes in SIZES.items():
            yield level, "paired", dtype, REAL[dtype][1]
            yield from ((level, "locally_linear", dtype, size) for size in sizes)


def _flags(level: str) -> tuple[str, ...]:
    return (f"-march={level}", "-s")  # without symbols


def _name(level: str, source: str, dtype: torch.dtype, padded: int) -> str:
    return f"{level}-{library_name(source, dtype, padded, _flags(level))}"
