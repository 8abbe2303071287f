"""``cru anomalies``: the p-value of each observation of a table."""

from typing import Annotated

import typer

from cru.cli.options import AllowCode, ModelFolder, Observations, TableFile, load_forecaster
from cru.cli.printing import make_console, print_warnings


def anomalies(
    model: ModelFolder,
    out: TableFile,
    table: Observations = None,
    significance: Annotated[float, typer.Option(help="An observation with a smaller p-value is an anomaly.")] = 0.001,
    allow_code: AllowCode = False,
) -> None:
    """Compare every observation with its prediction from earlier ones, and write a long table with p-values."""
    from cru.data.table_files import write_file
    from cru.forecaster.anomalies import check_level
    from cru.forecaster.table_io import check_ending

    check_ending(out)
    level = check_level(significance, "significance")
    forecaster, console = load_forecaster(model, allow_code=allow_code), make_console()
    with print_warnings(console):
        found = forecaster.anomalies(table, level=level)
        write_file(found, out)
    count = int(found["anomaly"].sum())
    console.print(f"{count:,} of {len(found):,} observations are anomalies. All are in {out}.", soft_wrap=True)
