"""The data of the page that `Forecaster.view` writes: series, curves, gaps, scores and the training table."""

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import cru
from cru.data import SeriesSet
from cru.data.tables import TIME_UNITS
from cru.errors import InputError, printable, some
from cru.files import write_atomically
from cru.forecaster.calibration import UNMEASURED, guarantee
from cru.forecaster.clock import Clock
from cru.forecaster.queries import check_levels, default_horizon, drop_empty_rows
from cru.forecaster.series_view import (
    SeriesMeasures,
    add_anomaly_results,
    count_components,
    measure_series,
    view_series,
)
from cru.models.corrected import CorrectedModel
from cru.reporting.html_page import number
from cru.reporting.view_page import SETTINGS, Detail, TimeAxis, choose_detail, encode_bins, encode_series, render_view

if TYPE_CHECKING:
    from cru.forecaster.estimator import Forecaster

_NAMES = 4  # number of variables in the title


def write_view(forecaster: "Forecaster", table: Any, out: Path, *, horizon: Any, level: Any) -> Path:
    """Write the page of a table. The arguments are those of `Forecaster.view`."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError("out", "end in .html", repr(str(out)))
    page = render_view(collect(forecaster, table, horizon=horizon, level=level))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, page.encode())
    return out


def collect(
    forecaster: "Forecaster", table: Any = None, *, horizon: Any = None, level: Any = (50, 90)
) -> dict[str, Any]:
    """Collect the data of the page. The arguments are those of `Forecaster.view`."""
    levels = tuple(sorted(check_levels(level), reverse=True))
    whole = forecaster._series(table)
    series = drop_empty_rows(whole)
    if not len(series.times):
        raise InputError("table", "hold at least one observation")
    clock = forecaster.clock_
    ahead = choose_horizon(forecaster, series) if horizon is None else clock.duration(horizon, "horizon")
    series = add_anomaly_results(forecaster, series, polars=forecaster._polars(table))
    measured = measure_series(forecaster, series)
    shown, notes = _choose_series(series, measured)
    counts = np.stack([series.mask[a:b].sum(0) for a, b in zip(series.offsets[:-1], series.offsets[1:], strict=True)])
    order = measured.interest[np.isin(measured.interest, shown) & (series.lengths[measured.interest] > 0)]
    curves = 1 + 2 * len(levels) + count_components(forecaster)
    detail, kept = choose_detail(series.lengths[order], counts[order], curves=curves, size=SETTINGS.series_bytes)
    detailed = np.sort(order[:kept])
    notes += _thinning_notes(series, counts[detailed], detail, len(detailed))
    axis = TimeAxis.of(float(series.times.min()), float(series.times.max() + ahead))
    views = view_series(forecaster, series.take(detailed), whole.take(detailed), detail, ahead, levels)
    encoded = {number: encode_series(one, axis) for number, one in zip(detailed.tolist(), views, strict=True)}
    bins = int(
        np.clip(np.median(series.lengths) / 2, *SETTINGS.map_columns)
    )  # some observations in each, if they are regular
    full = max(1.0, 2 * float(np.quantile(counts.sum(1), 0.9)) / bins)
    return {
        "title": _title(forecaster, table, series),
        "made": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "clock": _describe_clock(forecaster),
        "first": axis.first,
        "tick": axis.tick,
        "gap": forecaster.gap_,
        "horizon": ahead,
        "id_name": printable(forecaster.columns_.id or ""),
        "time_name": printable(forecaster.columns_.time),
        "names": [printable(name) for name in forecaster.names_],
        "levels": list(levels),
        "own_table": table is not None,
        "training": describe_training(forecaster),
        "scores": _describe_scores(forecaster),
        "notes": notes,
        "observations": int(series.mask.sum()),
        "series": [
            {
                "id": printable(series.ids[i]),
                "count": int(counts[i].sum()),
                "first": number(float(series.times[series.offsets[i]]), 12) if series.lengths[i] else None,
                "last": number(float(series.times[series.offsets[i + 1] - 1]), 12) if series.lengths[i] else None,
                "gap": number(float(measured.gap[i])),
                "error": number(float(measured.error[i]), 4),
                "surprise": number(float(measured.surprisal[i]), 4),
                "anomalies": number(float(measured.anomalies[i]), 9),
                "bins": encode_bins(_observed_times(series, i), bins, full),
                "data": encoded.get(i),
            }
            for i in shown.tolist()
        ],
    }


def choose_horizon(forecaster: "Forecaster", series: SeriesSet) -> float:
    """Return the `default_horizon` of a typical series, at most the longest lead time of training."""
    some_rows = series.lengths > 0
    spans = series.times[series.offsets[1:][some_rows] - 1] - series.times[series.offsets[:-1][some_rows]]
    length, longest = default_horizon(float(np.median(spans)), forecaster.gap_), forecaster.model_.spec.longest_gap
    return float(f"{length if longest is None else min(length, longest):.2g}")


def _choose_series(series: SeriesSet, measured: SeriesMeasures) -> tuple[np.ndarray, list[str]]:
    """Choose the series of the map of gaps."""
    if len(series) <= SETTINGS.map_series:
        return np.arange(len(series)), []
    most = f"{SETTINGS.map_series:,} of {len(series):,}"
    note = f"The page has {most} series: those with the longest gaps and the largest errors."
    return np.sort(measured.interest[: SETTINGS.map_series]), [note]


def _thinning_notes(series: SeriesSet, counts: np.ndarray, detail: Detail, kept: int) -> list[str]:
    """Return notes about the parts that the page leaves out to stay small."""
    notes = []
    if kept < len(series):
        notes.append(
            f"To stay small, the page has curves of {kept:,} of {len(series):,} series: those with the longest gaps "
            "and the largest errors. The map of gaps has the others, too."
        )
    if (counts > detail.observations).any():
        notes.append(
            f"To stay small, the page shows at most {detail.observations:,} observations of a variable of a series. It "
            "keeps the smallest and the largest ones. The model uses all of them."
        )
    notes.append(f"Each curve has at most {detail.points:,} points, more of them in long gaps.")
    return notes


def _observed_times(series: SeriesSet, i: int) -> np.ndarray:
    rows = slice(series.offsets[i], series.offsets[i + 1])
    return np.repeat(series.times[rows], series.mask[rows].sum(1))


def _title(forecaster: "Forecaster", table: Any, series: SeriesSet) -> str:
    if isinstance(table, str | Path):
        return printable(Path(table).name)
    what = f"{len(series):,} series" if len(series) > 1 else "One series"
    return f"{what}: {printable(some(forecaster.names_, _NAMES))}"


def _describe_clock(forecaster: "Forecaster") -> dict[str, Any]:
    clock = forecaster.clock_
    if clock.kind == "number":
        return {"kind": "number"}
    origin = float((clock._origin - np.datetime64(0, "us")) / np.timedelta64(1, "us")) / 1000
    return {"kind": clock.kind, "origin": origin, "unit": TIME_UNITS[clock.unit] / 1e6, "zone": clock.zone}


def write_time(clock: Clock, time: float) -> str:
    """Write a time as text, without a time of day if it is midnight, and without seconds if they are 0."""
    if clock.kind == "number":
        return f"{time:.6g}"
    return re.sub(r"( 00:00)?:00$", "", str(clock.stamp(time))) if clock.zone is None else str(clock.stamp(time))


def describe_training(forecaster: "Forecaster") -> list[tuple[str, str]]:
    """Describe the model and its training table, as names and texts."""
    columns, series, clock = forecaster.columns_, forecaster.history_, forecaster.clock_
    scores = forecaster.scores_
    name = forecaster.name_
    if isinstance(forecaster.model_, CorrectedModel):
        name = f"structural model, corrected by {forecaster.model}"
    facts = [
        ("model", printable(name)),
        ("parameters", f"{forecaster.model_.num_parameters:,}"),
        ("variables", printable(", ".join(forecaster.names_))),
        ("column of times", printable(columns.time)),
    ]
    if columns.id is not None:
        facts.append(("column of series", printable(columns.id)))
    if series is None:
        facts.append(("training table", "not saved with the model"))
    else:
        facts += [
            ("series", f"{len(series):,}"),
            ("observations", f"{int(series.mask.sum()):,}"),
            ("from", write_time(clock, float(series.times.min()))),
            ("to", write_time(clock, float(series.times.max()))),
        ]
    facts += [
        ("median gap", clock.written(forecaster.gap_)),
        ("withheld values", f"{scores['count']:,.0f} of {scores['series']:,.0f} series"),
        ("intervals", guarantee(int(scores["series"])) if forecaster.calibration_.measured else UNMEASURED),
        ("written by", f"cru {cru.__version__}"),
    ]
    return facts


def _describe_scores(forecaster: "Forecaster") -> dict[str, Any]:
    scores = forecaster.scores_
    better = {(row["variable"], row["lead"]): row["better"] for row in scores["details"] if row["model"] == "model"}
    table = [
        {key: printable(v) if isinstance(v, str) else number(v) for key, v in row.items()}
        | {"better": better.get((row["variable"], row["lead"]))}
        for row in scores["table"]
    ]
    plain = {name: number(scores[name]) for name in ("r2", "r2_last_value", "mae", "coverage90") if name in scores}
    return plain | {"table": table, "coverage": scores["coverage"]}
