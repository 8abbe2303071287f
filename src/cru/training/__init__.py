"""Training: settings, presets, the loop with its checkpoints, and whole runs."""

from cru.training.presets import models_of, presets, settings_for
from cru.training.run import load_model, run
from cru.training.settings import DataSettings, ModelSettings, RunSettings, TrainingSettings

__all__ = [
    "DataSettings",
    "ModelSettings",
    "RunSettings",
    "TrainingSettings",
    "load_model",
    "models_of",
    "presets",
    "run",
    "settings_for",
]
