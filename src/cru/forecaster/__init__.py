"""The forecaster, which fits, imputes and forecasts a table of irregular observations."""

from cru.forecaster.estimator import Forecaster

__all__ = ["Forecaster"]
