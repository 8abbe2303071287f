"""Continuous Recurrent Units: Kalman filtering for irregular time series in PyTorch.

Names are imported at first use, so that ``import cru`` and ``cru --help`` are fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers
    from cru import data, errors, evaluation, forecaster, functional, layers, models, reporting, training
    from cru.forecaster import Forecaster
    from cru.functional import Belief, FilterResult, Gain
    from cru.layers import CRU, RKN, FastCRU, PairedCRU, StructuralLayer

__version__ = "0.1.0"

_HOME = {
    "CRU": "cru.layers",
    "FastCRU": "cru.layers",
    "PairedCRU": "cru.layers",
    "RKN": "cru.layers",
    "StructuralLayer": "cru.layers",
    "Forecaster": "cru.forecaster",
    "Belief": "cru.functional",
    "FilterResult": "cru.functional",
    "Gain": "cru.functional",
    "data": "",
    "errors": "",
    "evaluation": "",
    "forecaster": "",
    "functional": "",
    "layers": "",
    "models": "",
    "reporting": "",
    "training": "",
}

__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'cru' has no attribute {name!r}")
    home = _HOME[name]
    globals()[name] = getattr(import_module(home), name) if home else import_module(f"cru.{name}")
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
