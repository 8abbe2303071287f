"""``cru table``: the paper's tables, its numbers and ours."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cru.cli.console import make_console
from cru.cli.run import DEFAULT_LEDGER, Ledger


class Epoch(StrEnum):
    """Which weights are scored."""

    best = "best"
    last = "last"


def table(
    number: Annotated[int | None, typer.Argument(help="1, 2 or 3; all by default.", min=1, max=3)] = None,
    ledger: Ledger = DEFAULT_LEDGER,
    epoch: Annotated[Epoch, typer.Option(help="The best epoch on validation, or the last, as published.")] = Epoch.best,
    out: Annotated[Path | None, typer.Option(help="Write Markdown to this file instead.")] = None,
) -> None:
    """Show the paper's Tables 1, 2 and 3 with its numbers and ours side by side."""
    from cru.evaluation import render
    from cru.evaluation.ledger import read
    from cru.evaluation.tables import count_left_out, others, tables
    from cru.training.run import as_of_now

    entries = as_of_now(read(ledger))
    chosen = [one for one in tables(entries, epoch=epoch.value) if number in (None, one.number)]
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
    console.print(f"{render.EPOCHS[epoch.value]} {render.LEGEND}", soft_wrap=True)
    if not entries:
        console.print(f"There is no run in {ledger} yet: `cru reproduce` makes them.", soft_wrap=True)
    if left_out:
        console.print(f"{left_out} shortened or changed runs in {ledger} are not shown.", soft_wrap=True)
