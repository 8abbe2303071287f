"""The filter compiled for the processor at hand. Optional: without a C++ compiler PyTorch does the same, slower."""

from cru.native.build import compiler
from cru.native.ops import available, filter_sequence

__all__ = ["available", "compiler", "filter_sequence"]
