"""``cru list``: the presets, models and datasets."""

from cru.cli.printing import make_console


def list_() -> None:
    """Show presets, models and datasets."""
    from rich.table import Table

    from cru.data.datasets import DATASETS
    from cru.models.registry import MODELS
    from cru.training.presets import presets

    kinds = {
        "preset": presets(),
        "model": {name: entry.about for name, entry in MODELS.items()},
        "dataset": {name: entry.about for name, entry in DATASETS.items()},
    }
    console = make_console()
    for kind, known in kinds.items():
        table = Table(kind, "description", box=None, pad_edge=False)
        for name, about in known.items():
            table.add_row(name, about)
        console.print(table, "", sep="\n")
    console.print("cru run PRESET --model MODEL", soft_wrap=True)
