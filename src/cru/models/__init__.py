"""Models by name: those of the paper, others of this library, and naive models."""

from cru.models.base import BatchLike, Model, ModelConfig, OutputHead, Prediction, Spec, spec_of
from cru.models.registry import MODELS, NAIVE, create

__all__ = [
    "MODELS",
    "NAIVE",
    "BatchLike",
    "Model",
    "ModelConfig",
    "OutputHead",
    "Prediction",
    "Spec",
    "create",
    "spec_of",
]
