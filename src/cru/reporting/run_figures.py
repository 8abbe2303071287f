"""Figures from the folders of runs, by name."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cru.errors import InputError, literal
from cru.evaluation.diagnostics import calibration, error_by_gap, gain_groups
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
    "trajectory": Group(["pendulum-interpolation"], ["f-cru", "paired-smoother"], 1),
    "curves": _REGRESSION,
    "calibration": _REGRESSION,
    "gaps": Group(["pendulum-interpolation"], ["cru", "f-cru", "rkn-dt", "gru-dt", "paired-smoother"], 1),
    "series": Group(["ushcn-extrapolation"], ["paired"], 1),
}
"""The runs of each figure in docs/gallery.md. The figure "runtime" needs none."""


class FigureInput(NamedTuple):
    """The inputs of a figure."""

    folders: list[RunFolder]
    series: str | None = None  # the id of a test series
    most: int = 200  # number of test series
    data_dir: Path | str | None = None
    allow_code: bool = False  # whether models outside this library may be imported

    @property
    def title(self) -> str:
        """The presets of the runs."""
        return ", ".join(dict.fromkeys(folder.settings.preset or "own" for folder in self.folders))

    def tested(self) -> list[RunPredictions]:
        """Predict the test series of one run of each model."""
        chosen = {folder.model: folder for folder in reversed(self.folders)}
        first = [folder for folder in self.folders if chosen[folder.model] is folder]
        return list(predict_test_series(first, count=self.most, data_dir=self.data_dir, allow_code=self.allow_code))

    def one(self) -> tuple[RunPredictions, SeriesPrediction]:
        """Predict the test series of the first run, and choose one of them."""
        tested = next(
            predict_test_series(self.folders[:1], count=self.most, data_dir=self.data_dir, allow_code=self.allow_code)
        )
        return tested, self.chosen(tested.predictions)

    def chosen(self, predictions: list[SeriesPrediction]) -> SeriesPrediction:
        """Return the requested series, or the one with the most varying noise."""
        if self.series is None:
            return pick_by_noise(predictions)
        found = [prediction for prediction in predictions if prediction.id == self.series]
        if not found:
            span = f"{predictions[0].id} to {predictions[-1].id}"
            rule = literal(f"be the id of one of the first {len(predictions)} test series, {span}")
            raise InputError("series", rule, repr(self.series))
        return found[0]


def draw(name: str, inputs: FigureInput) -> "Figure":
    """Draw the figure ``name`` of `FIGURES`.

    >>> draw("curves", FigureInput(find_folders([Path("runs/pendulum-regression")])))  # doctest: +SKIP
    """
    if name != "runtime" and not inputs.folders:
        raise ValueError(
            f"the figure {name!r} needs the folder of a run. Use cru figure {name} runs/PRESET/MODEL-SEED."
        )
    if name in ("gain-noise", "trajectory", "curves", "calibration", "gaps"):
        kinds = {folder.experiment: folder.settings.preset or f"own data ({folder.path})" for folder in inputs.folders}
        if len(kinds) > 1:
            named = ", ".join(kinds.values())
            raise ValueError(f"the figure {name!r} shows one experiment, got runs of {named}. Name one folder.")
    return FIGURES[name](inputs)


def _runtime(_: FigureInput) -> "Figure":
    return figures.draw_runtime(figures.measure_runtime(), title="one layer, batch 20, 20 steps, one thread")


def _gain_noise(inputs: FigureInput) -> "Figure":
    tested = inputs.tested()
    predictions = {one.folder.model: inputs.chosen(one.predictions) for one in tested}
    shown = {
        model: prediction for model, prediction in predictions.items() if prediction.gain is not None
    } or predictions
    title = tested[0].folder.title if len(tested) == 1 else inputs.title
    first = next(iter(shown.values()))
    title = f"{title}: test sequence {first.id}"
    return figures.draw_gain_noise(shown, time_unit=tested[0].test.time_unit, title=title)


def _gain_sparseness(inputs: FigureInput) -> "Figure":
    tested, _ = inputs.one()
    if tested.test.is_image or any(prediction.gain is None for prediction in tested.predictions):
        raise ValueError(
            "the figure 'gain-sparseness' needs features and a Kalman gain, as in ushcn-sparseness with cru."
        )
    features = len(tested.test.names)
    return figures.draw_gain_sparseness(gain_groups(tested.predictions), features=features, title=tested.folder.title)


def _trajectory(inputs: FigureInput) -> "Figure":
    tested = inputs.tested()
    shown = {one.folder.model: inputs.chosen(one.predictions) for one in tested}
    title = f"{inputs.title}: test sequence {next(iter(shown.values())).id}"
    return figures.draw_trajectory(shown, time_unit=tested[0].test.time_unit, title=title)


def _curves(inputs: FigureInput) -> "Figure":
    runs: dict[str, list[Learning]] = {}
    for folder in inputs.folders:
        scores = [line["validation"][line["validation"]["scored"]]["mse"] for line in folder.log]
        if scores:
            runs.setdefault(folder.model, []).append(Learning([line["epoch"] for line in folder.log], scores))
    if not runs:
        raise ValueError("the figure 'curves' needs runs of trained models, but none of these has a log.")
    return figures.draw_curves(runs, title=inputs.title)


def _calibration(inputs: FigureInput) -> "Figure":
    found = {one.folder.model: calibration(one.predictions, scored=one.scored) for one in inputs.tested()}
    curves = {model: curve for model, curve in found.items() if curve is not None}
    if not curves:
        raise ValueError("the figure 'calibration' needs Gaussian predictions: images have no intervals.")
    return figures.draw_calibration(curves, title=inputs.title)


def _gaps(inputs: FigureInput) -> "Figure":
    tested = inputs.tested()
    curves = {one.folder.model: error_by_gap(one.predictions, scored=one.scored, scale=one.scale) for one in tested}
    if not any(curve.x for curve in curves.values()):
        raise ValueError("the figure 'gaps' needs targets after a first observation, but these test series have none.")
    first = tested[0]
    error = f"RMSE [{first.error_unit}]"
    return figures.draw_gaps(curves, time_unit=first.test.time_unit, error=error, title=inputs.title)


def _series(inputs: FigureInput) -> "Figure":
    tested, shown = inputs.one()
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
