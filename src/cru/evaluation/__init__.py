"""Evaluation: predictions, metrics as sums and counts, and diagnostics."""

from cru.evaluation.evaluate import evaluate, predict
from cru.evaluation.metrics import Scores, ScoreSums

__all__ = ["ScoreSums", "Scores", "evaluate", "predict"]
