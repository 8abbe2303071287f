import hashlib

import numpy as np
import pytest
from PIL import Image, ImageDraw

from cru.data.datasets import pendulum
from cru.data.datasets.drawing import draw_lines, sine
from cru.data.datasets.pendulum import INTERPOLATION, REGRESSION, generate, noise_factors, simulate
from cru.data.random import generator


def plain_rendering(angle):
    """One frame as anybody would draw it with Pillow."""
    canvas = Image.new("F", (128, 128), 0.0)
    end = (64 + 55 * np.sin(angle), 64 + 55 * np.cos(angle))
    ImageDraw.Draw(canvas).line([(64, 64), end], fill=1.0, width=8)
    return np.clip(np.asarray(canvas.resize((24, 24), Image.Resampling.LANCZOS)), 0, 1) * 255


def test_images_agree_with_pillow_to_one_grey_level():
    angles = np.random.default_rng(0).uniform(-np.pi, 3 * np.pi, 500)
    plain = np.stack([plain_rendering(angle) for angle in angles])
    assert np.abs(draw_lines(angles) - plain).max() <= 1
    down, right = draw_lines(np.array([0, np.pi / 2]))
    assert down[20, 12] > 200 and down[4, 12] == 0, "angle 0 hangs down"
    assert right[12, 20] > 200 and right[12, 4] == 0


def test_sine_is_exact_to_the_last_digits():
    x = np.linspace(-20, 20, 100_001)
    assert np.abs(sine(x) - np.sin(x)).max() < 2e-15
    out = np.empty_like(x)
    assert sine(x, out=out) is out


def test_simulation_agrees_with_a_literal_loop():
    """Each pendulum by itself, step by step, from the equations."""
    rng = generator(5, "test")
    start, kicks = rng.uniform(0, 2 * np.pi, 3), 0.1 * rng.standard_normal((100, 3))
    expected = np.empty((3, 100))
    for i in range(3):
        theta, v = start[i], 0.0
        for frame in range(100):
            expected[i, frame] = theta - np.pi
            for _ in range(100):
                v += 1e-4 * (9.81 * 3 * np.sin(theta) - 0.1 * v)
                theta += 1e-4 * v
            v += kicks[frame, i]
            theta %= 2 * np.pi
    found = simulate(3, 0.01, generator(5, "test"))
    assert np.abs(np.exp(1j * found) - np.exp(1j * expected)).max() < 1e-8
    assert found.min() >= -np.pi and found.max() < np.pi


def test_an_undisturbed_pendulum_loses_only_what_friction_takes(monkeypatch):
    monkeypatch.setattr(pendulum, "VELOCITY_NOISE", 0.0)
    angles = simulate(200, 0.05, generator(0, "test"))
    assert (np.abs(angles[:, 0]).max() <= np.pi) and (np.abs(angles) <= np.abs(angles[:, :1]) + 1e-3).all()


def test_sequences_are_irregular_and_complete():
    series = generate(INTERPOLATION, 20, seed=1)
    frames = series.times.reshape(20, 50)
    assert (np.diff(frames, axis=1) >= 1).all() and frames.min() >= 0 and frames.max() <= 99
    assert len(np.unique(frames[0])) == 50 and not np.array_equal(frames[0], frames[1])
    assert series.values.shape == (1000, 1, 24, 24) and series.values.dtype == np.uint8
    assert (series.per_time["noise"] == 1).all()
    angle = np.arctan2(*series.per_time["sin_cos"].T.astype(float))
    assert (
        np.array_equal(series.values[:, 0], draw_lines(angle))
        or (np.abs(series.values[:, 0].astype(int) - draw_lines(angle)).max(axis=(1, 2)) > 0).mean() < 0.01
    ), "image and target show the same angle"


def test_noise_follows_the_protocol():
    factor = noise_factors(4000, generator(0, "test"))
    assert factor.shape == (4000, 100) and (factor[:, :5] == 1).all()
    assert factor.min() == 0 and factor.max() == 1
    assert (factor[:, 5:] == 0).mean() == pytest.approx((factor[:, 5:] == 1).mean(), abs=0.03), "symmetric"
    inside = (factor[:, 5:-1] > 0) & (factor[:, 5:-1] < 1) & (factor[:, 6:] > 0) & (factor[:, 6:] < 1)
    steps = np.diff(factor[:, 5:], axis=1)[inside]
    assert np.abs(steps).max() <= 0.2 / 0.5 + 1e-6 and np.abs(steps).mean() == pytest.approx(0.13, abs=0.02)

    series = generate(REGRESSION, 100, seed=0)
    clean = draw_lines(np.arctan2(*series.per_time["sin_cos"].T.astype(float)))
    noise = series.per_time["noise"]
    early = series.times < 5
    assert (noise[early] == 1).all()
    nothing_left = series.values[noise == 0].astype(float)
    assert nothing_left.mean() == pytest.approx(127.5, abs=1) and nothing_left.std() == pytest.approx(
        255 / 12**0.5, abs=1
    )
    half = np.abs(noise - 0.5) < 0.1
    expected = noise[half, None, None] * clean[half] + (1 - noise[half, None, None]) * 127.5
    assert (series.values[half, 0] - expected).mean() == pytest.approx(0, abs=1)


@pytest.mark.parametrize(
    ("variant", "expected"),
    [(INTERPOLATION, "f6266bdcec481ad4"), (REGRESSION, "4cad67205f01e637")],
    ids=lambda v: getattr(v, "name", ""),
)
def test_a_seed_gives_the_same_bytes_on_every_machine(variant, expected):
    series = generate(variant, 30, seed=42)
    digest = hashlib.sha256()
    for array in (series.times, series.values, series.per_time["sin_cos"], series.per_time["noise"]):
        digest.update(np.ascontiguousarray(array).tobytes())
    assert digest.hexdigest()[:16] == expected
    assert not np.array_equal(generate(variant, 30, seed=43).values, series.values)


def test_joined_sets_train_on_the_validation_sequences_too(tmp_path, monkeypatch):
    monkeypatch.setattr(pendulum, "SIZES", (6, 3, 2))
    apart, joined = (pendulum.load(REGRESSION, cache=tmp_path, joined=on) for on in (False, True))
    assert joined.train.ids == apart.train.ids + apart.validation.ids
    assert (joined.validation.ids, joined.test.ids) == (apart.validation.ids, apart.test.ids)


def test_load_makes_once_and_reads_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr(pendulum, "SIZES", (6, 3, 2))
    made = pendulum.load(REGRESSION, cache=tmp_path)
    assert [len(part) for part in made] == [6, 3, 2]
    monkeypatch.setattr(pendulum, "generate", None)
    read = pendulum.load(REGRESSION, cache=tmp_path)
    assert all(np.array_equal(a.values, b.values) for a, b in zip(made, read, strict=True))
    assert read.test.per_time["noise"].shape == (100,)
    ids = [i for part in read for i in part.ids]
    assert len(set(ids)) == 11
