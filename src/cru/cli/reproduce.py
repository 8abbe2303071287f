"""``cru reproduce``: the paper's whole grid."""

from pathlib import Path
from typing import Annotated

import typer

from cru.cli.console import make_console
from cru.cli.options import DEFAULT_LEDGER, DataDir, Ledger, find_own_code
from cru.cli.signals import terminated_like_interrupted
from cru.errors import RunError


def reproduce(
    groups: Annotated[
        list[str] | None,
        typer.Argument(help="PRESETS:MODELS:SEEDS, with commas; group after group, in place of the options."),
    ] = None,
    presets: Annotated[
        str, typer.Option(help="Which experiments, with commas; those of Tables 1-3 and the figures by default.")
    ] = "",
    models: Annotated[str, typer.Option(help="Which models, with commas; all by default.")] = "",
    seeds: Annotated[int, typer.Option(help="Seeds 0, 1, ... of each.", min=1)] = 5,
    hours: Annotated[float, typer.Option(help="Stop after so long.", min=0.0)] = 2.0,
    jobs: Annotated[int, typer.Option(help="Runs at a time, one thread each.", min=1)] = 2,
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    ledger: Ledger = DEFAULT_LEDGER,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what is missing.")] = False,
) -> None:
    """Run what the ledger does not have yet of the paper's tables, cheapest first, then of the figures; call it again
    to go on."""
    from cru.reporting.ledger import read
    from cru.reporting.reproduction import Group, missing_in, split_names
    from cru.reporting.reproduction import reproduce as run_all
    from cru.reporting.run_figures import RUNS

    find_own_code(models)
    console = make_console()
    wanted = [Group.parse(text) for text in groups or []]
    wanted = wanted or [Group(split_names(presets), split_names(models), seeds)]  # a model may be "module:Class"
    if not (groups or presets or models):
        wanted += RUNS.values()
    cells = missing_in(wanted, ledger_path=ledger, folder=out)
    total = sum(cell.seconds for cell in cells) / 3600
    source = "" if read(ledger) else ", by the paper's own seconds, which is far too long"
    console.print(f"{len(cells)} runs are missing, about {total:.1f} hours on one core{source}.", soft_wrap=True)
    if dry_run:
        for cell in cells:
            console.print(f"{cell.title}  about {cell.seconds / 60:.0f} min", soft_wrap=True)
        return

    def say(line: str) -> None:
        console.print(line, soft_wrap=True)

    with terminated_like_interrupted():  # which stops the runs, too
        failed = run_all(cells, hours=hours, jobs=jobs, ledger_path=ledger, data_dir=data_dir, say=say)
    left = len(missing_in(wanted, ledger_path=ledger, folder=out))
    console.print(f"{left} runs are still missing." if left else "The ledger is complete: see `cru table`.")
    if failed:
        raise RunError(f"{len(failed)} runs failed: {', '.join(failed)}.")
