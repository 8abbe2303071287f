"""Models: encoder, layer, decoder; the eleven systems of the paper, four of our own and the naive ones, by name."""

from cru.models.base import Batch, Model, Prediction, Spec, spec_of
from cru.models.options import Config
from cru.models.output import Output
from cru.models.paper import SETTINGS, create_paper, paper_options
from cru.models.registry import MODELS, NAIVE, create

__all__ = [
    "MODELS",
    "NAIVE",
    "SETTINGS",
    "Batch",
    "Config",
    "Model",
    "Output",
    "Prediction",
    "Spec",
    "create",
    "create_paper",
    "paper_options",
    "spec_of",
]
