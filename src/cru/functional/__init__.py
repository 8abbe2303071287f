"""Pure functions on tensors: beliefs, the update step, three predict steps, and the filter of a sequence."""

from cru.functional.belief import (
    Belief,
    Bounds,
    Gain,
    bounds,
    clamp_belief,
    covariance,
    keep_block_diagonals,
)
from cru.functional.discrete import predict_discrete, predict_discrete_reference
from cru.functional.eigen import phi1, predict_eigen, predict_eigen_reference
from cru.functional.expm import discretise, doublings, predict_expm, predict_expm_reference
from cru.functional.gaps import clip_gaps, gaps
from cru.functional.likelihood import VARIANCE_FLOOR, bernoulli_nll, gaussian_nll, mean_over_times
from cru.functional.orthogonal import orthogonal
from cru.functional.positive import Positive, positive
from cru.functional.sequence import filter_sequence, filter_sequence_reference
from cru.functional.transition import (
    Coefficients,
    DiscreteTransition,
    EigenTransition,
    ExpmTransition,
    Transition,
)
from cru.functional.update import MAX_VARIANCE, MIN_VARIANCE, FilterResult, gain, update, update_reference

__all__ = [
    "MAX_VARIANCE",
    "MIN_VARIANCE",
    "VARIANCE_FLOOR",
    "Belief",
    "Bounds",
    "Coefficients",
    "DiscreteTransition",
    "EigenTransition",
    "ExpmTransition",
    "FilterResult",
    "Gain",
    "Positive",
    "Transition",
    "bernoulli_nll",
    "bounds",
    "clamp_belief",
    "clip_gaps",
    "covariance",
    "discretise",
    "doublings",
    "filter_sequence",
    "filter_sequence_reference",
    "gain",
    "gaps",
    "gaussian_nll",
    "keep_block_diagonals",
    "mean_over_times",
    "orthogonal",
    "phi1",
    "positive",
    "predict_discrete",
    "predict_discrete_reference",
    "predict_eigen",
    "predict_eigen_reference",
    "predict_expm",
    "predict_expm_reference",
    "update",
    "update_reference",
]
