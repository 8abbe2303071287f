"""The layouts that Python and C++ share, and the functions that each library exports."""

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from cru import native
from cru.native import layout, libraries
from cru.native.call import pointers

needs_compiler = pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")


def compiled(header: str, folder: Path) -> subprocess.CompletedProcess:
    """Check ``common.h`` after a generated header."""
    (folder / "generated.h").write_text(header)
    (folder / "main.cpp").write_text('#include "generated.h"\n#include "common.h"\n')
    words = [*native.compiler(), "-std=c++17", "-fsyntax-only", f"-I{Path(layout.__file__).parent}", "main.cpp"]
    return subprocess.run(words, capture_output=True, text=True, cwd=folder)


def swapped(fields):
    return (*fields[:-2], fields[-1], fields[-2])


CHANGES = {
    "nothing": lambda fields: fields,
    "one field more": lambda fields: (*fields, ("another", ctypes.c_int64)),
    "one field less": lambda fields: fields[:-1],
    "two fields swapped": swapped,
    "another name": lambda fields: (*fields[:-1], ("another", fields[-1][1])),
}


@needs_compiler
@pytest.mark.parametrize("change", CHANGES)
def test_a_layout_that_differs_does_not_compile(change: str, monkeypatch, tmp_path) -> None:
    altered = [
        type(each.__name__, (ctypes.Structure,), {"_fields_": CHANGES[change](each._fields_)})
        for each in layout.LAYOUTS
    ]
    monkeypatch.setattr(layout, "LAYOUTS", altered)
    done = compiled(layout.generated_header(torch.float32, 8), tmp_path)
    refused = [each.__name__ for each in layout.LAYOUTS if f"({each.__name__}" in done.stderr]
    assert refused == ([] if change == "nothing" else [each.__name__ for each in altered]), done.stderr
    assert (done.returncode == 0) == (change == "nothing")


def test_every_layout_is_checked() -> None:
    defined = {value for value in vars(layout).values() if isinstance(value, type)}
    assert {value for value in defined if issubclass(value, ctypes.Structure)} == set(layout.LAYOUTS)
    functions = [function for each in libraries.FUNCTIONS.values() for function in each.values()]
    assert {structure for function in functions for structure in function} <= set(layout.LAYOUTS)


@needs_compiler
def test_each_library_exports_only_its_own_functions() -> None:
    loaded = {
        "locally_linear": libraries.library(torch.float64, 2),
        "paired": libraries.paired_library(torch.float64),
        "structural": libraries.structural_library(),
    }
    names = [name for functions in libraries.FUNCTIONS.values() for name in functions]
    assert len(set(names)) == len(names)
    for source, library in loaded.items():
        assert {name for name in names if hasattr(library, name)} == set(libraries.FUNCTIONS[source])


def test_pointers_have_the_names_of_the_layout() -> None:
    mean, upper, lower, side = (torch.zeros(1) for _ in range(4))
    found = pointers(layout.FilterOutputs, prior=(mean, upper, lower, side), posterior=(side, lower, upper, mean))
    assert (found.prior.upper, found.posterior.upper) == (upper.data_ptr(), lower.data_ptr())
    assert pointers(layout.Beliefs, mean=mean, upper=None, lower=lower, side=side).upper is None
    with pytest.raises(TypeError, match="Beliefs has other fields"):
        pointers(layout.Beliefs, mean=mean, upper=upper, lower=lower)
    with pytest.raises(TypeError, match="Beliefs has other fields"):
        pointers(layout.Beliefs, mean=mean, upper=upper, lower=lower, sides=side)
