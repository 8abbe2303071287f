"""Counts, gaps and missing rates of a set of series, as rows of text for a table."""

import numpy as np

from cru.data.series import SeriesSet


def overview(series: SeriesSet) -> list[tuple[str, str]]:
    """Return names and figures: series, time points, gaps, and observed shares."""
    lengths, unit = series.lengths, series.time_unit
    gaps = np.diff(series.times)[np.diff(series.series_index) == 0]
    observed = series.mask.reshape(len(series.times), -1)
    rows = [
        ("series", f"{len(series):,}"),
        ("time points", f"{len(series.times):,}"),
        ("  of a series (min, median, max)", _three(lengths, "d")),
        (f"times [{unit}]", f"{series.times.min():g} to {series.times.max():g}" if len(series.times) else "none"),
        (f"gaps [{unit}] (min, median, max)", _three(gaps, "g")),
        ("values at a time point", " x ".join(str(n) for n in series.input_shape)),
        ("observed at a time point", f"{observed.mean():.1%}" if observed.size else "none"),
        ("time points with nothing observed", f"{(~observed.any(1)).sum():,}"),
        ("series with nothing observed", f"{len(series) - len(np.unique(series.series_index[observed.any(1)])):,}"),
    ]
    return rows + [(f"{name} (known, mean)", _known(values)) for name, values in series.per_series.items()]


def features(series: SeriesSet) -> list[tuple[str, ...]]:
    """Return name, unit, missing share, minimum, mean and maximum of each feature. Images have none."""
    rows: list[tuple[str, ...]] = []
    for k, name in enumerate(series.names if not series.is_image else ()):
        seen = series.values[series.mask[:, k], k].astype(np.float64)
        figures = [f"{f(seen):.4g}" for f in (np.min, np.mean, np.max)] if len(seen) else ["-"] * 3
        unit = series.units[k] if series.units else ""
        rows.append((name, unit, f"{1 - series.mask[:, k].mean():.1%}", *figures))
    return rows


def _three(numbers: np.ndarray, form: str) -> str:
    if len(numbers) == 0:
        return "none"
    middle = np.median(numbers)
    return f"{numbers.min():{form}}, {middle:g}, {numbers.max():{form}}"


def _known(values: np.ndarray) -> str:
    known = values[~np.isnan(values)]
    return f"{len(known):,}, {known.mean():.4g}" if len(known) else "none"
