"""Every figure from the folders of runs, by name."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cru.errors import InputError, literal
from cru.evaluation.diagnosis import calibration, error_by_gap, gain_groups
from cru.evaluation.evaluate import SeriesPrediction
from cru.reporting import figures
from cru.reporting.figures.comparisons import Learning
from cru.reporting.figures.images import pick_by_noise
from cru.reporting.reproduction import Group
from cru.reporting.run_folder import RunFolder, RunPredictions, predict_test_series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_REGRESSION = Group(["pendulum-regression"], ["cru", "f-cru", "rkn-dt", "gru-dt"], 1)
RUNS = {
    "gain-noise": Group(["pendulum-regression"], ["cru", "f-cru"], 1),
    "gain-sparseness": Group(["ushcn-sparseness"], ["cru"], 1),
    "trajectory": Group(["pendulum-interpolation"], ["f-cru", "paired-smoother"], 1),  # the paper's model beside ours
    "curves": _REGRESSION,
    "calibration": _REGRESSION,
    "gaps": Group(["pendulum-interpolation"], ["cru", "f-cru", "rkn-dt", "gru-dt", "paired-smoother"], 1),
    "series": Group(["ushcn-extrapolation"], ["paired"], 1),
}
"""The full runs that each figure of docs/gallery.md is made from; "runtime" needs none."""


class FigureInput(NamedTuple):
    """What a figure is made from."""

    folders: list[RunFolder]
    series: str | None = None  # the id of a test series
    most: int = 200  # test series that are looked at
    data_dir: Path | str | None = None
    allow_code: bool = False  # import a model outside this library that a run names

    @property
    def title(self) -> str:
        """The experiments, in a line."""
        return ", ".join(dict.fromkeys(folder.settings.preset or "own" for folder in self.folders))

    def tested(self) -> list[RunPredictions]:
        """One run of each model on its test series."""
        chosen = {folder.model: folder for folder in reversed(self.folders)}
        first = [folder for folder in self.folders if chosen[folder.model] is folder]
        return list(predict_test_series(first, count=self.most, data_dir=self.data_dir, allow_code=self.allow_code))

    def one(self) -> tuple[RunPredictions, SeriesPrediction]:
        """The first run, and the series that is to be shown of it."""
        tested = next(
            predict_test_series(self.folders[:1], count=self.most, data_dir=self.data_dir, allow_code=self.allow_code)
        )
        return tested, self.chosen(tested.outputs)

    def chosen(self, outputs: list[SeriesPrediction]) -> SeriesPrediction:
        """The series asked for, or a telling one."""
        if self.series is None:
            return pick_by_noise(outputs)
        found = [output for output in outputs if output.id == self.series]
        if not found:
            rule = literal(
                f"be the id of one of the first {len(outputs)} test series, {outputs[0].id} to {outputs[-1].id}"
            )
            raise InputError("series", rule, repr(self.series))
        return found[0]


def draw(name: str, material: FigureInput) -> "Figure":
    """The figure ``name`` of `FIGURES`.

    >>> draw("curves", FigureInput(find_folders([Path("runs/pendulum-regression")])))  # doctest: +SKIP
    """
    if name != "runtime" and not material.folders:
        raise ValueError(f"the figure {name!r} needs the folder of a run: cru figure {name} runs/PRESET/MODEL-SEED.")
    if name in ("gain-noise", "trajectory", "curves", "calibration", "gaps"):
        kinds = {
            folder.experiment: folder.settings.preset or f"own data ({folder.path})" for folder in material.folders
        }
        if len(kinds) > 1:
            named = ", ".join(kinds.values())
            raise ValueError(f"the figure {name!r} is of one experiment, these runs are of {named}: name one folder.")
    return FIGURES[name](material)


def _runtime(_: FigureInput) -> "Figure":
    return figures.draw_runtime(figures.measure_runtime(), title="one layer, batch 20, 20 steps, one thread")


def _gain_noise(material: FigureInput) -> "Figure":
    tested = material.tested()
    outputs = {one.folder.model: material.chosen(one.outputs) for one in tested}
    shown = {model: output for model, output in outputs.items() if output.gain is not None} or outputs
    title = tested[0].folder.title if len(tested) == 1 else material.title
    first = next(iter(shown.values()))
    title = f"{title}: test sequence {first.id}"
    return figures.draw_gain_noise(shown, time_unit=tested[0].test.time_unit, title=title)


def _gain_sparseness(material: FigureInput) -> "Figure":
    tested, _ = material.one()
    if tested.test.is_image or any(output.gain is None for output in tested.outputs):
        raise ValueError(
            "the figure 'gain-sparseness' needs features and a Kalman gain: ushcn-sparseness with cru, say."
        )
    features = len(tested.test.names)
    return figures.draw_gain_sparseness(gain_groups(tested.outputs), features=features, title=tested.folder.title)


def _trajectory(material: FigureInput) -> "Figure":
    tested = material.tested()
    shown = {one.folder.model: material.chosen(one.outputs) for one in tested}
    title = f"{material.title}: test sequence {next(iter(shown.values())).id}"
    return figures.draw_trajectory(shown, time_unit=tested[0].test.time_unit, title=title)


def _curves(material: FigureInput) -> "Figure":
    runs: dict[str, list[Learning]] = {}
    for folder in material.folders:
        scores = [line["validation"][line["validation"]["scored"]]["mse"] for line in folder.log]
        if scores:
            runs.setdefault(folder.model, []).append(Learning([line["epoch"] for line in folder.log], scores))
    if not runs:
        raise ValueError("the figure 'curves' needs runs of models that are trained: none of these has a log.")
    return figures.draw_curves(runs, title=material.title)


def _calibration(material: FigureInput) -> "Figure":
    found = {one.folder.model: calibration(one.outputs, scored=one.scored) for one in material.tested()}
    curves = {model: curve for model, curve in found.items() if curve is not None}
    if not curves:
        raise ValueError("the figure 'calibration' needs Gaussian predictions: images have no intervals.")
    return figures.draw_calibration(curves, title=material.title)


def _gaps(material: FigureInput) -> "Figure":
    tested = material.tested()
    curves = {one.folder.model: error_by_gap(one.outputs, scored=one.scored, scale=one.scale) for one in tested}
    if not any(curve.x for curve in curves.values()):
        raise ValueError("the figure 'gaps' needs targets after a first reading: these test series have none.")
    first = tested[0]
    error = f"RMSE [{first.error_unit}]"
    return figures.draw_gaps(curves, time_unit=first.test.time_unit, error=error, title=material.title)


def _series(material: FigureInput) -> "Figure":
    tested, shown = material.one()
    names, units = tested.folder.target_names(tested.test)
    title = f"{tested.folder.title}: test series {shown.id}"
    return figures.draw_series(
        shown,
        regression=tested.folder.settings.data.task == "regression",
        names=names,
        units=units,
        time_unit=tested.test.time_unit,
        title=title,
    )


FIGURES: "dict[str, Callable[[FigureInput], Figure]]" = {
    "runtime": _runtime,
    "gain-noise": _gain_noise,
    "gain-sparseness": _gain_sparseness,
    "trajectory": _trajectory,
    "curves": _curves,
    "calibration": _calibration,
    "gaps": _gaps,
    "series": _series,
}
