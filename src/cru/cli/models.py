"""``cru models``: the models with their numbers of parameters, or the options of one model."""

from typing import Annotated

import typer

from cru.cli.options import find_own_code
from cru.cli.printing import make_console


def models(
    name: Annotated[str | None, typer.Argument(help="A model, to show its options. Default: list all models.")] = None,
) -> None:
    """List the models with their parameter counts at the sizes of the paper, or show the options of one."""
    from rich.table import Table

    from cru.models import MODELS

    console = make_console()
    if name is not None:
        from dataclasses import fields

        from cru.models.registry import entry

        find_own_code(name)
        table = Table("option", "type", "default", box=None, pad_edge=False)
        for field in fields(entry(name).model.Config):
            table.add_row(field.name, _type_name(field.type), str(field.default))
        console.print(f"{name}: {entry(name).about}")
        console.print(table if table.row_count else "This model has no options.")
        return
    from cru.training.paper import PAPER_DATASETS

    table = Table("name", "description", box=None, pad_edge=False)
    for dataset in PAPER_DATASETS:
        table.add_column(dataset.replace("-", "\n"), justify="right")
    for model, about in MODELS.items():
        table.add_row(model, about.about, *(_count(model, dataset) for dataset in PAPER_DATASETS))
    console.print(table)
    console.print(
        "\nNumber of parameters at the sizes of the paper. A dash means that the model does not support the task.",
        soft_wrap=True,
    )


def _count(model: str, dataset: str) -> str:
    from cru.training.paper import create_paper

    try:
        return f"{create_paper(model, dataset).num_parameters:,}"
    except ValueError:
        return "-"


def _type_name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("torch.nn.modules.module.", "nn.")
