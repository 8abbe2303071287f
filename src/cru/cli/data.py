"""``cru data``: the commands that list, prepare and show datasets, and write sample tables."""

from pathlib import Path
from typing import Annotated

import typer

from cru.cli.options import DataDir, FigureFile, TableFile
from cru.cli.printing import make_console

app = typer.Typer(help="List, prepare and show datasets, and write sample tables.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A dataset of `cru data list`.")]
Seed = Annotated[int, typer.Option(help="Seed of the simulation, the split and the subsampling.", min=0)]


@app.command("list")
def list_() -> None:
    """Show the datasets and whether they are prepared."""
    from rich.table import Table

    from cru.data.cache import cache_dir, prepared
    from cru.data.datasets import DATASETS

    table = Table("name", "description", "source", "prepared", box=None, pad_edge=False)
    for entry in DATASETS.values():
        table.add_row(entry.name, entry.about, entry.source, ", ".join(prepared(entry.name)) or "not yet")
    make_console().print(table)
    make_console().print(f"\nPrepared data is stored in {cache_dir()}.", soft_wrap=True)


@app.command()
def sample(name: Annotated[str, typer.Argument(help="A sample table: weather.")], out: TableFile) -> None:
    """Write a sample table to a file, to try the other commands."""
    from cru.data import sample as sample_table
    from cru.data.table_files import write_file
    from cru.forecaster.table_io import check_ending

    check_ending(out)
    table = sample_table(name)
    write_file(table, out)
    make_console().print(f"{len(table):,} rows in {out}: {', '.join(table.columns)}.", soft_wrap=True)


@app.command()
def prepare(name: Name, data_dir: DataDir = None, seed: Seed = 0) -> None:
    """Prepare a dataset: find or download the raw files, read them, and store the result."""
    import time

    from cru.data.cache import cache_dir
    from cru.data.datasets import dataset

    start = time.perf_counter()
    splits = dataset(name).load(data_dir=data_dir, seed=seed, progress=make_console().is_terminal)
    counts = ", ".join(f"{len(part):,} {which}" for which, part in zip(splits._fields, splits, strict=True))
    took = time.perf_counter() - start
    make_console().print(f"{name} is ready in {took:.1f} s: {counts} series. Stored in {cache_dir()}.", soft_wrap=True)


@app.command()
def show(
    name: Name,
    data_dir: DataDir = None,
    seed: Seed = 0,
    out: FigureFile = None,
) -> None:
    """Show counts, gaps and missing rates of the training set, and draw some of its series or images."""
    from rich.table import Table

    from cru.data import summary
    from cru.data.datasets import dataset
    from cru.reporting.figures import check_path, draw_dataset, save

    entry = dataset(name)
    path = check_path(out or Path(f"{name}.png"))  # before the long computation
    splits = entry.load(data_dir=data_dir, seed=seed, progress=make_console().is_terminal, **entry.as_measured)
    sizes = Table("", *splits._fields, box=None, pad_edge=False)
    columns = [summary.overview(part) for part in splits]
    for rows in zip(*columns, strict=True):
        sizes.add_row(rows[0][0], *(figure for _, figure in rows))
    console = make_console()
    console.print(sizes)
    rows_of_features = summary.features(splits.train)
    if rows_of_features:
        table = Table("training set", "unit", "missing", "min", "mean", "max", box=None, pad_edge=False)
        for row in rows_of_features:
            table.add_row(*row)
        console.print("", table, sep="\n")
    save(draw_dataset(splits.train, title=f"{name}: {entry.about}"), path)
    console.print(f"\nPicture: {path}", soft_wrap=True)
