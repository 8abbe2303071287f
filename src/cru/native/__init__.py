"""Filters in C++, compiled for the user's processor. Without a compiler, PyTorch computes the same results slower."""

from cru.functional.belief import transformed
from cru.native.build import compiler
from cru.native.locally_linear import available, filter_sequence
from cru.native.paired import filter_paired, paired_available, smooth_paired
from cru.native.structural import (
    filter_structural,
    nll_structural,
    smooth_components,
    smooth_structural,
    structural_available,
)

__all__ = [
    "available",
    "compiler",
    "filter_paired",
    "filter_sequence",
    "filter_structural",
    "nll_structural",
    "paired_available",
    "smooth_components",
    "smooth_paired",
    "smooth_structural",
    "structural_available",
    "transformed",
]
