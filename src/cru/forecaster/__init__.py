"""Fit, impute and forecast a table of irregular observations."""

from cru.forecaster.estimator import Forecaster

__all__ = ["Forecaster"]
