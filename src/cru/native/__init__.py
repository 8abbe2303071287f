"""The filter compiled for the processor at hand. Optional: without a C++ compiler PyTorch does the same, slower."""

from cru.native.build import compiler
from cru.native.call import transformed
from cru.native.ops import available, filter_sequence
from cru.native.paired import filter_paired, paired_available
from cru.native.smooth import smooth_paired
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
