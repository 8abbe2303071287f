"""Every picture holds the numbers it was given, names a unit on each axis, and can be written."""

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from PIL import Image

from cru.evaluation.diagnostics import calibration, error_by_gap
from cru.models import MODELS
from cru.reporting import figures
from cru.reporting.figures.comparisons import Learning
from cru.reporting.figures.style import model_style, time_label
from tests.evaluation.handmade import filled_in, frames, weather


def axis_labels(figure):
    """The names on all axes that show numbers."""
    shown = [axis for axis in figure.axes if axis.axison and (len(axis.get_xticks()) or len(axis.get_yticks()))]
    bottom = [axis.get_xlabel() for axis in shown if axis.get_xlabel()]
    return [axis.get_ylabel() for axis in shown if len(axis.get_yticks())] + bottom


MADE = {
    "runtime": lambda: figures.draw_runtime({"cru": {10: 0.01, 20: 0.03}, "f-cru": {10: 0.005, 20: 0.008}}),
    "gain-noise": lambda: figures.draw_gain_noise({"cru": frames(), "f-cru": frames()}, title="a"),
    "gain-sparseness": lambda: figures.draw_gain_sparseness({0: np.arange(9.0), 2: np.arange(5.0)}, features=5),
    "trajectory": lambda: figures.draw_trajectory({"cru": filled_in(), "gru": filled_in()}, title="a"),
    "curves": lambda: figures.draw_curves({"cru": [Learning([1, 2, 3], [3.0, 1.0, 2.0])]}),
    "calibration": lambda: figures.draw_calibration({"cru": calibration([weather()])}),
    "gaps": lambda: figures.draw_gaps({"cru": error_by_gap([weather()])}, time_unit="D", error="RMSE [–]"),
    "series": lambda: figures.draw_series(weather(), regression=False, names="abcde", units=("mm",) * 5, time_unit="D"),
}


@pytest.mark.parametrize("name", MADE)
def test_every_axis_has_a_name_and_a_unit(name):
    labels = axis_labels(MADE[name]())
    assert labels or name == "trajectory"
    assert all("[" in label and "]" in label for label in labels), labels


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_can_be_written(name, kind, tmp_path):
    path = figures.save(MADE[name](), tmp_path / "new" / f"{name}.{kind}")
    if kind == "png":
        pixels = np.asarray(Image.open(path).convert("L"))
        assert pixels.std() > 5  # not blank
    else:
        assert path.read_text().startswith("<?xml") and "<text" in path.read_text()


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`out` must end in .png, .svg or .pdf"):
        figures.save(MADE["runtime"](), tmp_path / "x.gif")


def test_curves_are_the_scores_with_a_dot_on_the_best():
    line, dot = MADE["curves"]().axes[0].lines
    assert line.get_xydata().tolist() == [[1, 3], [2, 1], [3, 2]] and dot.get_xydata().tolist() == [[2, 1]]


def test_curves_of_negative_scores_are_not_on_a_logarithmic_axis():
    axis = figures.draw_curves({"cru": [Learning([1, 2], [1.0, -2.0])]}, metric="nll").axes[0]
    assert axis.get_yscale() == "linear" and "nats" in axis.get_ylabel()
    assert MADE["curves"]().axes[0].get_yscale() == "log"


def test_gain_and_noise_share_the_time_axis_with_the_frames():
    output = frames()
    above, middle, below = figures.draw_gain_noise({"cru": output}).axes
    assert above.get_xlim() == middle.get_xlim() == below.get_xlim()
    np.testing.assert_array_equal(middle.lines[0].get_xydata(), np.stack([output.times, output.gain], 1))
    for image in above.images:
        left, right, _, _ = image.get_extent()
        at = int(np.abs(output.times - (left + right) / 2).argmin())
        assert output.times[at] == pytest.approx((left + right) / 2)  # in the middle above its own time
        np.testing.assert_array_equal(image.get_array(), output.values[at, 0])


def test_every_model_has_a_line_for_its_gain():
    first = frames()
    second = first._replace(gain=first.gain / 2)
    _, middle, _ = figures.draw_gain_noise({"cru": first, "f-cru": second}).axes
    assert [text.get_text() for text in middle.get_legend().get_texts()] == ["CRU", "f-CRU"]
    for line, output in zip(middle.lines, (first, second), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), output.gain)
    with pytest.raises(ValueError, match=r"'gain-noise' shows one test sequence, but f-cru has another"):
        figures.draw_gain_noise({"cru": first, "f-cru": first._replace(values=first.values + 1)})
    with pytest.raises(ValueError, match=r"'gain-noise' needs noisy images and a Kalman gain"):
        figures.draw_gain_noise({"cru": first, "gru": first._replace(gain=None)})


