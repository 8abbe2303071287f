"""The pendulum of Becker et al. 2019: simulated, drawn as 24 x 24 images, and sampled at irregular times.

Images and targets need only additions and multiplications. So a seed gives the same data on every machine.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cru.data.cache import cache_dir, cached
from cru.data.datasets.drawing import IMAGE, draw_lines, sine
from cru.data.random import generator
from cru.data.series import SeriesSet
from cru.data.splits import Splits, split_series
from cru.progress import ProgressBar
from cru.shapes import Float32, Float64, UInt8

GRAVITY, MASS, LENGTH, FRICTION = 9.81, 1.0, 1.0, 0.1
INERTIA = MASS * LENGTH**2 / 3
STEP = 1e-4  # seconds of one Euler step
VELOCITY_NOISE = 0.1
IMAGE_SHAPE = (1, IMAGE, IMAGE)
FRAMES, KEPT_FRAMES, CLEAN_FRAMES = 100, 50, 5
SIZES = (2000, 1000, 1000)
_VERSION = 1


class Variant(NamedTuple):
    """The data of one of the two tasks."""

    name: str
    frame_interval: float  # seconds
    noisy: bool


INTERPOLATION = Variant("pendulum-interpolation", 0.05, noisy=False)
REGRESSION = Variant("pendulum-regression", 0.01, noisy=True)


def load(
    variant: Variant,
    *,
    data_dir: Path | str | None = None,
    cache: Path | str | None = None,
    seed: int = 0,
    joined: bool = False,
    progress: bool = False,
) -> Splits:
    """Load 2 000 training, 1 000 validation and 1 000 test sequences. They are simulated once per seed and cached.

    Args:
        variant: the data of interpolation or of regression.
        data_dir: without effect.
        cache: the cache folder; see `cru.data.cache.cache_dir`.
        seed: the seed of the simulation.
        joined: whether the training set includes the validation sequences.
        progress: whether to show a bar during the simulation.
    """
    key = {"dataset": variant.name, "version": _VERSION, "seed": seed, "sizes": list(SIZES)}
    path = cache_dir(cache) / f"{variant.name}-{seed}.npz"
    series = cached(path, key, lambda: (generate(variant, sum(SIZES), seed=seed, progress=progress), key))
    return split_series(series, np.arange(sum(SIZES)), SIZES, joined=joined)


def generate(variant: Variant, count: int, *, seed: int = 0, progress: bool = False) -> SeriesSet:
    """Simulate ``count`` sequences of 50 frames. Times are frame numbers from 0 to 99.

    ``per_time`` has the sine and cosine of the angle (``sin_cos``). It also has the weight of the image in the noisy
    image (``noise``): 1 is a clean image, 0 is only noise.
    """
    rng_motion, rng_frames, rng_noise = (generator(seed, name) for name in ("motion", "frames", "noise"))
    with ProgressBar(variant.name, FRAMES, show=progress) as bar:
        angle = simulate(
            count, variant.frame_interval, rng_motion, after_frame=lambda: bar.update(bar.done + 1, "simulate")
        )
    frame = np.sort(rng_frames.random((count, FRAMES)).argsort(1, kind="stable")[:, :KEPT_FRAMES], 1)
    angle = np.take_along_axis(angle, frame, 1).ravel()
    images = draw_lines(angle)
    if variant.noisy:
        factor = np.take_along_axis(noise_factors(count, rng_noise), frame, 1).ravel()
        images = add_noise(images, factor, rng_noise)
    else:
        factor = np.ones(len(angle), np.float32)
    rows = count * KEPT_FRAMES
    return SeriesSet(
        times=frame.ravel().astype(np.float64),
        values=images[:, None],
        mask=np.ones((rows, 1, 1, 1), bool),
        offsets=np.arange(0, rows + 1, KEPT_FRAMES),
        ids=tuple(f"{k:04d}" for k in range(count)),
        names=("image",),
        time_unit="frame",
        per_time={
            "sin_cos": np.stack([sine(angle), sine(angle + np.pi / 2)], 1).astype(np.float32),
            "noise": factor,
        },
    )


def simulate(
    count: int,
    frame_interval: float,
    rng: np.random.Generator,
    *,
    after_frame: Callable[[], Any] = lambda: None,
) -> Float64[np.ndarray, "count frame"]:
    """Simulate the angles of all pendulums at all frames, in [-π, π). 0 points down.

    The method is semi-implicit Euler, with θ = 0 at the top: v += h (c sin θ - friction v), θ += h v.

    Args:
        count: the number of pendulums.
        frame_interval: the seconds between two frames.
        rng: the generator of the initial angles and of the noise.
        after_frame: a function to call after each frame.
    """
    acceleration = GRAVITY * LENGTH * MASS / INERTIA
    theta = rng.uniform(0, 2 * np.pi, count)
    velocity = np.zeros(count)
    kicks = VELOCITY_NOISE * rng.standard_normal((FRAMES, count))
    angles = np.empty((FRAMES, count))
    force, damping = np.empty(count), 1 - STEP * FRICTION
    for frame in range(FRAMES):
        angles[frame] = theta - np.pi
        for _ in range(round(frame_interval / STEP)):
            sine(theta, out=force)
            force *= STEP * acceleration
            velocity *= damping
            velocity += force
            np.multiply(velocity, STEP, out=force)
            theta += force
        velocity += kicks[frame]
        theta -= 2 * np.pi * np.floor(theta / (2 * np.pi))
        after_frame()
    return angles.T


def noise_factors(count: int, rng: np.random.Generator) -> Float32[np.ndarray, "count frame"]:
    """Draw the weight of each image: a clipped random walk, rescaled from two thresholds per sequence to [0, 1]."""
    walk = np.empty((count, FRAMES))
    walk[:, 0] = rng.random(count)
    steps = rng.uniform(-0.2, 0.2, (count, FRAMES))
    for frame in range(1, FRAMES):
        walk[:, frame] = np.clip(walk[:, frame - 1] + steps[:, frame], 0, 1)
    low, high = rng.uniform(0, 0.25, (count, 1)), rng.uniform(0.75, 1, (count, 1))
    factor = np.clip((walk - low) / (high - low), 0, 1)
    factor[:, :CLEAN_FRAMES] = 1
    return factor.astype(np.float32)


def add_noise(
    images: UInt8[np.ndarray, "row 24 24"], factor: Float32[np.ndarray, " row"], rng: np.random.Generator
) -> UInt8[np.ndarray, "row 24 24"]:
    """Compute factor · image + (1 - factor) · U(0, 255), rounded.

    Args:
        images: the clean images.
        factor: the weight of each image.
        rng: the generator of the noise.
    """
    noisy = np.empty_like(images)
    for start in range(0, len(images), 10_000):  # the noise of all images at once would take half a gigabyte
        rows = slice(start, start + 10_000)
        left = factor[rows, None, None]
        mixed = rng.random(images[rows].shape, dtype=np.float32)
        mixed *= 255 * (1 - left)
        mixed += left * images[rows]
        noisy[rows] = np.rint(mixed, out=mixed)
    return noisy
