"""Evaluation: metrics as sums and counts, the ledger of finished runs, the paper's tables."""

from cru.evaluation.evaluate import evaluate, predict
from cru.evaluation.metrics import Scores, Tally

__all__ = ["Scores", "Tally", "evaluate", "predict"]
