"""``cru doctor``: the installed and the missing parts of this machine."""

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from cru.cli.printing import make_console


def doctor() -> None:
    """Print versions, devices, compilers, data folders, and missing parts."""
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for name, found in _findings():
        table.add_row(name, found)
    make_console().print(table)


def _findings() -> Iterator[tuple[str, str]]:
    import torch

    from cru.reporting.ledger import LEDGER, read_lines
    from cru.training.provenance import find_versions

    yield from find_versions().items()
    threads = torch.get_num_threads()
    yield "system", f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {threads} threads"
    yield "device", _device()
    yield "torch.compile", _inductor()
    yield "compiled filter", _native()
    yield from _data()
    yield (
        "ledger",
        f"{LEDGER}, {len(read_lines(LEDGER))} runs" if LEDGER.exists() else f"no {LEDGER} in this folder yet",
    )
    yield "TensorBoard", _tensorboard()


def _device() -> str:
    import torch

    if not torch.cuda.is_available():
        return "cpu (no CUDA device found)"
    return ", ".join(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))


def _inductor() -> str:
    """Describe the compiler that torch.compile needs on a CPU."""
    from cru.native.build import compiler

    command = compiler()
    missing = "MISSING: no C++ compiler (c++, g++ or clang++) on the path"
    return f"C++ compiler {' '.join(command)}" if command else missing


def _native() -> str:
    import torch

    from cru.native.call import switched_off
    from cru.native.libraries import load

    if switched_off():
        return "switched off by CRU_NATIVE=0: the filters run in PyTorch, many times slower"
    found = load("locally_linear", torch.float32, 16)
    if found.library is None:
        return f"MISSING: the filters run in PyTorch, many times slower: {found.origin}. Install a C++ compiler."
    return f"works: {found.origin}"


def _data() -> Iterator[tuple[str, str]]:
    from cru.data.cache import cache_dir, prepared
    from cru.data.datasets import DATASETS

    folder = os.environ.get("CRU_DATA_DIR")
    if folder is None:
        yield "raw data", "CRU_DATA_DIR is not set: raw files are downloaded when they are needed"
    else:
        there = Path(folder).is_dir()
        yield "raw data", folder if there else f"MISSING: CRU_DATA_DIR is {folder}, which is not a folder"
    yield "prepared data", str(cache_dir())
    for name in DATASETS:
        yield f"  {name}", ", ".join(prepared(name)) or f"not yet: cru data prepare {name}"


def _tensorboard() -> str:
    from importlib.util import find_spec

    return "installed" if find_spec("tensorboard") else "not installed, not needed: pip install tensorboard"
