"""Training: settings, presets, the training loop with checkpoints, and complete runs."""

from cru.training.paper import create_paper, paper_options
from cru.training.presets import models_of, presets, settings_for
from cru.training.run import load_model, run
from cru.training.settings import DataSettings, ModelSettings, RunSettings, TrainingSettings

__all__ = [
    "DataSettings",
    "ModelSettings",
    "RunSettings",
    "TrainingSettings",
    "create_paper",
    "load_model",
    "models_of",
    "paper_options",
    "presets",
    "run",
    "settings_for",
]
