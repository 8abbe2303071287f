"""Evaluation: predictions, metrics as sums and counts, and diagnosis."""

from cru.evaluation.evaluate import evaluate, predict
from cru.evaluation.metrics import Scores, Tally

__all__ = ["Scores", "Tally", "evaluate", "predict"]
