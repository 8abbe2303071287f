"""Models: encoder, layer, decoder; the eleven systems of the paper and the naive ones, by name."""

from cru.models.base import Batch, Model, Prediction, Spec, spec_of
from cru.models.output import Output
from cru.models.registry import MODELS, create

__all__ = ["MODELS", "Batch", "Model", "Output", "Prediction", "Spec", "create", "spec_of"]
