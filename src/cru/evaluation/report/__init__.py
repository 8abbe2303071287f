"""The report page: what goes into it as plain data, and how it becomes one HTML file."""

from cru.evaluation.report.page import render
from cru.evaluation.report.series import describe_series, fitting
from cru.evaluation.report.summary import describe_run, describe_tables

__all__ = ["describe_run", "describe_series", "describe_tables", "fitting", "render"]
