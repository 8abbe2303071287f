"""``cru impute``: every missing value of a table."""

from pathlib import Path
from typing import Annotated

import typer

from cru.cli.console import make_console, noting
from cru.cli.options import AllowCode, Level, ModelFolder, TableFile, find_own_code


def impute(
    model: ModelFolder,
    out: TableFile,
    table: Annotated[Path | None, typer.Argument(help="With the columns of training; without it, that table.")] = None,
    level: Level = None,
    allow_code: AllowCode = False,
) -> None:
    """Fill in what is missing and write a long table: id, time, variable, mean, std and intervals."""
    from cru.data.table_files import write_file
    from cru.forecaster import Forecaster
    from cru.forecaster.table_io import check_ending

    check_ending(out)
    find_own_code(allow_code=allow_code)
    forecaster, console = Forecaster.load(model, allow_code=allow_code), make_console()
    with noting(console):
        answers = forecaster.impute(table, level=level or [50, 90])
        write_file(answers, out)
    console.print(f"{len(answers):,} missing values in {out}.", soft_wrap=True)