def test_frames_that_were_withheld_have_no_picture_and_no_gain():
    output = frames()
    seen = np.arange(20) % 3 > 0
    output = output._replace(mask=seen.reshape(-1, 1, 1, 1), gain=np.where(seen, output.gain, np.nan))
    above, middle, _ = figures.draw_gain_noise({"cru": output}).axes
    middles = [float(np.mean(image.get_extent()[:2])) for image in above.images]
    assert middles and all(np.isclose(output.times[seen], at).any() for at in middles)
    np.testing.assert_array_equal(middle.lines[0].get_xydata(), np.stack([output.times, output.gain], 1)[seen])


def test_trajectory_has_truth_then_what_was_seen_then_the_model():
    output = filled_in()
    figure = figures.draw_trajectory({"cru": output}, count=10)
    rows = np.reshape(figure.axes, (3, 10))
    assert [row[0].get_ylabel() for row in rows] == ["truth", "seen", "CRU"]
    times = [float(axis.get_xlabel()) for axis in rows[-1]]
    for column, time in enumerate(times):
        k = int(np.flatnonzero(output.times == time)[0])
        np.testing.assert_array_equal(rows[0][column].images[0].get_array(), output.targets[k, 0])
        np.testing.assert_array_equal(rows[2][column].images[0].get_array(), output.mean[k, 0])
        assert bool(rows[1][column].images) == bool(output.observed[k])


def test_series_shows_what_was_seen_and_what_was_withheld():
    output = weather()
    axis = figures.draw_series(output, regression=False, names="abcde", units=("mm",) * 5, time_unit="D").axes[0]
    drawn = {line.get_label(): line.get_xydata() for line in axis.lines}
    seen = output.mask[:, 0]
    np.testing.assert_array_equal(drawn["seen"][:, 1], output.targets[seen, 0])
    np.testing.assert_array_equal(drawn["withheld"][:, 1], output.targets[~seen, 0])
    np.testing.assert_array_equal(drawn["mean"][:, 1], output.mean[:, 0])


def test_figures_say_what_they_need():
    for output in (weather(), frames(noisy=False)):
        with pytest.raises(ValueError, match=r"'gain-noise' .* pendulum-regression"):
            figures.draw_gain_noise({"cru": output})
    for second in (weather(), frames(30)):
        with pytest.raises(ValueError, match=r"'trajectory' .* pendulum-interpolation"):
            figures.draw_trajectory({"cru": filled_in(), "gru": second})
    with pytest.raises(ValueError, match=r"'trajectory' shows one test sequence, but gru has another"):
        figures.draw_trajectory({"cru": filled_in(), "gru": filled_in(seed=1)})
    with pytest.raises(ValueError, match=r"'series' .* 'trajectory' for images"):
        figures.draw_series(filled_in(), regression=False, names=["image"])
    with pytest.raises(ValueError, match=r"'gain-sparseness' needs two gains"):
        figures.draw_gain_sparseness({0: np.ones(1), 3: np.ones(1)}, features=5)


def test_every_model_has_its_own_style():
    styles = [model_style(name) for name in MODELS]
    assert len({(one.light, one.dash) for one in styles}) == len(MODELS)
    assert all(to_hex(one.light) == one.light.lower() for one in styles)
    assert model_style("new").name == "new"


def test_time_units_are_written_out():
    assert time_label("D") == "time [days]" and time_label("frame") == "time [frame]" and time_label("") == "time"


def test_runtime_is_measured_on_transitions_that_are_not_zero():
    """A fresh CRU has A = 0, whose exponential is for free."""
    from cru.layers import CRU
    from cru.reporting.figures.comparisons import _randomise_transitions

    torch.manual_seed(0)
    layer = CRU(3, 6)
    assert torch.linalg.matrix_norm(layer.basis(), 2).max() == 0
    _randomise_transitions(layer)
    weights = torch.randn(200, layer.num_basis).softmax(-1)
    norms = torch.linalg.matrix_norm(torch.einsum("nk,kij->nij", weights, layer.basis()), 2)
    assert 1.0 < norms.mean() < 1.4
    measured = figures.measure_runtime([4, 6], batch=2, steps=3, repeats=1)
    assert list(measured) == ["cru", "f-cru", "paired"]
    assert all(list(seconds) == [4, 6] and min(seconds.values()) >= 0 for seconds in measured.values())
