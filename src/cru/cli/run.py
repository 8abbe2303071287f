"""``cru run``: training and scores of one model on one preset with one seed."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cru.cli.options import DEFAULT_LEDGER, DataDir, Ledger, find_own_code
from cru.cli.printing import make_console
from cru.cli.signals import sigterm_as_interrupt

if TYPE_CHECKING:
    from cru.training.settings import RunSettings


def run(
    preset: Annotated[str, typer.Argument(help="A preset of `cru list`, or the path of a TOML file.")],
    model: Annotated[str, typer.Option(help="A model of `cru list`, or module:Class of your own.")] = "cru",
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of the initial weights and the order of series. For the data, use --set data.seed=.", min=0
        ),
    ] = 0,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting, such as training.epochs=5. Repeat the option for several.",
        ),
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run. Default: runs/PRESET/MODEL-SEED.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    ledger: Ledger = DEFAULT_LEDGER,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write curves for TensorBoard.")] = False,
) -> None:
    """Train a model on an experiment and score it on the test set.

    Under `torchrun` or `accelerate launch` several processes train together.
    """
    from cru.training.presets import settings_for

    find_own_code(model)
    settings = settings_for(preset, model, seed=seed, changes=change or [])
    folder = out or default_folder(settings)
    try:
        with sigterm_as_interrupt():
            train(settings, folder, data_dir=data_dir, resume=resume, ledger_path=ledger, tensorboard=tensorboard)
    except KeyboardInterrupt:
        hint = "its last epoch is stored. Continue with --resume." if _started(folder) else ""
        raise KeyboardInterrupt(hint or "its first epoch was not complete.") from None


def default_folder(settings: "RunSettings") -> Path:
    """Return the default folder of a run. Changed settings add a hash to its name."""
    from cru.training.presets import changed_from_preset

    name = f"{settings.model.name}-{settings.seed}"
    suffix = f"-{settings.hash[:8]}" if changed_from_preset(settings) else ""
    return Path("runs") / (settings.preset or "own") / (name + suffix)


def train(
    settings: "RunSettings", folder: Path, *, ledger_path: Path, tensorboard: bool = False, **options: Any
) -> None:
    """Train and score a model, add it to the ledger, and print progress and scores.

    ``options`` are those of `cru.training.run`.
    """
    from cru.errors import RunError
    from cru.reporting import ledger
    from cru.training.callbacks import CallbackList, TensorBoard, make_progress_callback
    from cru.training.loop import Engine
    from cru.training.run import run

    engine, console = Engine(), make_console()
    title = f"{settings.preset} {settings.model.name} seed {settings.seed}"
    callback = make_progress_callback(settings.model.name, stream=sys.stdout, lines=True)
    if tensorboard and engine.main:
        callback = CallbackList(callback, TensorBoard(folder / "tensorboard"))
    if engine.main:
        console.print(f"{title}  in {folder}", soft_wrap=True)
    try:
        record = run(settings, folder, callback=callback, engine=engine, progress=console.is_terminal, **options)
    except RunError as error:
        if _started(folder):
            error.add_note(f"Its last epoch is stored in {folder}. Continue with --resume.")
        raise
    if engine.main:
        ledger.append(ledger_path, record)
        _show(record, folder)
    _end_process_group(engine)


def _show(record: dict[str, Any], folder: Path) -> None:
    from rich.table import Table

    rows = {f"{name} epoch, {record['scores'][name]['epoch']}": record["scores"][name] for name in ("best", "last")}
    scored = record["scores"]["best"]["test"]["scored"]
    metrics = [name for name in record["scores"]["best"]["test"][scored] if name != "count"]
    table = Table(f"test set, {scored} targets", *metrics, box=None, pad_edge=False)
    for name, scores in rows.items():
        found = scores["test"][scored]  # the last epoch has no score of Rubanova et al.
        table.add_row(name, *(f"{found[metric]:.5g}" if metric in found else "–" for metric in metrics))
    console = make_console()
    console.print(table)
    short = ", shortened" if record["shortened"] else ""
    seconds = f"{record['seconds_per_epoch']:.1f} s per epoch, {record['parameters']:,} parameters{short}"
    console.print(f"{seconds}. Stored in {folder}.", soft_wrap=True)


def _started(folder: Path) -> bool:
    return (folder / "last.safetensors").exists()


def _end_process_group(engine: Any) -> None:
    """End the process group, if there is one, so that no process waits for another."""
    if engine.share[1] > 1:
        engine.end()
