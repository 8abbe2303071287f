"""``cru table``: the tables of the paper with our scores."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cru.cli.options import DEFAULT_LEDGER, DataDir, Ledger
from cru.cli.printing import make_console
from cru.cli.signals import sigterm_as_interrupt
from cru.errors import InputError


class EpochChoice(StrEnum):
    """The epoch whose weights are scored."""

    best = "best"
    last = "last"


def table(
    number: Annotated[int | None, typer.Argument(help="Number of the table. Default: all.", min=1, max=3)] = None,
    ledger: Ledger = DEFAULT_LEDGER,
    epoch: Annotated[
        EpochChoice,
        typer.Option(help="Scored epoch: the best on the validation set, or the last, as in the published runs."),
    ] = EpochChoice.best,
    out: Annotated[Path | None, typer.Option(help="Write Markdown to this file instead.")] = None,
    time: Annotated[
        bool,
        typer.Option("--time", help="First measure the epoch times for Tables 1 and 2. This takes up to an hour."),
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Show Tables 1, 2 and 3 of the paper, with its scores and ours side by side.

    --time stores its measurements in seconds.json next to the ledger.
    """
    from cru.reporting import render
    from cru.reporting.ledger import compare_with_presets, read
    from cru.reporting.paper_tables import count_left_out, others, tables
    from cru.reporting.timing import read_seconds

    watch = ledger.with_name("seconds.json")
    if time:
        _measure(number, watch, data_dir)
    entries, seconds = compare_with_presets(read(ledger)), read_seconds(watch)
    chosen = [one for one in tables(entries, epoch=epoch.value, seconds=seconds) if number in (None, one.number)]
    left_out, more = count_left_out(entries), others(entries, epoch=epoch.value) if number is None else []
    console = make_console()
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(render.markdown(chosen, left_out, more, epoch=epoch.value), encoding="utf-8")
        console.print(f"Written to {out}.", soft_wrap=True)
        return
    for one in chosen:
        console.print(f"Table {one.number}. {one.title}\n", soft_wrap=True)
        for part in render.terminal(one):
            console.print(part, "", sep="\n")
        for sentence in [*render.beaten(one), *render.open_cells(one)]:
            console.print(sentence, soft_wrap=True)
    if more:
        console.print("\nExperiments of ours\n", render.grid(render.other_rows(more)), "", sep="\n")
    console.print(render.legend(epoch.value), soft_wrap=True)
    if not entries:
        console.print(f"There is no run in {ledger} yet. Use `cru reproduce`.", soft_wrap=True)
    if left_out:
        console.print(f"{left_out} shortened or changed runs in {ledger} are not shown.", soft_wrap=True)


def _measure(number: int | None, path: Path, data_dir: Path | None) -> None:
    from cru.reporting.paper_tables import timed_presets
    from cru.reporting.timing import add_seconds, measure_presets

    console, presets = make_console(), timed_presets(number)
    if not presets:
        raise InputError("number", "be 1 or 2 with {time}", number, "Table 3 has no times.")

    def say(line: str) -> None:
        console.print(line, soft_wrap=True)

    with sigterm_as_interrupt():
        for preset, seconds in measure_presets(presets, data_dir=data_dir, say=say):
            add_seconds(path, preset, seconds)
