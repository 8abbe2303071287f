"""Every figure from the folders of runs, by name."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cru.evaluation import figures
from cru.evaluation.diagnosis import calibration, error_by_gap, gain_groups
from cru.evaluation.figures.curves import Learning
from cru.evaluation.figures.frames import telling
from cru.evaluation.outputs import Output
from cru.training.folder import RunFolder, Tested, on_test_series

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Material(NamedTuple):
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

    def tested(self) -> list[Tested]:
        """One run of each model on its test series."""
        chosen = {folder.model: folder for folder in reversed(self.folders)}
        first = [folder for folder in self.folders if chosen[folder.model] is folder]
        return list(on_test_series(first, count=self.most, data_dir=self.data_dir, allow_code=self.allow_code))

    def one(self) -> tuple[Tested, Output]:
        """The first run, and the series that is to be shown of it."""
        tested = next(
            on_test_series(self.folders[:1], count=self.most, data_dir=self.data_dir, allow_code=self.allow_code)
        )
        return tested, self.chosen(tested.outputs)

    def chosen(self, outputs: list[Output]) -> Output:
        """The series asked for, or a telling one."""
        if self.series is None:
            return telling(outputs)
        found = [output for output in outputs if output.id == self.series]
        if not found:
            raise ValueError(
                f"`series` must be the id of one of the first {len(outputs)} test series, {outputs[0].id} to "
                f"{outputs[-1].id}, got {self.series!r}."
            )
        return found[0]


def draw(name: str, material: Material) -> "Figure":
    """The figure ``name`` of `FIGURES`.

    >>> draw("curves", Material(find_folders([Path("runs/pendulum-regression")])))  # doctest: +SKIP
    """
    if name != "runtime" and not material.folders:
        raise ValueError(f"the figure {name!r} needs the folder of a run: cru figure {name} runs/PRESET/MODEL-SEED.")
    if name in ("trajectory", "curves", "calibration", "gaps"):
        kinds = {
            folder.experiment: folder.settings.preset or f"own data ({folder.path})" for folder in material.folders
        }
        if len(kinds) > 1:
            named = ", ".join(kinds.values())
            raise ValueError(f"the figure {name!r} is of one experiment, these runs are of {named}: name one folder.")
    return FIGURES[name](material)


def _runtime(_: Material) -> "Figure":
    return figures.draw_runtime(figures.measure_runtime(), title="one layer, batch 20, 20 steps, one thread")


def _gain_noise(material: Material) -> "Figure":
    tested, shown = material.one()
    title = f"{tested.folder.title}: test sequence {shown.id}"
    return figures.draw_gain_noise(shown, time_unit=tested.test.time_unit, title=title)


def _gain_sparseness(material: Material) -> "Figure":
    tested, _ = material.one()
    if tested.test.is_image or any(output.gain is None for output in tested.outputs):
        raise ValueError(
            "the figure 'gain-sparseness' needs features and a Kalman gain: ushcn-sparseness with cru, say."
        )
    features = len(tested.test.names)
    return figures.draw_gain_sparseness(gain_groups(tested.outputs), features=features, title=tested.folder.title)


def _trajectory(material: Material) -> "Figure":
    tested = material.tested()
    shown = {one.folder.model: material.chosen(one.outputs) for one in tested}
    title = f"{material.title}: test sequence {next(iter(shown.values())).id}"
    return figures.draw_trajectory(shown, time_unit=tested[0].test.time_unit, title=title)


def _curves(material: Material) -> "Figure":
    runs: dict[str, list[Learning]] = {}
    for folder in material.folders:
        scores = [line["validation"][line["validation"]["scored"]]["mse"] for line in folder.log]
        if scores:
            runs.setdefault(folder.model, []).append(Learning([line["epoch"] for line in folder.log], scores))
    if not runs:
        raise ValueError("the figure 'curves' needs runs of models that are trained: none of these has a log.")
    return figures.draw_curves(runs, title=material.title)


def _calibration(material: Material) -> "Figure":
    found = {one.folder.model: calibration(one.outputs, scored=one.scored) for one in material.tested()}
    curves = {model: curve for model, curve in found.items() if curve is not None}
    if not curves:
        raise ValueError("the figure 'calibration' needs Gaussian predictions: images have no intervals.")
    return figures.draw_calibration(curves, title=material.title)


def _gaps(material: Material) -> "Figure":
    tested = material.tested()
    curves = {one.folder.model: error_by_gap(one.outputs, scored=one.scored, scale=one.scale) for one in tested}
    if not any(curve.x for curve in curves.values()):
        raise ValueError("the figure 'gaps' needs targets after a first reading: these test series have none.")
    first = tested[0]
    error = f"RMSE [{first.error_unit}]"
    return figures.draw_gaps(curves, time_unit=first.test.time_unit, error=error, title=material.title)


def _series(material: Material) -> "Figure":
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


FIGURES: "dict[str, Callable[[Material], Figure]]" = {
    "runtime": _runtime,
    "gain-noise": _gain_noise,
    "gain-sparseness": _gain_sparseness,
    "trajectory": _trajectory,
    "curves": _curves,
    "calibration": _calibration,
    "gaps": _gaps,
    "series": _series,
}
