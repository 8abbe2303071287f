"""The model card: a README.md that describes a saved forecaster."""

from typing import TYPE_CHECKING

import cru
from cru.forecaster.calibration import UNMEASURED, guarantee
from cru.forecaster.table_io import Columns

if TYPE_CHECKING:
    from cru.forecaster.estimator import Forecaster


def _describe_roles(columns: Columns) -> str:
    """Return the sentences of the card about known and static columns."""
    sentences = [
        f"{title}: {', '.join(f'`{name}`' for name in names)}.\n"
        for title, names in (("Known at every time", columns.known), ("Static", columns.static))
        if names
    ]
    return "".join(sentences)


def model_card(forecaster: "Forecaster", *, history: bool) -> str:
    """Write the card in Markdown: scores, variables, and how to load the folder.

    Args:
        forecaster: a fitted forecaster.
        history: whether the folder holds the observations of the training table.
    """
    scores, columns = forecaster.scores_, forecaster.columns_
    series = forecaster.history_
    rows = [
        ("R²", f"{scores['r2']:.3f}"),
        ("R² of the last value, for comparison", f"{scores['r2_last_value']:.3f}"),
        ("mean absolute error, in standard deviations", f"{scores['mae']:.3f}"),
        *(
            (f"inside the {n} % interval", f"{scores[f'coverage{n}']:.1%}")
            for n in (50, 90)
            if f"coverage{n}" in scores
        ),
    ]
    measured = forecaster.calibration_.measured
    doubt = f"\n{guarantee(int(scores['series'])) if measured else UNMEASURED}\n"
    table = "\n".join(f"| {name} | {figure} |" for name, figure in rows)
    size = f"{len(series):,} series, {len(series.times):,} time points" if series is not None else "a table"
    observations = (
        "`history-….npz` holds the observations of the training table, and `forecast` starts at its end. They may be "
        "confidential: `save(folder, history=False)` leaves them out."
        if history
        else "The folder holds no observations: pass a table to `forecast`."
    )
    known = list(forecaster.kinds_)
    names = ", ".join(f"`{name}`" for name in known[:20]) + (" ..." if len(known) > 20 else "")
    return f"""# A forecaster for irregular series

`{forecaster.name_}` with {forecaster.model_.num_parameters:,} parameters, fitted by cru {cru.__version__} to {size}:
{names}, with times in `{columns.time}`{f" and series named by `{columns.id}`" if columns.id else ""}.

| on {scores["count"]:,} withheld values of {scores["series"]:,} validation series | |
|---|---|
{table}
{doubt}
Kinds of values: {forecaster.kinds_.describe()}.
{_describe_roles(columns)}
```python
from cru import Forecaster

model = Forecaster.load(".")
```

{observations}
"""
