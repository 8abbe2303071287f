"""``cru impute``: estimates of every missing value of a table."""

from cru.cli.options import AllowCode, Level, ModelFolder, Observations, TableFile, load_forecaster
from cru.cli.printing import make_console, print_warnings


def impute(
    model: ModelFolder,
    out: TableFile,
    table: Observations = None,
    level: Level = None,
    allow_code: AllowCode = False,
) -> None:
    """Estimate missing values and write a long table: id, time, variable, mean, median, std and intervals."""
    from cru.data.table_files import write_file
    from cru.forecaster.table_io import check_ending

    check_ending(out)
    forecaster, console = load_forecaster(model, allow_code=allow_code), make_console()
    with print_warnings(console):
        predictions = forecaster.impute(table, level=level or [50, 90])
        write_file(predictions, out)
    console.print(f"{len(predictions):,} missing values in {out}.", soft_wrap=True)
