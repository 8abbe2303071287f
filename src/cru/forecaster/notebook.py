"""HTML representations of a forecaster or a backtest for notebooks: a figure of one series, and the scores."""

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from cru.errors import printable
from cru.forecaster.queries import drop_empty_rows, last_observation_times
from cru.forecaster.scoring import score_rows
from cru.forecaster.series_view import predict_curves
from cru.forecaster.view_data import choose_horizon, write_time
from cru.reporting.svg import SeriesFigure, draw_series
from cru.reporting.view_page import choose_curve_times

if TYPE_CHECKING:
    from cru.forecaster.backtest import Backtest
    from cru.forecaster.estimator import Forecaster


@dataclass(frozen=True)
class NotebookConstants:
    """Sizes of the representation in notebooks."""

    points: int = 300  # of the curves
    max_observations: int = 400  # in the figure, the last ones of the series
    frequent_share: float = 0.3  # a frequent variable has this share of the observations of the most frequent one
    max_rows: int = 12  # of the table of scores


NOTEBOOK = NotebookConstants()


def describe(forecaster: "Forecaster") -> str:
    """Return HTML: the text representation and, if fitted, the scores, and a figure if there is a training table."""
    title = f"<code>{escape(printable(repr(forecaster)))}</code>"
    if not forecaster.__sklearn_is_fitted__():
        return f"<div>{title}</div>"
    parts = [title, _summary(forecaster), _figure(forecaster), _table(forecaster.scores_["table"], "scores_['table']")]
    return "<div>" + "".join(f"<div>{part}</div>" for part in parts if part) + "</div>"


def describe_backtest(backtest: "Backtest") -> str:
    """Return HTML: the number of predictions, and the scores by variable and lead time."""
    rows = score_rows(backtest.comparison)["table"]
    title = f"<code>Backtest</code> of {len(backtest.comparison.variable_of):,} predictions"
    return f"<div><div>{title}</div><div>{_table(rows, 'scores()')}</div></div>"


def _summary(forecaster: "Forecaster") -> str:
    scores = forecaster.scores_
    words = [f"R² {scores['r2']:.3f} (last value: {scores['r2_last_value']:.3f})"]
    if "coverage90" in scores:
        words.append(f"{scores['coverage90']:.1%} inside the 90 % interval")
    return f"{', '.join(words)}, on {scores['count']:,.0f} withheld values of {scores['series']:,.0f} series"


def _figure(forecaster: "Forecaster") -> str:
    """Draw the first frequent variable of the series with most observations, with a forecast."""
    if forecaster.history_ is None:
        return ""
    table = forecaster._series(None)
    series = drop_empty_rows(table)
    number = int(series.lengths.argmax())
    one, whole = series.take([number]), table.take([number])
    count = one.mask.sum(0)
    variable = int((count >= NOTEBOOK.frequent_share * count.max()).argmax())
    last = float(last_observation_times(one)[0])
    first = one.times[max(0, len(one.times) - NOTEBOOK.max_observations)]
    shown = one.times >= first
    ahead = max(min(choose_horizon(forecaster, series), (last - first) / 4), forecaster.gap_)
    times = choose_curve_times(one.times[shown], ahead, NOTEBOOK.points, causal=forecaster.model_.causal)
    prediction = predict_curves(forecaster, forecaster.query(whole, [times], hold=True), (50.0, 90.0))
    seen = shown & one.mask[:, variable]
    bands = {
        level: (prediction.bounds[f"lo-{level:g}"][:, variable], prediction.bounds[f"hi-{level:g}"][:, variable])
        for level in (50.0, 90.0)
    }
    name = f"{forecaster.columns_.id} {one.ids[0]}: " if forecaster.columns_.id else ""
    labels = [write_time(forecaster.clock_, float(time)) for time in (times[0], last, times[-1])]
    return draw_series(
        SeriesFigure(
            printable(f"{name}{forecaster.names_[variable]}"),
            one.times[seen],
            one.values[seen, variable].astype(np.float64),
            times,
            prediction.mean[:, variable],
            bands,
            last,
            tuple(labels),
        )
    )


def _table(rows: list[dict[str, Any]], whole: str) -> str:
    """Make the table of scores, with the best of each row in bold. ``whole`` is the code for all of its rows."""
    if not rows:
        return ""
    models = [name for name in rows[0] if name not in ("variable", "lead", "count")]
    head = "".join(f"<th>{escape(name)}</th>" for name in ("variable", "lead time", "values", *models))
    body = ""
    for row in rows[: NOTEBOOK.max_rows]:
        best = min(float(row[name]) for name in models)
        cells = [f"<b>{row[name]:.3f}</b>" if row[name] == best else f"{row[name]:.3f}" for name in models]
        texts = [escape(printable(str(row["variable"]))), escape(printable(str(row["lead"]))), f"{row['count']:,.0f}"]
        body += "<tr>" + "".join(f"<td>{text}</td>" for text in [*texts, *cells]) + "</tr>"
    more = (
        f"<div>{len(rows) - NOTEBOOK.max_rows} more rows are in <code>{whole}</code>.</div>"
        if len(rows) > NOTEBOOK.max_rows
        else ""
    )
    caption = "<caption>Mean absolute error, in standard deviations</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"
