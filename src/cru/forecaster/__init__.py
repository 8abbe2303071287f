"""Fit, fill in, forecast: the library for somebody with a table of irregular observations."""

from cru.forecaster.estimator import Forecaster

__all__ = ["Forecaster"]
