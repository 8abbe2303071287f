"""Fit, fill in, forecast: the library for somebody with a table of irregular readings."""

from cru.forecaster.estimator import Forecaster

__all__ = ["Forecaster"]
