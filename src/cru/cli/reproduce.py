"""``cru reproduce``: all experiments of the paper."""

from pathlib import Path
from typing import Annotated

import typer

from cru.cli.options import DEFAULT_LEDGER, DataDir, Ledger, find_own_code
from cru.cli.printing import make_console
from cru.cli.signals import sigterm_as_interrupt
from cru.errors import RunError


def reproduce(
    groups: Annotated[
        list[str] | None,
        typer.Argument(
            help="PRESETS:MODELS:SEEDS, each separated by commas. Groups run in order. They replace "
            "--presets, --models and --seeds."
        ),
    ] = None,
    presets: Annotated[
        str, typer.Option(help="Presets, separated by commas. Default: those of Tables 1-3 and of the figures.")
    ] = "",
    models: Annotated[str, typer.Option(help="Models, separated by commas. Default: all.")] = "",
    seeds: Annotated[int, typer.Option(help="Number of seeds of each model: 0, 1, ...", min=1)] = 5,
    hours: Annotated[float, typer.Option(help="Time limit.", min=0.0)] = 2.0,
    jobs: Annotated[int, typer.Option(help="Number of parallel runs, with one thread each.", min=1)] = 2,
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    ledger: Ledger = DEFAULT_LEDGER,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the missing runs.")] = False,
) -> None:
    """Run the experiments of the paper that are not in the ledger, the shortest first, then those of the figures.

    Run the command again to continue.
    """
    from cru.reporting.ledger import read
    from cru.reporting.reproduction import Group, missing_in, split_names
    from cru.reporting.reproduction import reproduce as run_all
    from cru.reporting.run_figures import RUNS

    find_own_code(models)
    console = make_console()
    selected = [Group.parse(text) for text in groups or []]
    selected = selected or [Group(split_names(presets), split_names(models), seeds)]  # a model may be "module:Class"
    if not (groups or presets or models):
        selected += RUNS.values()
    cells = missing_in(selected, ledger_path=ledger, folder=out)
    total = sum(cell.seconds for cell in cells) / 3600
    source = "" if read(ledger) else ", estimated from the epoch times of the paper, which are far too long"
    console.print(f"{len(cells)} runs are missing, about {total:.1f} hours on one core{source}.", soft_wrap=True)
    if dry_run:
        for cell in cells:
            console.print(f"{cell.title}  about {cell.seconds / 60:.0f} min", soft_wrap=True)
        return

    def say(line: str) -> None:
        console.print(line, soft_wrap=True)

    with sigterm_as_interrupt():  # an interrupt also stops the runs
        failed = run_all(cells, hours=hours, jobs=jobs, ledger_path=ledger, data_dir=data_dir, say=say)
    left = len(missing_in(selected, ledger_path=ledger, folder=out))
    console.print(f"{left} runs are still missing." if left else "The ledger is complete: see `cru table`.")
    if failed:
        raise RunError(f"{len(failed)} runs failed: {', '.join(failed)}.")
