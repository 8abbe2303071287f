"""``cru anomalies``: the p-value of each observation of a table."""

from pathlib import Path
from typing import Annotated

import typer

from cru.cli.options import AllowCode, ModelFolder, TableFile, find_own_code
from cru.cli.printing import make_console, print_warnings


def anomalies(
    model: ModelFolder,
    out: TableFile,
    table: Annotated[
        Path | None, typer.Argument(help="Table with the columns of the training table. Default: the training table.")
    ] = None,
    level: Annotated[float, typer.Option(help="An observation with a smaller p-value is an anomaly.")] = 0.001,
    allow_code: AllowCode = False,
) -> None:
    """Compare every observation with its prediction from earlier ones, and write a long table with p-values."""
    from cru.data.table_files import write_file
    from cru.forecaster import Forecaster
    from cru.forecaster.table_io import check_ending

    check_ending(out)
    find_own_code(allow_code=allow_code)
    forecaster, console = Forecaster.load(model, allow_code=allow_code), make_console()
    with print_warnings(console):
        found = forecaster.anomalies(table, level=level)
        write_file(found, out)
    count = int(found["anomaly"].sum())
    console.print(f"{count:,} of {len(found):,} observations are anomalies. All are in {out}.", soft_wrap=True)
